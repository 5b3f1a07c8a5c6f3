use std::collections::BTreeMap;

use super::*;
use crate::config::ConfigError;
use crate::log::levels::Level;

const POD: [(&str, &str); 2] = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];

fn task(words: &[&str], environment: &[(&str, &str)]) -> Task {
    let environment: BTreeMap<_, _> = POD.iter().chain(environment).copied().collect();
    let words = std::iter::once("install-cni").chain(words.iter().copied()).map(OsString::from);
    Args::task(words, &|name| environment.get(name).map(|value| (*value).to_owned()))
}

#[track_caller]
fn run(words: &[&str], environment: &[(&str, &str)]) -> Run {
    match task(words, environment) {
        Task::Run(run) => *run,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_are_istios() {
    let Run { config, faults, warnings, notes, .. } = run(&[], &[]);
    assert!(faults.is_empty() && !config.always_clean_up && config.owned.is_none());
    assert_eq!(config.check(), Ok(()));
    assert_eq!(config.dirs, Dirs::default());
    assert_eq!((config.chained, config.conf_name.as_deref(), config.conf_mode), (true, None, 0o600));
    assert_eq!((config.kubeconfig_mode, config.kubeconfig.protocol.as_str()), (0o600, "https"));
    assert_eq!(
        config.kubeconfig.ca_file.unwrap().to_str(),
        Some("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
    );
    assert_eq!(config.plugin.plugin_log_level, "info");
    assert!(warnings.is_empty() && notes.is_empty(), "{warnings:?} {notes:?}");
}

#[test]
fn a_flag_wins_over_the_environment_and_an_empty_variable_counts() {
    let environment = [("CHAINED_CNI_PLUGIN", "false"), ("CNI_CONF_NAME", "env.conf"), ("KUBECONFIG_MODE", "")];
    let config = run(&["--chained-cni-plugin", "--cni-conf-name=flag.conf"], &environment).config;
    assert_eq!((config.chained, config.conf_name.as_deref()), (true, Some("flag.conf")));
    assert_eq!(config.kubeconfig_mode, 0);
    assert!(!run(&["--chained-cni-plugin=f"], &[]).config.chained);
    assert_eq!(run(&["--kubeconfig-mode", "0640"], &environment).config.kubeconfig_mode, 0o640);
    assert_eq!(run(&[], &[("KUBECONFIG_MODE", "0o400")]).config.kubeconfig_mode, 0o400);
    assert_eq!(run(&[], &[("CNI_CONF_GROUP_READ", "1")]).config.conf_mode, 0o640);
    assert!(
        run(&["--skip-tls-verify=false", "--skip-tls-verify"], &[]).config.kubeconfig.ca_file.is_none(),
        "the last wins"
    );
    assert!(
        run(&["--log_output_level=info", "--log_output_level=debug", "--log_as_json"], &[]).log.levels.agent()
            == Level::Debug
    );
}

#[test]
fn excluded_namespaces_are_trimmed() {
    let namespaces = |text| run(&[], &[("EXCLUDE_NAMESPACES", text)]).config.plugin.exclude_namespaces;
    assert_eq!(namespaces(" kube-system , ,istio-system,"), ["kube-system", "istio-system"]);
    assert!(namespaces(",,").is_empty());
}

#[test]
fn refusal_of_what_is_not_captured_is_written_only_when_it_is_on() {
    let element = |environment: &[(&str, &str)]| serde_json::Value::Object(run(&[], environment).config.element());
    assert_eq!(element(&[("REFUSE_UNCAPTURED", "true")])["refuse_uncaptured"], true);
    assert_eq!(element(&[("REFUSE_UNCAPTURED", "false")]), element(&[]));
    assert!(element(&[]).get("refuse_uncaptured").is_none());
}

#[test]
fn settings_of_istio_that_do_nothing_yet_are_accepted_and_named() {
    let Run { notes, warnings, config, .. } = run(
        &["--repair-node-name=x", "--log_caller=x", "--log_stacktrace_level=default:none"],
        &[
            ("REPAIR_ENABLED", "true"),
            ("AMBIENT_IPV6", "true"),
            ("REPAIR_NODE_NAME", ""),
            ("AMBIENT_DNS_CAPTURE", "false"),
        ],
    );
    assert_eq!(config.check(), Ok(()));
    assert_eq!(
        notes,
        ["accepted, but without effect in this version: --repair-node-name, REPAIR_ENABLED, AMBIENT_IPV6"]
    );
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn metrics_are_served_on_istios_port_unless_told_otherwise() {
    let port = |words: &[&str], environment: &[(&str, &str)]| {
        run(words, environment).config.agent.metrics.map(|address| address.port())
    };
    assert_eq!(port(&[], &[]), Some(15014));
    assert_eq!(port(&[], &[("MONITORING_PORT", "9090")]), Some(9090));
    assert_eq!(port(&["--monitoring-port=-1"], &[("MONITORING_PORT", "9090")]), None);
    for off in ["0", "", "70000"] {
        assert_eq!(port(&[], &[("MONITORING_PORT", off)]), None, "{off}");
    }
}

#[test]
fn the_plugins_service_account_is_one_of_our_namespace() {
    let account = |environment: &[(&str, &str)]| run(&[], environment).config.agent.plugin_service_account;
    assert_eq!(account(&[("PLUGIN_SERVICE_ACCOUNT", "")]), None);
    let words = ["--plugin-service-account=plugin"];
    let Run { config, .. } = run(&words, &[("POD_NAMESPACE", "istio-system")]);
    assert_eq!((config.check(), config.agent.plugin_service_account.as_deref()), (Ok(()), Some("plugin")));
    assert!(run(&words, &[]).config.check().unwrap_err().to_string().contains("POD_NAMESPACE"));
}

#[test]
fn log_levels_are_served_locally_unless_told_otherwise() {
    let address = |words: &[&str], environment: &[(&str, &str)]| {
        run(words, environment).config.agent.admin.map(|address| address.to_string())
    };
    assert_eq!(address(&[], &[]).unwrap(), "127.0.0.1:9876");
    assert_eq!(address(&["--ctrlz_address=*"], &[("CTRLZ_PORT", "1")]).unwrap(), "[::]:1");
    assert_eq!(address(&["--ctrlz_port=-1"], &[]), None);
    assert_eq!(address(&["--ctrlz_port=0", "--ctrlz_address=host"], &[]), None);
    assert!(run(&["--ctrlz_address=host"], &[]).faults[0].contains("CTRLZ_ADDRESS"));
}

#[test]
fn ambient_mode_refuses_to_start_instead_of_leaving_pods_outside_the_mesh() {
    let config = run(&[], &[("AMBIENT_ENABLED", "true")]).config;
    assert_eq!(config.check(), Err(ConfigError::Ambient));
}

#[test]
fn settings_that_cannot_work_are_named() {
    let check = |environment: &[(&str, &str)]| run(&[], environment).config.check().unwrap_err().to_string();
    assert!(check(&[("CNI_CONF_NAME", "../x.conf")]).contains("CNI_CONF_NAME"));
    assert!(check(&[("MOUNTED_CNI_NET_DIR", "")]).contains("MOUNTED_CNI_NET_DIR"));
    assert!(check(&[("CNI_AGENT_RUN_DIR", "run")]).contains("CNI_AGENT_RUN_DIR"));
    assert!(check(&[("KUBERNETES_SERVICE_HOST", "")]).contains("KUBERNETES_SERVICE_HOST"));
    assert!(check(&[("KUBERNETES_SERVICE_PORT", "")]).contains("KUBERNETES_SERVICE_PORT"));
}

#[test]
fn wrong_usage_is_told_apart_from_help() {
    for words in [&["x"][..], &["--kubeconfig-mode=rw"], &["--skip-tls-verify=maybe"], &["--nonsense"]] {
        assert!(matches!(task(words, &[]), Task::Usage(_)), "{words:?}");
    }
    assert!(matches!(task(&["--help"], &[]), Task::Print(text) if text.contains("--cni-conf-name")));
    assert!(matches!(task(&["version", "-s"], &[]), Task::Print(text) if text.trim() == env!("CARGO_PKG_VERSION")));
    let Task::Print(json) = task(&["version", "-o", "json"], &[]) else { panic!() };
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["clientVersion"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_file_of_our_own_is_named_by_the_program_or_by_the_chart() {
    let owned = |words: &[&str], more: &[(&str, &str)]| {
        let environment: Vec<_> = more.iter().copied().chain([("ISTIO_OWNED_CNI_CONFIG", "true")]).collect();
        run(words, &environment)
    };
    let name = |words: &[&str], more: &[(&str, &str)]| owned(words, more).config.owned.unwrap();
    let (own, charts) = ("ISTIO_OWNED_CNI_CONFIG_FILENAME", "ISTIO_OWNED_CNI_CONF_FILENAME");
    assert_eq!(name(&[], &[]), "02-istio-cni.conflist");
    assert_eq!(name(&[], &[(own, "01.conflist")]), "01.conflist");
    assert_eq!(name(&[], &[(charts, "01.conflist"), (own, "")]), "01.conflist");
    assert_eq!(name(&["--istio-owned-cni-config-filename=00.conflist"], &[]), "00.conflist");
    let faults = owned(&[], &[(own, "01.conflist"), (charts, "02.conflist")]).faults;
    assert!(faults[0].contains("which is meant"), "{faults:?}");
    assert!(owned(&[], &[(own, "01.conf")]).config.check().unwrap_err().to_string().contains(".conflist"));
    assert!(owned(&[], &[(own, "a/b.conflist")]).config.check().is_err());
    assert!(owned(&[], &[("CHAINED_CNI_PLUGIN", "false")]).warnings[0].contains("no effect"));
    assert!(owned(&[], &[("CNI_CONF_NAME", "02-istio-cni.conflist")]).warnings[0].contains("never be a network"));
}

#[test]
fn words_that_would_be_silently_false_or_nothing_are_faults() {
    for (name, value) in [
        ("CHAINED_CNI_PLUGIN", "yes"),
        ("AMBIENT_DISABLE_SAFE_UPGRADE", "on"),
        ("KUBECONFIG_MODE", "rw"),
        ("FORCE_IPTABLES_BINARY", "iptables"),
        ("AMBIENT_ENABLEMENT_SELECTOR", "podSelector: {}"),
    ] {
        let faults = run(&[], &[(name, value)]).faults;
        assert!(faults.len() == 1 && faults[0].contains(name), "{faults:?}");
        assert!(run(&[], &[(name, "")]).faults.is_empty(), "an empty {name} is not a mistake");
    }
    assert!(run(&[], &[("KUBECONFIG_MODE", "600")]).warnings[0].contains("1130"));
}

#[test]
fn selectors_go_into_the_plugins_configuration() {
    let yaml = "- podSelector: {matchLabels: {a: b}}";
    assert_eq!(
        run(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", yaml)]).config.plugin.enablement_selectors,
        [serde_json::json!({"podSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}})]
    );
    let near = "- podSelector:\n    matchExpressions: [{key: a, operator: Near, values: [b]}]";
    let Run { faults, warnings, .. } = run(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", near)]);
    assert!(faults.is_empty() && warnings[0].contains("AMBIENT_ENABLEMENT_SELECTOR"), "{warnings:?}");
    assert!(!run(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", near), ("AMBIENT_ENABLED", "true")]).faults.is_empty());
}

#[test]
fn help_has_every_flag_in_its_group_with_variable_and_default() {
    let Task::Print(help) = task(&["--help"], &[]) else { panic!() };
    for line in [
        "CNI configuration:",
        "Accepted, without effect in this version:",
        "[default: 02-istio-cni.conflist] [env: ISTIO_OWNED_CNI_CONFIG_FILENAME]",
        "[env: REPAIR_NODE_NAME]",
        "AMBIENT_DISABLE_SAFE_UPGRADE",
    ] {
        assert!(help.contains(line), "{line:?} is not in\n{help}");
    }
}
