//! The story the demo tells, step by step. Each step either is as it must be or ends the demo.

use std::path::PathBuf;

use crate::agent::{self, EXCLUDED_NAMESPACE};
use crate::cluster::{Cluster, SECOND_TOKEN};
use crate::failure::Failure;
use crate::images::Programs;
use crate::interrupt::Interrupt;
use crate::mesh_pods;
use crate::plugin_log::{self, Outcome};
use crate::pods::{Pod, RunningPod};
use crate::report::{self, Progress};
use crate::snapshot::Snapshot;
use crate::traffic::{Server, Subject};

/// How a pod must turn out.
struct Expected {
    /// The plugin's reason; `None` when it must not be asked at all.
    reason: Option<&'static str>,
    /// In words.
    decision: &'static str,
    /// Who serves its requests, in and out.
    server: Server,
}

const REDIRECTED: Expected =
    Expected { reason: Some(plugin_log::REDIRECTED), decision: "in the mesh", server: Server::Envoy };
const NOT_INJECTED: Expected =
    Expected { reason: Some("no-istio-proxy"), decision: "left alone", server: Server::Direct };
const EXCLUDED: Expected =
    Expected { reason: Some("namespace-excluded"), decision: "left alone", server: Server::Direct };
const NOT_ASKED: Expected = Expected { reason: None, decision: "uninstalled: not asked", server: Server::Direct };

const HEAD: [&str; 7] = ["pod", "decision", "reason", "ADD", "pod start", "inbound served by", "outbound served by"];

/// Tells the story on `cluster`.
pub struct Story<'a> {
    /// Where it takes place.
    pub cluster: &'a Cluster,
    /// Whether to stop.
    pub interrupt: &'a Interrupt,
    /// Where it is told.
    pub progress: &'a Progress,
}

impl Story<'_> {
    /// From the images to the uninstall. With `keep` it stays before the uninstall until it is interrupted.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn tell(&self, programs: &Programs, keep: bool) -> Result<(), Failure> {
        let node = &self.cluster.node;
        programs.load(self.cluster.work.path(), |archive, reference| {
            Ok(node.import(&self.cluster.cri, archive, reference)?)
        })?;
        self.progress.say("images: pause, application, Envoy, istio-cni");
        let lists_before = Snapshot::of(&node.cni_config())?;
        let plugins_before = Snapshot::of(&node.cni_bin())?;

        let agent = agent::start(self.cluster, self.interrupt)?;
        let changes = lists_before.differences(&Snapshot::of(&node.cni_config())?);
        self.progress.say(&format!("agent {} is ready; in the CNI directory {}", agent.name, changes.join(", ")));

        let (mut rows, mut pods) = (Vec::new(), Vec::new());
        let (web, web_log) = mesh_pods::injected(self.cluster, "shop", "web")?;
        let cast = [
            (web, Some(web_log), REDIRECTED),
            (mesh_pods::plain("shop", "plain"), None, NOT_INJECTED),
            (mesh_pods::plain(EXCLUDED_NAMESPACE, "dns"), None, EXCLUDED),
        ];
        for (pod, log, expected) in cast {
            let (running, row) = self.act(&pod, log, &expected)?;
            pods.push(running);
            rows.push(row);
        }
        self.check_api_requests()?;
        if keep {
            self.show(&rows);
            self.stay()?;
        }

        self.rotate_token(&agent)?;
        let (web, log) = mesh_pods::injected(self.cluster, "shop", "web-after-rotation")?;
        let (running, row) = self.act(&web, Some(log), &REDIRECTED)?;
        pods.push(running);
        rows.push(row);

        // One pod goes while the plugin is in the chain, the others after it has left.
        if let Some(first) = (!pods.is_empty()).then(|| pods.remove(0)) {
            self.cluster.kubelet().delete(&first)?;
            let teardowns = plugin_log::teardowns(&self.cluster.run_dir(), &first.sandbox)?;
            if !matches!(teardowns.as_slice(), [first, rest @ ..] if !first.is_empty() && rest.iter().any(String::is_empty))
            {
                let message =
                    format!("pod {}: the plugin was not told twice that it goes, but {teardowns:?}", first.name);
                return Failure::unexpected(message);
            }
            let message = format!("pod {} deleted, through the plugin, again without a namespace", first.name);
            self.progress.say(&message);
        }
        self.uninstall(&agent, &lists_before, &plugins_before)?;
        let (web, log) = mesh_pods::injected(self.cluster, "shop", "web-after-uninstall")?;
        let (running, row) = self.act(&web, Some(log), &NOT_ASKED)?;
        pods.push(running);
        rows.push(row);

        for pod in &pods {
            self.cluster.kubelet().delete(pod)?;
        }
        self.progress.say("all pods deleted");
        self.show(&rows);
        Ok(())
    }

    /// Starts a pod, sends it requests, and compares with what is expected. Gives its line of the table.
    fn act(
        &self,
        pod: &Pod,
        access_log: Option<PathBuf>,
        expected: &Expected,
    ) -> Result<(RunningPod, [String; 7]), Failure> {
        self.interrupt.check()?;
        let name = pod.full_name();
        self.cluster.api.set_pod(&pod.namespace, &pod.name, pod.object());
        let running = self.cluster.kubelet().start(pod)?;
        let outcome = plugin_log::outcome(&self.cluster.run_dir(), &name)?;
        compare_reason(&name, outcome.as_ref(), expected)?;
        let subject = Subject { cri: &self.cluster.cri, pod: &running, access_log };
        subject.wait_until_ready(self.interrupt)?;
        let client = self.cluster.node.outside()?;
        let inbound = subject.inbound(self.interrupt, &client)?;
        let outbound = subject.outbound(self.interrupt, &self.cluster.outside_servers())?;
        for (direction, server) in [("inbound", inbound), ("outbound", outbound)] {
            if server != expected.server {
                let wanted = expected.server;
                return Failure::unexpected(format!("{name}: the {direction} request was {server}, not {wanted}"));
            }
        }
        self.progress.say(&format!(
            "pod {name} runs: requests in and out are served by {server}",
            server = expected.server.in_words()
        ));
        let families = if running.addresses.len() > 1 { "IPv4, IPv6" } else { "IPv4" };
        let row = [
            name,
            expected.decision.to_owned(),
            expected.reason.unwrap_or("-").to_owned(),
            outcome.map_or("-".to_owned(), |outcome| milliseconds(outcome.elapsed_ms)),
            format!("{} ms", running.sandbox_time.as_millis()),
            format!("{inbound} ({families})"),
            format!("{outbound} ({families})"),
        ];
        Ok((running, row))
    }

    /// The API server must have been asked about pods of the mesh's namespaces only, and only with a valid token.
    fn check_api_requests(&self) -> Result<(), Failure> {
        let requests = self.cluster.api.requests();
        if let Some(request) = requests.iter().find(|request| !request.authorised) {
            return Failure::unexpected(format!("{} came without a valid token", request.path));
        }
        let excluded = format!("/namespaces/{EXCLUDED_NAMESPACE}/");
        if let Some(request) = requests.iter().find(|request| request.path.contains(&excluded)) {
            return Failure::unexpected(format!("{} was asked for, though its namespace is excluded", request.path));
        }
        // The plugin reads single pods, and only those that the agent has not heard of yet.
        let plugin = requests.iter().filter(|request| request.path.contains("/pods/")).count();
        self.progress.say(&format!(
            "API server was asked {} times by the agent, which follows the pods of its node, and {plugin} times by the plugin",
            requests.len() - plugin
        ));
        Ok(())
    }

    fn rotate_token(&self, agent: &RunningPod) -> Result<(), Failure> {
        self.cluster.rotate_token(SECOND_TOKEN)?;
        agent::wait_for_token(self.cluster, self.interrupt, agent, SECOND_TOKEN)?;
        self.progress.say("token rotated: the old one is refused, the kubeconfig holds the new one");
        Ok(())
    }

    fn uninstall(&self, agent: &RunningPod, lists: &Snapshot, plugins: &Snapshot) -> Result<(), Failure> {
        agent::stop(self.cluster, self.interrupt, agent)?;
        let node = &self.cluster.node;
        for (what, before, directory) in
            [("CNI directory", lists, node.cni_config()), ("plugin directory", plugins, node.cni_bin())]
        {
            let differences = before.differences(&Snapshot::of(&directory)?);
            if !differences.is_empty() {
                return Failure::unexpected(format!("after the uninstall, {what}: {}", differences.join(", ")));
            }
        }
        self.progress.say("uninstalled: CNI directory and plugin directory are byte for byte as before");
        Ok(())
    }

    fn show(&self, rows: &[[String; 7]]) {
        println!("\n{}\n", report::table(HEAD, rows));
    }

    fn stay(&self) -> Result<(), Failure> {
        let (node, interrupt) = (&self.cluster.node, self.interrupt);
        println!("The node stays until Ctrl-C. Its runtime: {}", node.socket().display());
        println!("Its CNI directory: {}", node.cni_config().display());
        while !interrupt.asked() {
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        interrupt.check()
    }
}

fn milliseconds(elapsed: f64) -> String {
    format!("{elapsed:.1} ms")
}

fn compare_reason(pod: &str, outcome: Option<&Outcome>, expected: &Expected) -> Result<(), Failure> {
    let reason = outcome.map(|outcome| outcome.reason.as_str());
    if reason == expected.reason {
        return Ok(());
    }
    let told = |reason: Option<&str>| reason.map_or("nothing".to_owned(), |reason| format!("{reason:?}"));
    Failure::unexpected(format!("{pod}: the plugin's log says {}, not {}", told(reason), told(expected.reason)))
}
