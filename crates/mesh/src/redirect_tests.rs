use serde_json::{Map, Value, json};

use super::*;

fn pod(annotations: &[(&str, &str)], proxy: Value) -> Pod {
    let mut container = proxy;
    container["name"] = "istio-proxy".into();
    let annotations: Map<String, Value> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}))
        .unwrap()
}

fn text(annotations: &[(&str, &str)], key: &str) -> String {
    let redirect = Redirect::from_pod(&pod(annotations, json!({}))).unwrap();
    texts(&redirect)[key].as_str().unwrap().to_owned()
}

fn texts(redirect: &Redirect) -> Value {
    serde_json::to_value(redirect.to_texts()).unwrap()
}

fn culprit(annotations: &[(&str, &str)]) -> &'static str {
    Redirect::from_pod(&pod(annotations, json!({}))).unwrap_err().annotation
}

#[test]
fn a_pod_that_says_nothing_gets_istios_defaults() {
    let redirect = Redirect::from_pod(&pod(&[], json!({}))).unwrap();
    assert_eq!(
        texts(&redirect),
        json!({"target_port": "15001", "redirect_mode": "REDIRECT", "include_ip_cidrs": "*", "exclude_ip_cidrs": "",
            "exclude_inbound_ports": "15020,15021,15090", "include_inbound_ports": "*",
            "exclude_outbound_ports": "15020", "include_outbound_ports": "", "exclude_interfaces": "",
            "reroute_virtual_interfaces": "", "no_redirect_uid": "1337", "no_redirect_gid": "1337",
            "dns_redirect": false, "dual_stack": false, "invalid_drop": false})
    );
    assert_eq!(redirect.warnings, []);
}

#[test]
fn empty_is_not_absent() {
    assert_eq!(text(&[(INCLUDE_INBOUND_PORTS, "")], "include_inbound_ports"), "");
    assert_eq!(text(&[(INCLUDE_OUTBOUND_IP_RANGES, "")], "include_ip_cidrs"), "");
    assert_eq!(text(&[(EXCLUDE_OUTBOUND_PORTS, "")], "exclude_outbound_ports"), "");
    assert_eq!(
        text(&[(REROUTE_VIRTUAL_INTERFACES, ""), (KUBEVIRT_INTERFACES, "net1")], "reroute_virtual_interfaces"),
        ""
    );
    assert_eq!(culprit(&[(INTERCEPTION_MODE, "")]), INTERCEPTION_MODE);
}

#[test]
fn lists_are_trimmed_and_hold_each_item_once() {
    assert_eq!(text(&[(INCLUDE_INBOUND_PORTS, " 80 , 0080,443")], "include_inbound_ports"), "80,443");
    assert_eq!(text(&[(EXCLUDE_INBOUND_PORTS, " 15020,9, 15090")], "exclude_inbound_ports"), "15020,9,15090,15021");
    assert_eq!(text(&[(EXCLUDE_INBOUND_PORTS, "  ")], "exclude_inbound_ports"), "15020,15021,15090");
    assert_eq!(text(&[(EXCLUDE_INTERFACES, "net1, eth0.5,net1")], "exclude_interfaces"), "net1,eth0.5");
    let cidrs = "10.1.2.3/8,fd00::/8,10.1.2.3/8";
    assert_eq!(text(&[(EXCLUDE_OUTBOUND_IP_RANGES, cidrs)], "exclude_ip_cidrs"), "10.1.2.3/8,fd00::/8");
}

#[test]
fn an_invalid_annotation_is_named() {
    for (annotation, value) in [
        (INTERCEPTION_MODE, "tproxy"),
        (INCLUDE_OUTBOUND_IP_RANGES, "10.0.0.0/8, 11.0.0.0/8"),
        (INCLUDE_OUTBOUND_IP_RANGES, "10.0.0.0"),
        (EXCLUDE_OUTBOUND_IP_RANGES, "*"),
        (INCLUDE_INBOUND_PORTS, "*,80"),
        (INCLUDE_INBOUND_PORTS, " *"),
        (EXCLUDE_INBOUND_PORTS, "80,"),
        (EXCLUDE_INBOUND_PORTS, "80:90"),
        (INCLUDE_OUTBOUND_PORTS, "65536"),
        (EXCLUDE_OUTBOUND_PORTS, "http"),
        (EXCLUDE_INTERFACES, "abcdefghijklmnop"),
        (EXCLUDE_INTERFACES, " "),
        (REROUTE_VIRTUAL_INTERFACES, "0eth"),
        (KUBEVIRT_INTERFACES, "a/b"),
    ] {
        assert_eq!(culprit(&[(annotation, value)]), annotation, "{value}");
    }
}

#[test]
fn of_several_invalid_annotations_the_first_in_reading_order_is_named() {
    let bad = [(EXCLUDE_INTERFACES, "0"), (INCLUDE_INBOUND_PORTS, "x"), (EXCLUDE_INBOUND_PORTS, "x")];
    assert_eq!(culprit(&bad), EXCLUDE_INBOUND_PORTS);
    assert_eq!(culprit(&bad[..2]), INCLUDE_INBOUND_PORTS);
}

#[test]
fn a_wildcard_among_excluded_ports_is_kept_and_traced_back() {
    let redirect = Redirect::from_pod(&pod(&[(EXCLUDE_INBOUND_PORTS, "*")], json!({}))).unwrap();
    assert_eq!(redirect.to_texts().exclude_inbound_ports, "*,15020,15021,15090");
    assert_eq!(redirect.annotation_of_port("*"), Some(EXCLUDE_INBOUND_PORTS));
    assert_eq!(redirect.annotation_of_port("80"), None);
}

#[test]
fn user_and_group_of_the_proxy_are_independent_and_0_means_1337() {
    for (context, uid, gid) in [
        (json!({"runAsUser": 1000670000, "runAsGroup": 7}), "1000670000", "7"),
        (json!({"runAsUser": 0, "runAsGroup": 0}), "1337", "1337"),
        (json!({"runAsGroup": 9}), "1337", "9"),
        (json!(null), "1337", "1337"),
    ] {
        let redirect = Redirect::from_pod(&pod(&[], json!({"securityContext": context}))).unwrap().to_texts();
        assert_eq!((redirect.no_redirect_uid.as_str(), redirect.no_redirect_gid.as_str()), (uid, gid));
    }
}

#[test]
fn the_pods_user_counts_where_the_proxys_container_names_none() {
    for (of_pod, of_proxy, uid, gid) in [
        (json!({"runAsUser": 5, "runAsGroup": 6}), json!({}), "5", "6"),
        (json!({"runAsUser": 5, "runAsGroup": 6}), json!({"runAsUser": 7}), "7", "6"),
        (json!({"runAsUser": 5}), json!({"runAsUser": 0}), "1337", "1337"),
        (json!({"runAsUser": 0, "runAsGroup": 0}), json!({}), "1337", "1337"),
        (json!(null), json!({"runAsGroup": 9}), "1337", "9"),
    ] {
        let containers = json!([{"name": "app", "securityContext": {"runAsUser": 3}},
            {"name": "istio-proxy", "securityContext": of_proxy}]);
        let pod = json!({"spec": {"securityContext": of_pod, "containers": containers}});
        let redirect = Redirect::from_pod(&serde_json::from_value(pod).unwrap()).unwrap().to_texts();
        assert_eq!((redirect.no_redirect_uid.as_str(), redirect.no_redirect_gid.as_str()), (uid, gid));
    }
}

#[test]
fn of_several_proxies_the_last_that_says_something_counts() {
    let pod = json!({"spec": {
        "initContainers": [{"name": "istio-proxy", "securityContext": {"runAsUser": 5, "runAsGroup": 5},
            "env": [{"name": DNS_CAPTURE, "value": "false"}, {"name": DUAL_STACK, "value": "true"},
                    {"name": INVALID_DROP, "value": "true"}]}],
        "containers": [{"name": "istio-proxy", "securityContext": {"runAsGroup": 6},
            "env": [{"name": DNS_CAPTURE, "value": "true"}, {"name": INVALID_DROP, "valueFrom": {}}]}]}});
    let redirect = Redirect::from_pod(&serde_json::from_value(pod).unwrap()).unwrap();
    let texts = redirect.to_texts();
    assert_eq!((texts.no_redirect_uid.as_str(), texts.no_redirect_gid.as_str()), ("5", "6"));
    assert_eq!((texts.dns_redirect, texts.dual_stack, texts.invalid_drop), (true, true, false));
    assert_eq!(redirect.warnings.len(), 1);
}

#[test]
fn a_variable_that_is_no_boolean_is_told_and_taken_for_false() {
    let env = json!({"env": [{"name": DNS_CAPTURE, "value": "t"}, {"name": DUAL_STACK, "value": "yes"},
        {"name": INVALID_DROP, "valueFrom": {}}]});
    let redirect = Redirect::from_pod(&pod(&[], env)).unwrap();
    assert!(redirect.settings.redirect_dns && redirect.settings.capture_all_dns);
    assert!(!redirect.settings.dual_stack && !redirect.settings.drop_invalid);
    let told: Vec<&str> = redirect.warnings.iter().map(|warning| warning.variable).collect();
    assert_eq!(told, [DUAL_STACK, INVALID_DROP]);
}

#[test]
fn what_the_agent_says_about_a_pod_is_what_the_plugin_reads_itself() {
    let annotations = [
        (INTERCEPTION_MODE, "TPROXY"),
        (INCLUDE_OUTBOUND_IP_RANGES, "10.0.0.0/8,fd00::/8"),
        (EXCLUDE_OUTBOUND_IP_RANGES, "10.1.0.0/16"),
        (INCLUDE_INBOUND_PORTS, "80, 443"),
        (EXCLUDE_INBOUND_PORTS, ""),
        (INCLUDE_OUTBOUND_PORTS, "9000"),
        (EXCLUDE_INTERFACES, "net1"),
        (REROUTE_VIRTUAL_INTERFACES, "tap0,tap1"),
    ];
    let env = json!({"env": [{"name": DNS_CAPTURE, "value": "true"}, {"name": DUAL_STACK, "value": "true"}],
        "securityContext": {"runAsUser": 7}});
    for pod in [pod(&annotations, env), pod(&[], json!({})), pod(&[(INCLUDE_INBOUND_PORTS, "")], json!({}))] {
        let mut own = Redirect::from_pod(&pod).unwrap();
        own.or_refuse(true);
        assert!(own.settings.refuse_uncaptured);
        assert_eq!(Redirect::from_texts(&own.to_texts()).unwrap(), own);
    }
}

#[test]
fn the_pod_has_the_last_word_on_what_is_not_captured() {
    for (annotation, node, refuses) in
        [(None, false, false), (None, true, true), (Some("refuse"), false, true), (Some("pass"), true, false)]
    {
        let annotations: Vec<_> = annotation.map(|value| (UNCAPTURED_TRAFFIC, value)).into_iter().collect();
        let mut redirect = Redirect::from_pod(&pod(&annotations, json!({}))).unwrap();
        redirect.or_refuse(node);
        assert_eq!(redirect.to_texts().refuse_uncaptured, refuses, "{annotation:?} {node}");
        // What was decided once stays.
        let mut told = Redirect::from_texts(&redirect.to_texts()).unwrap();
        told.or_refuse(!refuses);
        assert_eq!(told, redirect);
    }
    for value in ["", "Refuse", "drop", "true"] {
        assert_eq!(culprit(&[(UNCAPTURED_TRAFFIC, value)]), UNCAPTURED_TRAFFIC, "{value}");
    }
}

#[test]
fn half_an_answer_of_the_agent_is_no_redirection() {
    let whole = Redirect::from_pod(&pod(&[], json!({}))).unwrap().to_texts();
    for (part, key) in [
        (Redirection { target_port: String::new(), ..whole.clone() }, "target_port"),
        (Redirection { no_redirect_uid: "root".to_owned(), ..whole.clone() }, "no_redirect_uid"),
        (Redirection { redirect_mode: String::new(), ..whole }, INTERCEPTION_MODE),
    ] {
        assert_eq!(Redirect::from_texts(&part).unwrap_err().annotation, key);
    }
}
