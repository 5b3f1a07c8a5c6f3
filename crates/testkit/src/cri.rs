//! A blocking client of the Container Runtime Interface over the runtime's Unix socket: what a kubelet does, by hand.
//!
//! One method for each call in use. It knows nothing about pods of the demo; `containerd` starts the runtime it talks
//! to. Each call has a deadline, so that a runtime that hangs becomes an error that names the call.

pub mod messages;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use messages::{
    ContainerConfig, ContainerId, ContainerStatus, ContainerStatusResponse, CreateContainerRequest, Empty,
    ExecSyncRequest, ExecSyncResponse, ImageSpec, ImageStatusRequest, ImageStatusResponse, PodSandboxConfig,
    PodSandboxStatusResponse, RunPodSandboxRequest, SandboxId, StatusRequest, StatusResponse, StopContainerRequest,
    VersionRequest, VersionResponse,
};

/// Longest wait for one call. Starting a pod is the slowest: it runs the whole chain of CNI plugins.
const DEADLINE: Duration = Duration::from_secs(60);

/// A call that did not work.
#[derive(Debug, Error)]
pub enum CriError {
    /// The client itself could not be set up.
    #[error("no client for the runtime's socket {socket}: {reason}")]
    Client {
        /// The socket.
        socket: PathBuf,
        /// Why.
        reason: String,
    },
    /// The runtime refused, failed or did not answer.
    #[error("{call}: {message}")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// What the runtime says.
        message: String,
    },
}

/// A connection to one runtime.
pub struct Cri {
    runtime: Runtime,
    channel: Channel,
}

impl Cri {
    /// A client for the runtime at `socket`. It connects at the first call.
    ///
    /// # Errors
    /// When no event loop can be made or the path is no address.
    pub fn new(socket: &Path) -> Result<Self, CriError> {
        let failed = |reason: String| CriError::Client { socket: socket.to_owned(), reason };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(e.to_string()))?;
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(|e| failed(e.to_string()))?;
        let channel = {
            let _inside = runtime.enter();
            endpoint.timeout(DEADLINE).connect_lazy()
        };
        Ok(Self { runtime, channel })
    }

    /// Name and version of the runtime.
    ///
    /// # Errors
    /// [`CriError::Call`], as every call below.
    pub fn version(&self) -> Result<VersionResponse, CriError> {
        self.call("Version", "/runtime.v1.RuntimeService/Version", VersionRequest::default())
    }

    /// Conditions of the runtime, and in detail what it has loaded.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn status(&self) -> Result<StatusResponse, CriError> {
        self.call("Status", "/runtime.v1.RuntimeService/Status", StatusRequest { verbose: true })
    }

    /// Whether the runtime has the image.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn has_image(&self, reference: &str) -> Result<bool, CriError> {
        let image = Some(ImageSpec { image: reference.to_owned() });
        let path = "/runtime.v1.ImageService/ImageStatus";
        let answer: ImageStatusResponse = self.call("ImageStatus", path, ImageStatusRequest { image })?;
        Ok(answer.image.is_some())
    }

    /// Starts a pod: its network namespace, the chain of CNI plugins, the pause container. Gives the sandbox id.
    ///
    /// # Errors
    /// [`CriError::Call`], with the plugin's message when a plugin failed.
    pub fn run_pod(&self, config: &PodSandboxConfig) -> Result<String, CriError> {
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let answer: SandboxId = self.call("RunPodSandbox", "/runtime.v1.RuntimeService/RunPodSandbox", request)?;
        Ok(answer.pod_sandbox_id)
    }

    /// Addresses of a pod, the main one first.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn pod_addresses(&self, pod: &str) -> Result<Vec<String>, CriError> {
        let request = SandboxId { pod_sandbox_id: pod.to_owned() };
        let path = "/runtime.v1.RuntimeService/PodSandboxStatus";
        let answer: PodSandboxStatusResponse = self.call("PodSandboxStatus", path, request)?;
        let network = answer.status.and_then(|status| status.network).unwrap_or_default();
        let further = network.additional_ips.into_iter().map(|address| address.ip);
        Ok(std::iter::once(network.ip).chain(further).filter(|ip| !ip.is_empty()).collect())
    }

    /// Stops a pod: its containers, then the chain of CNI plugins backwards.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn stop_pod(&self, pod: &str) -> Result<(), CriError> {
        let request = SandboxId { pod_sandbox_id: pod.to_owned() };
        self.call::<_, Empty>("StopPodSandbox", "/runtime.v1.RuntimeService/StopPodSandbox", request).map(drop)
    }

    /// Removes a stopped pod.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn remove_pod(&self, pod: &str) -> Result<(), CriError> {
        let request = SandboxId { pod_sandbox_id: pod.to_owned() };
        self.call::<_, Empty>("RemovePodSandbox", "/runtime.v1.RuntimeService/RemovePodSandbox", request).map(drop)
    }

    /// Creates a container in a pod and starts it. Gives the container id.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn run_container(
        &self,
        pod: &str,
        pod_config: &PodSandboxConfig,
        config: ContainerConfig,
    ) -> Result<String, CriError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(pod_config.clone()),
        };
        let created: ContainerId =
            self.call("CreateContainer", "/runtime.v1.RuntimeService/CreateContainer", request)?;
        let path = "/runtime.v1.RuntimeService/StartContainer";
        self.call::<_, Empty>("StartContainer", path, created.clone())?;
        Ok(created.container_id)
    }

    /// Sends SIGTERM, waits `grace` (whole seconds), then SIGKILL.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn stop_container(&self, container: &str, grace: Duration) -> Result<(), CriError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: container.to_owned(), timeout };
        self.call::<_, Empty>("StopContainer", "/runtime.v1.RuntimeService/StopContainer", request).map(drop)
    }

    /// State of a container.
    ///
    /// # Errors
    /// [`CriError::Call`].
    pub fn container_status(&self, container: &str) -> Result<ContainerStatus, CriError> {
        let request = ContainerId { container_id: container.to_owned() };
        let path = "/runtime.v1.RuntimeService/ContainerStatus";
        let answer: ContainerStatusResponse = self.call("ContainerStatus", path, request)?;
        Ok(answer.status.unwrap_or_default())
    }

    /// Runs a command inside a container, waits for it, and gives its standard output.
    ///
    /// # Errors
    /// [`CriError::Call`], also when the command ends with another code than 0.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<String, CriError> {
        let request = ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout: 10,
        };
        let path = "/runtime.v1.RuntimeService/ExecSync";
        let answer: ExecSyncResponse = self.call("ExecSync", path, request)?;
        if answer.exit_code == 0 {
            return Ok(String::from_utf8_lossy(&answer.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&answer.stderr);
        let message = format!("{}: exit code {}: {}", command.join(" "), answer.exit_code, said.trim());
        Err(CriError::Call { call: "ExecSync", message })
    }

    fn call<Q, A>(&self, call: &'static str, path: &'static str, request: Q) -> Result<A, CriError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let failed = |message: String| CriError::Call { call, message };
        let mut client = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            client.ready().await.map_err(|e| failed(with_causes(&e)))?;
            let path = PathAndQuery::from_static(path);
            let answer = client.unary(tonic::Request::new(request), path, ProstCodec::<Q, A>::default()).await;
            answer.map(tonic::Response::into_inner).map_err(|status| failed(status.message().to_owned()))
        })
    }
}

/// An error with what caused it: tonic's own text is only "transport error".
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
