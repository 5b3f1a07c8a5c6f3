//! Keeps [`Pods`] up to date with one watch.
//!
//! The watch comes as a stream, so that all of this works without a server. When a stream breaks, whatever the reason, a
//! new one is made from scratch: with the token and the certificates that are in place by then. It begins with a list,
//! and until that is complete what was known before stays. Runs for as long as the agent.

use std::error::Error;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Client};

use super::Pods;
use super::thin::ThinPod;
use crate::cluster::with_sources;

/// So many pods are listed at a time: their text is in memory while they are read.
const PAGE: u32 = 50;
/// Until the next part of a list. A watch has a limit of its own.
const LIST_PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A watch on the pods of `node`.
pub fn pods_of(client: Client, node: &str) -> impl Stream<Item = watcher::Result<Event<ThinPod>>> + Send + use<> {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).page_size(PAGE);
    watcher::watcher(Api::<ThinPod>::all(client), config)
}

/// Follows one stream after the other until the task is dropped.
pub async fn keep<S, E, C>(pods: &Pods, mut connect: impl FnMut() -> Result<S, C>)
where
    S: Stream<Item = Result<Event<ThinPod>, E>>,
    E: Error,
    C: Error,
{
    let mut backoff = DefaultBackoff::default();
    let mut told = false;
    loop {
        let cause = match connect() {
            Ok(stream) => {
                let complete = || {
                    tracing::debug!(pods = pods.len(), "the pods of this node are known");
                    if std::mem::take(&mut told) {
                        tracing::info!("the pods of this node are known again");
                    }
                    backoff.reset();
                };
                follow(pods, stream, complete).await
            }
            Err(error) => with_sources(&error),
        };
        pods.lost();
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(
                cause,
                "the pods of this node are not heard of, so plugins have to ask the API server; it is tried again and again"
            );
        } else {
            tracing::debug!(cause, "the pods of this node are still not heard of");
        }
        tokio::time::sleep(backoff.next().unwrap_or(LONGEST_PAUSE)).await;
    }
}

/// Follows a stream until it breaks, and tells why it did. `complete` is called whenever all pods are known.
async fn follow<S, E>(pods: &Pods, stream: S, mut complete: impl FnMut()) -> String
where
    S: Stream<Item = Result<Event<ThinPod>, E>>,
    E: Error,
{
    let mut stream = std::pin::pin!(stream);
    // The list so far, while one is under way.
    let mut listed = Some(Vec::new());
    loop {
        let next = stream.next();
        let event = if listed.is_some() {
            match tokio::time::timeout(LIST_PATIENCE, next).await {
                Ok(event) => event,
                Err(_) => return format!("no list of pods within {} s", LIST_PATIENCE.as_secs()),
            }
        } else {
            next.await
        };
        match event {
            Some(Ok(Event::Init)) => listed = Some(Vec::new()),
            Some(Ok(Event::InitApply(pod))) => listed.get_or_insert_default().push(pod.into_pod()),
            Some(Ok(Event::InitDone)) => {
                pods.replace(listed.take().unwrap_or_default());
                complete();
            }
            Some(Ok(Event::Apply(pod))) => pods.put(pod.into_pod()),
            Some(Ok(Event::Delete(pod))) => pods.remove(&pod.into_pod()),
            Some(Err(error)) => return with_sources(&error),
            None => return "the watch has ended".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use serde_json::json;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Broken(&'static str);

    type Item = Result<Event<ThinPod>, Broken>;

    fn pod(name: &str) -> ThinPod {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "shop", "uid": name}})).unwrap()
    }

    fn names(pods: &Pods) -> Vec<&'static str> {
        ["a", "b", "c"].into_iter().filter(|name| pods.get("shop", name).is_some()).collect()
    }

    async fn after(pods: &Pods, items: Vec<Item>) -> (String, usize) {
        let mut complete = 0;
        let cause = follow(pods, stream::iter(items), || complete += 1).await;
        (cause, complete)
    }

    #[tokio::test]
    async fn pods_come_change_and_go() {
        let pods = Pods::default();
        let items = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(pod("a"))),
            Ok(Event::InitApply(pod("b"))),
            Ok(Event::InitDone),
            Ok(Event::Delete(pod("a"))),
            Ok(Event::Apply(pod("c"))),
        ];
        assert_eq!(after(&pods, items).await, ("the watch has ended".to_owned(), 1));
        assert_eq!(names(&pods), ["b", "c"]);
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_takes_nothing_away() {
        let pods = Pods::default();
        let whole = vec![Ok(Event::Init), Ok(Event::InitApply(pod("a"))), Ok(Event::InitDone)];
        after(&pods, whole).await;
        let broken = vec![Ok(Event::Init), Ok(Event::InitApply(pod("b"))), Err(Broken("gone"))];
        assert_eq!(after(&pods, broken).await, ("gone".to_owned(), 0));
        assert_eq!(names(&pods), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_breaks_is_made_anew() {
        let pods = Pods::default();
        let mut tries = 0;
        let connect = || {
            tries += 1;
            match tries {
                1 => Err(Broken("no token")),
                2 => Ok(stream::iter(vec![Err(Broken("connection refused"))]).boxed()),
                // Never answers.
                3 => Ok(stream::pending().boxed()),
                4 => {
                    Ok(stream::iter(vec![Ok(Event::Init), Ok(Event::InitApply(pod("a"))), Ok(Event::InitDone)]).boxed())
                }
                _ => {
                    let whole: Vec<Item> = vec![Ok(Event::Init), Ok(Event::InitApply(pod("b"))), Ok(Event::InitDone)];
                    Ok(stream::iter(whole).chain(stream::pending()).boxed())
                }
            }
        };
        let kept = tokio::time::timeout(Duration::from_secs(600), keep(&pods, connect)).await;
        assert!(kept.is_err(), "it does not end");
        assert!(pods.is_current());
        assert_eq!((names(&pods), tries), (vec!["b"], 5));
    }
}
