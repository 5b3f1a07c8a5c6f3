//! What a call is about, and what becomes of its pod. ADD acts on the verdict, CHECK looks whether it still holds.
//!
//! What can be decided from names comes first. Only then are credentials and the API server needed, so that nothing
//! that depends on the agent can hold up the agent itself, or pods we would skip anyway.

use std::path::{Path, PathBuf};

use agent_api::{PluginConfig, paths};
use cni::error::code;
use cni::{Error, PodArgs, Request};
use mesh::{Decision, SkipReason, decide, decide_by_name};
use sys::netns::Netns;

use crate::codes;
use crate::config::Environment;
use crate::log::{Level, Logger};
use crate::pod_get::{Budget, read_pod};

/// A call about one pod.
pub(crate) struct Call<'a> {
    /// Our part of the configuration.
    pub(crate) config: PluginConfig,
    /// Whose sandbox it is.
    pub(crate) pod: PodArgs,
    netns: &'a str,
    run_dir: PathBuf,
}

impl<'a> Call<'a> {
    /// Reads configuration and arguments, and lets `log` know where to write.
    ///
    /// # Errors
    /// Names what is invalid.
    pub(crate) fn read(request: &'a Request, log: &mut Logger) -> Result<Self, Error> {
        let config: PluginConfig = request.conf.decode()?;
        let run_dir = run_dir(&config);
        log.configure(&config.plugin_log_level, &run_dir);
        if log.wants(Level::Debug) {
            let keys = serde_json::Value::Object(request.conf.keys().clone());
            log.write(Level::Debug, &format!("configuration {keys}"));
            log.write(Level::Debug, &format!("previous result {}", request.conf.prev_result().unwrap_or("none")));
        }
        let pod =
            PodArgs::parse(&request.args).map_err(|error| Error::new(code::INVALID_ENVIRONMENT, error.to_string()))?;
        log.label("pod", format!("{}/{}", pod.namespace, pod.name));
        Ok(Self { config, pod, netns: &request.netns, run_dir })
    }

    /// Decides about the pod.
    ///
    /// # Errors
    /// It may be one of the mesh, and nobody could say what it is; or what it asks for cannot be done.
    pub(crate) fn judge(
        &self,
        environment: &Environment,
        budget: &Budget,
        log: &mut Logger,
    ) -> Result<Decision, Error> {
        let (config, PodArgs { name, namespace, .. }) = (&self.config, &self.pod);
        let by_name = decide_by_name(name, namespace, &config.pod_namespace, &config.exclude_namespaces);
        // The agent is let through whatever else is odd about the call: without it the node cannot heal.
        if by_name != Some(SkipReason::SelfAgentPod) && !environment.netns_override {
            refuse_own_netns(self.netns)?;
        }
        if let Some(reason) = by_name {
            return Ok(Decision::Skip(reason));
        }

        let kubeconfig = paths::kubeconfig(&self.run_dir);
        let pod = read_pod(&kubeconfig, namespace, name, budget, log).map_err(|failure| failure.into_cni())?;
        if config.ambient_enabled && !pod.never_ambient() {
            let message = format!(
                "pod {namespace}/{name} has no sidecar, and whether it belongs to ambient mode cannot be decided: \
                 ambient mode is enabled in the CNI configuration, but this version of istio-cni does not have it; \
                 install with ambient mode disabled"
            );
            return Err(Error::new(codes::UNSUPPORTED, message));
        }
        decide(&pod).map_err(|invalid| Error::new(codes::INVALID_ANNOTATION, invalid.about(namespace, name)))
    }
}

/// Directory with the kubeconfig and the log.
fn run_dir(config: &PluginConfig) -> PathBuf {
    let stated = config.cni_agent_run_dir.as_str();
    PathBuf::from(if stated.is_empty() { paths::DEFAULT_RUN_DIR } else { stated })
}

/// Refuses a sandbox that shares our own, the host's, network namespace. One that cannot be opened is not judged here:
/// most pods need nothing from it.
fn refuse_own_netns(path: &str) -> Result<(), Error> {
    match (Netns::open(Path::new(path)), Netns::current()) {
        (Ok(netns), Ok(own)) if netns.id() == own.id() => Err(own_netns(path)),
        _ => Ok(()),
    }
}

/// The refusal to work in our own network namespace.
pub(crate) fn own_netns(path: &str) -> Error {
    let message = format!(
        "CNI_NETNS {path} is the network namespace of the plugin itself, that is the host's: rules there would capture \
         the node's traffic, so nothing was done; the runtime must name the sandbox's namespace"
    );
    Error::new(code::INVALID_NETNS, message)
}
