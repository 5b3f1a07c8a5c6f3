//! Every verb in every version, with everything that can be broken about a call: always the answer that the
//! specification asks for, and nothing beside it. The pod is in an excluded namespace, so nobody is asked about it.

use cni::{Verb, Version};
use serde_json::{Value, json};

use crate::call::{Node, Outcome};

/// What a fault is about, in the order in which a call is looked at.
enum Stage {
    /// A variable that some verbs require.
    Variable(&'static str, Option<&'static str>),
    /// The bytes on stdin, with the code they are worth.
    Stdin(u64, fn(&Value) -> String),
    /// A key of ours, which only those read who need it.
    Key(&'static str, Value),
    /// `CNI_ARGS`.
    Args(&'static str),
    /// The previous plugin's result, which only ADD reads.
    Result(Value),
    /// Nothing is broken.
    Nothing,
}

fn faults() -> Vec<Stage> {
    vec![
        Stage::Nothing,
        Stage::Variable("CNI_CONTAINERID", None),
        Stage::Variable("CNI_CONTAINERID", Some("../../etc")),
        Stage::Variable("CNI_CONTAINERID", Some("-c")),
        Stage::Variable("CNI_NETNS", None),
        Stage::Variable("CNI_IFNAME", None),
        Stage::Variable("CNI_IFNAME", Some("a/b")),
        Stage::Variable("CNI_IFNAME", Some("sixteen-letters-")),
        Stage::Stdin(6, |_| String::new()),
        Stage::Stdin(6, |_| "nope".to_owned()),
        Stage::Stdin(6, |_| "[]".to_owned()),
        Stage::Stdin(6, |conf| conf.to_string().chars().take(40).collect()),
        Stage::Stdin(6, |conf| format!("{conf} and more")),
        Stage::Stdin(6, |conf| with(conf, "cniVersion", 1.into())),
        Stage::Stdin(6, |conf| with(conf, "name", json!({}))),
        Stage::Stdin(7, |_| "null".to_owned()),
        Stage::Stdin(7, |conf| with(conf, "name", Value::Null)),
        Stage::Stdin(7, |conf| with(conf, "name", "a b".into())),
        Stage::Stdin(1, |conf| with(conf, "cniVersion", "9.9.9".into())),
        Stage::Key("exclude_namespaces", 7.into()),
        Stage::Key("plugin_log_level", json!({})),
        Stage::Key("cni_agent_run_dir", json!([])),
        Stage::Args("K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME"),
        Stage::Args("K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=a;VENDOR=1"),
        Stage::Result(json!([])),
        Stage::Result(json!({"ips": 5})),
        Stage::Result(json!({"cniVersion": "8.0.0"})),
        Stage::Result(json!({"cniVersion": 1})),
    ]
}

fn with(conf: &Value, key: &str, value: Value) -> String {
    let mut conf = conf.clone();
    conf[key] = value;
    conf.to_string()
}

/// The code that the specification, or our own list, asks for; `None` when the call succeeds.
fn wanted(verb: Verb, version: Version, fault: &Stage) -> Option<u64> {
    let about_a_pod = matches!(verb, Verb::Add | Verb::Check);
    match fault {
        _ if verb == Verb::Version => None,
        Stage::Variable(name, _) if required(verb).contains(name) => Some(4),
        Stage::Stdin(code, _) => Some(*code),
        _ if version < since(verb) => Some(1),
        Stage::Key(..) if about_a_pod => Some(7),
        Stage::Args(_) if about_a_pod => Some(4),
        Stage::Result(_) if verb == Verb::Add => Some(7),
        _ => None,
    }
}

/// As the specification's table has it.
fn required(verb: Verb) -> &'static [&'static str] {
    match verb {
        Verb::Add | Verb::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        Verb::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
        Verb::Gc | Verb::Status | Verb::Version => &[],
    }
}

/// As the specification's history has it.
fn since(verb: Verb) -> Version {
    match verb {
        Verb::Check => Version::V0_4_0,
        Verb::Gc | Verb::Status => Version::V1_1_0,
        Verb::Add | Verb::Del | Verb::Version => Version::V0_1_0,
    }
}

#[test]
fn whatever_is_broken_the_runtime_gets_the_answer_it_can_read() {
    let mut node = Node::without_agent();
    let (conf, env) = (node.conf.clone(), node.env.clone());
    for verb in Verb::ALL {
        for version in Version::ALL {
            for (number, fault) in faults().iter().enumerate() {
                (node.conf, node.env) = (conf.clone(), env.clone());
                node.pod("kube-system", "dns");
                node.set("CNI_COMMAND", verb.as_str());
                node.conf["cniVersion"] = version.as_str().into();
                match fault {
                    Stage::Variable(name, None) => node.unset(name),
                    Stage::Variable(name, Some(value)) => node.set(name, value),
                    Stage::Key(key, value) => node.conf[*key] = value.clone(),
                    Stage::Args(args) => node.set("CNI_ARGS", args),
                    Stage::Result(result) => node.conf["prevResult"] = result.clone(),
                    Stage::Stdin(..) | Stage::Nothing => {}
                }
                let stdin = if let Stage::Stdin(_, text) = fault { text(&node.conf) } else { node.conf.to_string() };
                let outcome = node.call_with(&stdin);
                let call = format!("{verb} {version}, fault {number}: {outcome:?}");
                judge(verb, version, fault, &outcome, &call);
            }
        }
    }
}

fn judge(verb: Verb, version: Version, fault: &Stage, outcome: &Outcome, call: &str) {
    assert!(!outcome.stderr.contains("panicked"), "{call}");
    let Some(code) = wanted(verb, version, fault) else {
        assert_eq!(outcome.exit, 0, "{call}");
        match verb {
            Verb::Add => assert_eq!(outcome.json()["cniVersion"], version.as_str(), "{call}"),
            Verb::Version => {
                let supported = Version::ALL.map(Version::as_str);
                assert_eq!(outcome.json()["supportedVersions"], json!(supported), "{call}");
                assert!(outcome.json()["cniVersion"].is_string(), "{call}");
            }
            Verb::Del | Verb::Check | Verb::Gc | Verb::Status => assert_eq!(outcome.stdout, "", "{call}"),
        }
        return;
    };
    let object = outcome.json();
    assert_eq!((outcome.exit, object["code"].as_u64()), (1, Some(code)), "{call}");
    assert!(object["msg"].as_str().is_some_and(|message| !message.is_empty()), "{call}");
    // The version is known as soon as the configuration could be read.
    let unread = matches!(fault, Stage::Stdin(..)) || (matches!(fault, Stage::Variable(..)) && code == 4);
    let spoken = if unread { Version::LATEST } else { version };
    assert_eq!(object["cniVersion"], spoken.as_str(), "{call}");
}
