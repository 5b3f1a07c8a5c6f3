//! What the plugin does with hostile input: bytes that claim to come from the runtime, the agent or the API server.
//! Shared like `targets.rs`.

use std::io::{self, Cursor, Read, Write};

use agent_api::{Answer, Kubeconfig, PluginConfig};
use cni::{Error, NetConf, PodArgs, Version};
use iptables_rules::config::HostFacts;
use iptables_rules::model::Family;
use iptables_rules::plan::sidecar;
use iptables_rules::render::compat::{OwnerForm, encode};
use iptables_rules::render::iptables::restore;
use istio_cni_plugin::http::exchange;
use mesh::{Decision, Pod, Redirect, decide};
use serde_json::Value;

/// Reads `bytes` as a network configuration and hands its previous result on.
pub fn stdin(bytes: &[u8]) {
    let conf = match NetConf::parse(bytes) {
        Ok(conf) => conf,
        Err(error) => return readable(&error),
    };
    if let Err(error) = conf.decode::<PluginConfig>() {
        readable(&error);
    }
    match conf.unchanged_result() {
        Ok(text) => {
            let result: Value = serde_json::from_str(&text).expect("a result is JSON");
            assert_eq!(result["cniVersion"], conf.version().as_str());
        }
        Err(error) => readable(&error),
    }
}

/// An error is one line of JSON whatever is quoted in it.
fn readable(error: &Error) {
    let text = error.to_json(Version::LATEST);
    let object: Value = serde_json::from_str(&text).expect("an error is JSON");
    assert!(object["code"].as_u64().is_some_and(|code| code > 0) && object["msg"] != "" && !text.contains('\n'));
}

/// Reads `bytes` as `CNI_ARGS`.
pub fn cni_args(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(args) = PodArgs::parse(&text) {
        for value in [args.name, args.namespace, args.uid, args.infra_container_id] {
            assert!(text.contains(&value), "a value that nobody wrote: {value}");
        }
    }
}

/// Reads `bytes` as a kubeconfig.
pub fn kubeconfig(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(read) = Kubeconfig::parse(&text) {
        assert_eq!(Kubeconfig::parse(&read.render()).ok().as_ref(), Some(&read), "what was understood can be written");
    }
}

/// Reads `bytes` as a pod, decides about it, and makes the rules it asks for.
pub fn pod(bytes: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(bytes) else { return };
    let Ok(Decision::Redirect(redirect)) = decide(&pod) else { return };
    rules(&redirect);
}

/// Reads `bytes` as what an agent or an API server sends, and what is in it as an answer about a pod.
pub fn reply(bytes: &[u8]) {
    const LIMIT: usize = 1 << 16;
    let mut connection = Connection(Cursor::new(bytes.to_vec()));
    let Ok(answer) = exchange(&mut connection, "GET / HTTP/1.1\r\n\r\n", LIMIT) else { return };
    assert!(answer.body.len() <= LIMIT.min(bytes.len()), "a body that nobody sent");
    let Ok(answer) = serde_json::from_slice::<Answer>(&answer.body) else { return };
    if let Ok(redirect) = Redirect::from_texts(&answer.redirection) {
        assert_eq!(Redirect::from_texts(&redirect.to_texts()).as_ref(), Ok(&redirect), "said again, it means the same");
        rules(&redirect);
    }
}

/// Takes what is written, and gives what was sent.
struct Connection(Cursor<Vec<u8>>);

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Connection {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the rules of a redirection.
fn rules(redirect: &Redirect) {
    let plan = sidecar(&redirect.settings, &HostFacts { ipv6: true, ..HostFacts::default() });
    for family in Family::BOTH {
        for line in restore(plan.rules(family)) {
            assert!(!line.contains(['\n', '\0']), "a rule that is two: {line:?}");
        }
        for rule in plan.rules(family) {
            let _ = encode(rule, family, OwnerForm::Extension);
        }
    }
}
