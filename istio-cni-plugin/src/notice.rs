//! DEL and GC: the agent is told what became of sandboxes, if it is there.
//!
//! Rules go with the network namespace, so nothing depends on it: a teardown must never wait for us or fail because of us.
//! Whatever is wrong with the call, nothing is told and nothing is said.

use agent_api::PluginConfig;
use agent_api::ask::{Attachment, Attachments};
use cni::{Request, Verb};
use serde::Deserialize;
use serde_json::Value;

use crate::agent;
use crate::judge::{Call, run_dir};
use crate::log::{Level, Logger};

/// Keys under which the runtime lists the attachments it still has: that of the specification, and its forerunner.
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// Tells the agent that a sandbox goes, unless it never cared about it.
pub(crate) fn gone(request: &Request) {
    let mut log = Logger::of(Verb::Del, request);
    let Ok(call) = Call::read(request, &mut log) else { return };
    log.write(Level::Debug, "sandbox goes");
    if call.by_name().is_none() {
        // No agent, nobody to tell.
        let _ = agent::tell_gone(&call.run_dir, &call.question(Verb::Del));
    }
}

/// Tells the agent which sandboxes there are. A runtime that does not list them has said nothing about them.
pub(crate) fn attachments(request: &Request) {
    let Some(listed) = VALID_ATTACHMENTS.iter().find_map(|key| request.conf.keys().get(*key)) else { return };
    let Value::Array(listed) = listed else { return };
    // One that cannot be read must not look like one that is gone.
    let valid: Result<Vec<_>, _> = listed.iter().map(Attachment::deserialize).collect();
    let (Ok(valid), Ok(config)) = (valid, request.conf.decode::<PluginConfig>()) else { return };
    let network = request.conf.name().to_owned();
    // No agent, nobody to tell.
    let _ = agent::tell_attachments(&run_dir(&config), &Attachments { network, valid });
}
