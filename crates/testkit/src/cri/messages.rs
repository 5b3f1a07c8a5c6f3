//! The messages of the Kubernetes Container Runtime Interface, version 1, that the demo and the tests speak.
//!
//! Only the calls and fields in use are here, with the field numbers of the public protocol; a runtime skips what is
//! absent, as protobuf promises. Written by hand so that a build needs neither `protoc` nor its include files.

use std::collections::HashMap;

/// Identity of a pod at the runtime.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxMetadata {
    /// Pod name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Pod UID.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Pod namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// How often this pod was tried before.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// What goes into the pod's `resolv.conf`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DnsConfig {
    /// Name servers.
    #[prost(string, repeated, tag = "1")]
    pub servers: Vec<String>,
    /// Search domains.
    #[prost(string, repeated, tag = "2")]
    pub searches: Vec<String>,
    /// Resolver options.
    #[prost(string, repeated, tag = "3")]
    pub options: Vec<String>,
}

/// A pod as the kubelet describes it to the runtime.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxConfig {
    /// Identity.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodSandboxMetadata>,
    /// Host name inside the pod.
    #[prost(string, tag = "2")]
    pub hostname: String,
    /// Directory of the containers' logs.
    #[prost(string, tag = "3")]
    pub log_directory: String,
    /// Name resolution; without it the runtime copies the node's file.
    #[prost(message, optional, tag = "4")]
    pub dns_config: Option<DnsConfig>,
    /// Labels of the pod.
    #[prost(map = "string, string", tag = "6")]
    pub labels: HashMap<String, String>,
    /// Annotations of the pod.
    #[prost(map = "string, string", tag = "7")]
    pub annotations: HashMap<String, String>,
    /// Linux details.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
}

/// Linux details of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxPodSandboxConfig {
    /// Cgroup below which the pod's containers live.
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
    /// Namespaces.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<LinuxSandboxSecurityContext>,
}

/// Namespaces of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxSandboxSecurityContext {
    /// Which namespaces are shared.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
}

/// Whether a namespace belongs to the pod (0), the container (1) or the node (2).
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct NamespaceOption {
    /// Network namespace.
    #[prost(int32, tag = "1")]
    pub network: i32,
    /// PID namespace.
    #[prost(int32, tag = "2")]
    pub pid: i32,
    /// IPC namespace.
    #[prost(int32, tag = "3")]
    pub ipc: i32,
}

impl NamespaceOption {
    /// What Kubernetes uses: network and IPC for the pod, processes for each container.
    pub const USUAL: Self = Self { network: 0, pid: 1, ipc: 0 };
}

/// A number that may be absent.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Int64Value {
    /// The number.
    #[prost(int64, tag = "1")]
    pub value: i64,
}

/// `RunPodSandbox`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunPodSandboxRequest {
    /// The pod.
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodSandboxConfig>,
    /// Which runtime; empty is the default.
    #[prost(string, tag = "2")]
    pub runtime_handler: String,
}

/// A sandbox by its id: the answer to `RunPodSandbox`, the question of stop and remove.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SandboxId {
    /// The id.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// `PodSandboxStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxStatusResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<PodSandboxStatus>,
}

/// Status of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxStatus {
    /// The id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Addresses.
    #[prost(message, optional, tag = "5")]
    pub network: Option<PodSandboxNetworkStatus>,
}

/// Addresses of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxNetworkStatus {
    /// First address.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// Further addresses.
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<PodIp>,
}

/// One address.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodIp {
    /// The address.
    #[prost(string, tag = "1")]
    pub ip: String,
}

/// `CreateContainer`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateContainerRequest {
    /// In which sandbox.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    /// The pod, as given to `RunPodSandbox`.
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<PodSandboxConfig>,
}

/// A container by its id: the answer to `CreateContainer`, the question of start, remove and status.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerId {
    /// The id.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerConfig {
    /// Identity within the pod.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    /// Image.
    #[prost(message, optional, tag = "2")]
    pub image: Option<ImageSpec>,
    /// Replaces the image's entry point.
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    /// Arguments.
    #[prost(string, repeated, tag = "4")]
    pub args: Vec<String>,
    /// Environment.
    #[prost(message, repeated, tag = "6")]
    pub envs: Vec<KeyValue>,
    /// Volumes.
    #[prost(message, repeated, tag = "7")]
    pub mounts: Vec<Mount>,
    /// Log file, relative to the pod's log directory.
    #[prost(string, tag = "11")]
    pub log_path: String,
    /// Linux details.
    #[prost(message, optional, tag = "15")]
    pub linux: Option<LinuxContainerConfig>,
}

/// Identity of a container within its pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerMetadata {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// How often it was tried before.
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}

/// An image by its reference.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageSpec {
    /// The reference.
    #[prost(string, tag = "1")]
    pub image: String,
}

/// An environment variable.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    /// Name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A bind mount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// Where the container sees it.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// What the node has there.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Read-only.
    #[prost(bool, tag = "3")]
    pub readonly: bool,
}

/// Linux details of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxContainerConfig {
    /// Who it runs as and what it may do.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<LinuxContainerSecurityContext>,
}

/// Who a container runs as and what it may do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxContainerSecurityContext {
    /// Capabilities.
    #[prost(message, optional, tag = "1")]
    pub capabilities: Option<Capability>,
    /// Which namespaces are shared.
    #[prost(message, optional, tag = "3")]
    pub namespace_options: Option<NamespaceOption>,
    /// User id.
    #[prost(message, optional, tag = "5")]
    pub run_as_user: Option<Int64Value>,
    /// Group id.
    #[prost(message, optional, tag = "12")]
    pub run_as_group: Option<Int64Value>,
    /// Root file system is read-only.
    #[prost(bool, tag = "7")]
    pub readonly_rootfs: bool,
    /// No privileges gained by exec.
    #[prost(bool, tag = "11")]
    pub no_new_privs: bool,
}

/// Capabilities, without the prefix `CAP_`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Capability {
    /// Added after the drop.
    #[prost(string, repeated, tag = "1")]
    pub add_capabilities: Vec<String>,
    /// Dropped; `ALL` drops every one.
    #[prost(string, repeated, tag = "2")]
    pub drop_capabilities: Vec<String>,
}

/// `StopContainer`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StopContainerRequest {
    /// Which container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Seconds between SIGTERM and SIGKILL.
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}

/// `ContainerStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatusResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
}

/// Status of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatus {
    /// The id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// 0 created, 1 running, 2 exited, 3 unknown.
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// Exit code, once exited.
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    /// Short reason.
    #[prost(string, tag = "10")]
    pub reason: String,
    /// Long reason.
    #[prost(string, tag = "11")]
    pub message: String,
}

/// `ExecSync`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecSyncRequest {
    /// Which container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Command and arguments.
    #[prost(string, repeated, tag = "2")]
    pub cmd: Vec<String>,
    /// Seconds until it is given up.
    #[prost(int64, tag = "3")]
    pub timeout: i64,
}

/// Outcome of `ExecSync`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecSyncResponse {
    /// What it wrote to standard output.
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    /// Its exit code.
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}

/// `Status` of the runtime.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct StatusRequest {
    /// With everything the runtime knows about itself.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// Answer to `Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    /// The conditions.
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
    /// JSON texts by topic, when verbose.
    #[prost(map = "string, string", tag = "2")]
    pub info: HashMap<String, String>,
}

/// Conditions of the runtime.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RuntimeStatus {
    /// `RuntimeReady` and `NetworkReady`.
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<RuntimeCondition>,
}

/// One condition.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RuntimeCondition {
    /// Name.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Whether it holds.
    #[prost(bool, tag = "2")]
    pub status: bool,
    /// Short reason.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// Long reason.
    #[prost(string, tag = "4")]
    pub message: String,
}

/// `Version`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VersionRequest {
    /// Version of the caller.
    #[prost(string, tag = "1")]
    pub version: String,
}

/// Answer to `Version`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VersionResponse {
    /// Name of the runtime.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
}

/// `ImageStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageStatusRequest {
    /// Which image.
    #[prost(message, optional, tag = "1")]
    pub image: Option<ImageSpec>,
}

/// Answer to `ImageStatus`; without an image the runtime does not have it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageStatusResponse {
    /// The image.
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
}

/// An image the runtime has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Image {
    /// The id.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// An answer without content.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}
