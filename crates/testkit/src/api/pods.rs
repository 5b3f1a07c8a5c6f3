//! The pods of the stand-in API server: by name, as lists in pages, and as a watch that replays what happened.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Shared, status_object};

#[derive(Default)]
pub(super) struct Pods {
    pods: BTreeMap<(String, String), Value>,
    /// Grows with every change.
    version: u64,
    /// Changes, each with the version it made.
    history: Vec<(u64, &'static str, Value)>,
    /// What happened up to this version is forgotten.
    forgotten: u64,
    /// Grows with every break of the watches.
    breaks: u64,
}

/// Which pods a list or watch is about.
#[derive(Debug, Default)]
pub(super) struct Selection {
    pub(super) watch: bool,
    node: Option<String>,
    /// Pods per page; 0 for all.
    limit: usize,
    /// How many to leave out: they were on earlier pages.
    skip: usize,
    /// Watch what happened after this.
    version: u64,
}

impl Pods {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.pods.get(&(namespace.to_owned(), name.to_owned()))
    }

    pub(super) fn set(&mut self, namespace: &str, name: &str, mut pod: Value) {
        self.version += 1;
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), self.version.to_string().into());
        }
        let before = self.pods.insert((namespace.to_owned(), name.to_owned()), pod.clone());
        self.history.push((self.version, if before.is_some() { "MODIFIED" } else { "ADDED" }, pod));
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        if let Some(pod) = self.pods.remove(&(namespace.to_owned(), name.to_owned())) {
            self.version += 1;
            self.history.push((self.version, "DELETED", pod));
        }
    }

    pub(super) fn break_watches(&mut self, forget: bool) {
        self.breaks += 1;
        if forget {
            // So that a client which knows all that happened is out of date as well.
            self.version += 1;
            self.forgotten = self.version;
        }
    }

    pub(super) fn list(&self, selection: &Selection) -> Value {
        let mut rest = self.pods.values().filter(|pod| selection.takes(pod)).skip(selection.skip);
        let limit = if selection.limit == 0 { usize::MAX } else { selection.limit };
        let items: Vec<_> = rest.by_ref().take(limit).collect();
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if rest.next().is_some() {
            metadata["continue"] = (selection.skip + items.len()).to_string().into();
        }
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})
    }
}

impl Selection {
    pub(super) fn from_query(query: &str) -> Self {
        let values: HashMap<_, _> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
        let number = |key: &str| values.get(key).and_then(|text| text.parse().ok()).unwrap_or(0);
        let fields = values.get("fieldSelector").map(|text| text.replace("%3D", "=").replace("%3d", "="));
        Self {
            watch: values.get("watch").is_some_and(|text| ["true", "1"].contains(text)),
            node: fields.and_then(|text| text.strip_prefix("spec.nodeName=").map(str::to_owned)),
            limit: number("limit"),
            skip: number("continue"),
            version: values.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0),
        }
    }

    fn takes(&self, pod: &Value) -> bool {
        self.node.as_ref().is_none_or(|node| pod["spec"]["nodeName"] == node.as_str())
    }
}

/// Sends what happens until the client leaves or the watches are broken off, and then ends in the middle.
pub(super) fn watch(stream: &mut impl Write, shared: &Shared, selection: &Selection) -> io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
    )?;
    let breaks = shared.lock().pods.breaks;
    let mut sent = selection.version;
    loop {
        let events = {
            let mut state = shared.lock();
            while state.pods.breaks == breaks && state.pods.forgotten <= sent && state.pods.version <= sent {
                stream.flush()?;
                state = shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            let pods = &state.pods;
            if pods.breaks != breaks {
                return Ok(());
            }
            if pods.forgotten > sent {
                let status = status_object(410, "too old resource version");
                return chunk(stream, &json!({"type": "ERROR", "object": status}));
            }
            let new = pods.history.iter().filter(|(version, ..)| *version > sent);
            let events: Vec<_> = new.map(|(_, kind, pod)| json!({"type": kind, "object": pod})).collect();
            sent = pods.version;
            events
        };
        for event in events.iter().filter(|event| selection.takes(&event["object"])) {
            chunk(stream, event)?;
        }
    }
}

fn chunk(stream: &mut impl Write, event: &Value) -> io::Result<()> {
    let line = format!("{event}\n");
    write!(stream, "{:x}\r\n{line}\r\n", line.len())?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str) -> Value {
        json!({"metadata": {}, "spec": {"nodeName": node}})
    }

    #[test]
    fn lists_come_in_pages_and_for_one_node() {
        let mut pods = Pods::default();
        for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n1"), ("d", "n1")] {
            pods.set("shop", name, pod(node));
        }
        let page = |query: &str| pods.list(&Selection::from_query(query));
        let first = page("fieldSelector=spec.nodeName%3Dn1&limit=2");
        assert_eq!((first["items"].as_array().unwrap().len(), &first["metadata"]["continue"]), (2, &"2".into()));
        let second = page("fieldSelector=spec.nodeName%3Dn1&limit=2&continue=2");
        assert_eq!((second["items"].as_array().unwrap().len(), &second["metadata"]["continue"]), (1, &Value::Null));
        assert_eq!(page("")["items"].as_array().unwrap().len(), 4);
    }
}
