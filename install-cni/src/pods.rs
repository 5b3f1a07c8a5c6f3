//! The pods of this node, as the API server last described them.
//!
//! [`watch`] keeps them up to date; questions read them. Nothing here fetches a pod that is not known: who asks gets
//! told so and looks by itself. Kept of each pod is what decisions need, see [`thin`].

pub mod thin;
pub mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agent_api::Question;
use mesh::Pod;
use tokio::sync::watch::{Receiver, Sender};

/// Annotations by which a static pod, that is one from a file on the node, carries the UID that the kubelet gave it: the
/// API server gives its image of the pod another one.
const STATIC_UIDS: [&str; 2] = ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"];

/// The pods of this node.
#[derive(Debug, Default)]
pub struct Pods {
    state: Sender<State>,
}

/// News about the pods.
#[derive(Debug)]
pub struct Changes(Receiver<State>);

/// What is known about the pod of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing, since not all pods are known.
    NotReady,
    /// There is no pod of this name.
    Absent,
    /// The pod of this name is another one.
    Other,
    /// It is this one.
    Pod(Arc<Pod>),
}

#[derive(Debug, Default)]
struct State {
    /// By `namespace/name`.
    pods: HashMap<String, Arc<Pod>>,
    /// All were known once.
    complete: bool,
    /// They may have changed without our knowing.
    stale: bool,
}

impl Pods {
    /// What is known about the pod of `question`. While there is none that fits, waits for it at most this long: the
    /// kubelet may have heard of a new pod before us.
    pub async fn find(&self, question: &Question, patience: Duration) -> Found {
        let found = self.state.borrow().find(question);
        if !matches!(found, Found::Absent | Found::Other) {
            return found;
        }
        let mut changes = self.state.subscribe();
        let come = changes.wait_for(|state| matches!(state.find(question), Found::NotReady | Found::Pod(_)));
        // However it ends, what is known then is the answer.
        let _ = tokio::time::timeout(patience, come).await;
        self.state.borrow().find(question)
    }

    /// The pod of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.state.borrow().pods.get(&key(namespace, name)).cloned()
    }

    /// Whether there is a pod with this UID.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.state.borrow().pods.values().any(|pod| pod.metadata.uid == uid)
    }

    /// The pods of which this holds.
    pub fn filter(&self, holds: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        self.state.borrow().pods.values().filter(|pod| holds(pod)).cloned().collect()
    }

    /// News; the first one is what is known now.
    pub fn changes(&self) -> Changes {
        let mut changes = self.state.subscribe();
        changes.mark_changed();
        Changes(changes)
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.state.borrow().pods.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all are known, as they are now.
    pub fn is_current(&self) -> bool {
        let state = self.state.borrow();
        state.complete && !state.stale
    }

    /// A pod has come or changed.
    fn put(&self, pod: Pod) {
        self.state.send_modify(|state| {
            state.pods.insert(key_of(&pod), Arc::new(pod));
        });
    }

    /// A pod has gone, unless another one has its name now.
    fn remove(&self, pod: &Pod) {
        self.state.send_modify(|state| {
            let key = key_of(pod);
            if state.pods.get(&key).is_some_and(|have| have.metadata.uid == pod.metadata.uid) {
                state.pods.remove(&key);
            }
        });
    }

    /// These are all.
    fn replace(&self, pods: Vec<Pod>) {
        let pods = pods.into_iter().map(|pod| (key_of(&pod), Arc::new(pod))).collect();
        self.state.send_modify(|state| *state = State { pods, complete: true, stale: false });
    }

    /// Changes are not heard of at the moment.
    fn lost(&self) {
        self.state.send_modify(|state| state.stale = true);
    }
}

impl Changes {
    /// Returns when a pod has come, changed or gone since the last time.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The pods are not kept any more.
            std::future::pending().await
        }
    }
}

impl State {
    fn find(&self, question: &Question) -> Found {
        // A name without UID may be that of an earlier pod, if changes are not heard of.
        if !self.complete || self.stale && question.uid.is_empty() {
            return Found::NotReady;
        }
        match self.pods.get(&key(&question.namespace, &question.pod)) {
            None => Found::Absent,
            Some(pod) if question.uid.is_empty() || has_uid(pod, &question.uid) => Found::Pod(Arc::clone(pod)),
            Some(_) => Found::Other,
        }
    }
}

fn has_uid(pod: &Pod, uid: &str) -> bool {
    pod.metadata.uid == uid || STATIC_UIDS.iter().any(|annotation| pod.annotation(annotation) == Some(uid))
}

/// Neither part can have a slash in it.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

fn key_of(pod: &Pod) -> String {
    key(&pod.metadata.namespace, &pod.metadata.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn pod(name: &str, uid: &str) -> Pod {
        let annotations = json!({"kubernetes.io/config.hash": "hash-1"});
        let metadata = json!({"name": name, "namespace": "shop", "uid": uid, "annotations": annotations});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn question(name: &str, uid: &str) -> Question {
        Question { pod: name.to_owned(), namespace: "shop".to_owned(), uid: uid.to_owned(), ..Question::default() }
    }

    async fn find(pods: &Pods, name: &str, uid: &str) -> Found {
        pods.find(&question(name, uid), Duration::ZERO).await
    }

    #[tokio::test]
    async fn a_pod_is_known_by_name_and_by_either_of_its_uids() {
        let pods = Pods::default();
        pods.put(pod("web", "u1"));
        assert_eq!(find(&pods, "web", "u1").await, Found::NotReady, "before all are known");
        pods.replace(vec![pod("web", "u1")]);
        let web = Found::Pod(Arc::new(pod("web", "u1")));
        for uid in ["", "u1", "hash-1"] {
            assert_eq!(find(&pods, "web", uid).await, web, "{uid}");
        }
        assert_eq!(find(&pods, "web", "u0").await, Found::Other);
        assert_eq!(find(&pods, "db", "").await, Found::Absent);
    }

    #[tokio::test]
    async fn while_changes_are_not_heard_of_a_name_alone_is_not_enough() {
        let pods = Pods::default();
        pods.replace(vec![pod("web", "u1")]);
        pods.lost();
        assert_eq!(find(&pods, "web", "").await, Found::NotReady);
        assert!(matches!(find(&pods, "web", "u1").await, Found::Pod(_)));
        pods.replace(vec![]);
        assert_eq!(find(&pods, "web", "").await, Found::Absent);
    }

    #[tokio::test]
    async fn a_pod_that_comes_while_it_is_asked_for_is_found() {
        let pods = Pods::default();
        pods.replace(vec![pod("web", "u1")]);
        for (name, uid) in [("db", "u9"), ("web", "u2")] {
            let asked = question(name, uid);
            let come = async {
                tokio::task::yield_now().await;
                pods.put(pod("unrelated", "u3"));
                tokio::task::yield_now().await;
                pods.put(pod(name, uid));
            };
            let (found, ()) = tokio::join!(pods.find(&asked, PATIENCE), come);
            assert_eq!(found, Found::Pod(Arc::new(pod(name, uid))));
        }
    }

    #[tokio::test]
    async fn the_end_of_an_earlier_pod_does_not_take_its_successor_away() {
        let pods = Pods::default();
        pods.replace(vec![pod("web", "u2")]);
        pods.remove(&pod("web", "u1"));
        assert_eq!(pods.len(), 1);
        pods.remove(&pod("web", "u2"));
        assert!(pods.is_empty());
    }
}
