use std::collections::BTreeMap;

use super::*;
use crate::config::ConfigError;

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
    let Run { config, warnings, notes, .. } = run(&[], &[]);
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
    assert!(run(&["--log_output_level=info", "--log_output_level=debug", "--log_as_json"], &[]).log.level == "debug");
}

#[test]
fn excluded_namespaces_are_trimmed() {
    let namespaces = |text| run(&[], &[("EXCLUDE_NAMESPACES", text)]).config.plugin.exclude_namespaces;
    assert_eq!(namespaces(" kube-system , ,istio-system,"), ["kube-system", "istio-system"]);
    assert!(namespaces(",,").is_empty());
}

#[test]
fn settings_of_istio_that_do_nothing_yet_are_accepted_and_named() {
    let Run { notes, warnings, config, .. } = run(
        &["--ctrlz_port", "9876", "--log_caller=x", "--log_stacktrace_level=default:none"],
        &[
            ("REPAIR_ENABLED", "true"),
            ("AMBIENT_IPV6", "true"),
            ("ISTIO_OWNED_CNI_CONFIG", "true"),
            ("REPAIR_NODE_NAME", ""),
            ("AMBIENT_DNS_CAPTURE", "false"),
        ],
    );
    assert_eq!(config.check(), Ok(()));
    assert_eq!(notes, ["accepted, but without effect in this version: --ctrlz_port, REPAIR_ENABLED, AMBIENT_IPV6"]);
    assert!(warnings[0].contains("first valid list"), "{warnings:?}");
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
