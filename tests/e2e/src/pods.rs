//! Pods: one description, told to the API server as Kubernetes shows it and to the runtime as a kubelet does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::cri::Cri;
use testkit::cri::messages::{
    Capability, ContainerConfig, ContainerMetadata, DnsConfig, ImageSpec, Int64Value, KeyValue, LinuxContainerConfig,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata,
};

use crate::failure::Failure;

/// Name of the demo's node.
pub const NODE: &str = "demo-node";

/// A directory of the node inside a container.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Where it is on the node.
    pub node: PathBuf,
    /// Where the container sees it.
    pub container: String,
    /// The container may not write.
    pub readonly: bool,
}

/// A container of a pod.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// Name.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Command with arguments, as the runtime starts it.
    pub command: Vec<String>,
    /// Arguments that the API server shows, when they are not those of `command`.
    pub shown_arguments: Option<Vec<String>>,
    /// Environment.
    pub environment: Vec<(String, String)>,
    /// User and group id.
    pub user: u32,
    /// The only capabilities it keeps, without the prefix `CAP_`.
    pub capabilities: Vec<String>,
    /// Volumes.
    pub volumes: Vec<Volume>,
}

/// A pod.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Containers, in the order they are started.
    pub containers: Vec<Container>,
}

/// Where pods run and how.
pub struct Kubelet<'a> {
    /// The runtime.
    pub cri: &'a Cri,
    /// Control group of all pods.
    pub cgroup: &'a str,
    /// Directory below which each pod logs to a directory of its own.
    pub logs: PathBuf,
}

/// A pod that was started.
#[derive(Debug, Clone)]
pub struct RunningPod {
    /// `namespace/name`.
    pub name: String,
    /// Sandbox id.
    pub sandbox: String,
    /// Addresses, the main one first.
    pub addresses: Vec<String>,
    /// How long the runtime needed for the sandbox, with all its CNI plugins.
    pub sandbox_time: Duration,
    /// Container ids by name.
    pub containers: BTreeMap<String, String>,
    /// Directory of its logs.
    pub logs: PathBuf,
}

impl Pod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The object the API server shows.
    pub fn object(&self) -> Value {
        let containers: Vec<Value> = self.containers.iter().map(Container::object).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid(),
                "labels": self.labels,
                "annotations": self.annotations,
            },
            "spec": {"nodeName": NODE, "containers": containers},
        })
    }

    fn uid(&self) -> String {
        format!("uid-of-{}-{}", self.namespace, self.name)
    }
}

impl Container {
    fn object(&self) -> Value {
        let env: Vec<Value> =
            self.environment.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let arguments = self.shown_arguments.as_ref().unwrap_or(&self.command);
        json!({
            "name": self.name,
            "image": self.image,
            "args": arguments,
            "env": env,
            "securityContext": {"runAsUser": self.user, "runAsGroup": self.user},
        })
    }

    fn config(&self) -> ContainerConfig {
        let id = Some(Int64Value { value: self.user.into() });
        let mount = |volume: &Volume| Mount {
            container_path: volume.container.clone(),
            host_path: volume.node.display().to_string(),
            readonly: volume.readonly,
        };
        let variable = |(key, value): &(String, String)| KeyValue { key: key.clone(), value: value.clone() };
        let drop_all = vec!["ALL".to_owned()];
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: self.name.clone(), attempt: 0 }),
            image: Some(ImageSpec { image: self.image.clone() }),
            command: self.command.clone(),
            args: Vec::new(),
            envs: self.environment.iter().map(variable).collect(),
            mounts: self.volumes.iter().map(mount).collect(),
            log_path: format!("{}.log", self.name),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    capabilities: Some(Capability {
                        add_capabilities: self.capabilities.clone(),
                        drop_capabilities: drop_all,
                    }),
                    namespace_options: Some(NamespaceOption::USUAL),
                    run_as_user: id,
                    run_as_group: id,
                    readonly_rootfs: true,
                    no_new_privs: true,
                }),
            }),
        }
    }
}

impl Kubelet<'_> {
    /// Starts a pod with its containers.
    ///
    /// # Errors
    /// When the runtime refuses; the message holds what a CNI plugin said.
    pub fn start(&self, pod: &Pod) -> Result<RunningPod, Failure> {
        let name = pod.full_name();
        let logs = self.logs.join(name.replace('/', "_"));
        std::fs::create_dir_all(&logs).map_err(Failure::system(format!("create {}", logs.display())))?;
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.name.clone(),
                uid: pod.uid(),
                namespace: pod.namespace.clone(),
                attempt: 0,
            }),
            hostname: pod.name.clone(),
            log_directory: logs.display().to_string(),
            // Without it the runtime copies the node's file, which may be a link into a /run that is not ours.
            dns_config: Some(DnsConfig { servers: vec!["10.96.0.10".to_owned()], ..DnsConfig::default() }),
            labels: pod.labels.clone().into_iter().collect(),
            annotations: pod.annotations.clone().into_iter().collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", self.cgroup),
                security_context: Some(LinuxSandboxSecurityContext { namespace_options: Some(NamespaceOption::USUAL) }),
            }),
        };
        let before = Instant::now();
        let sandbox = self.cri.run_pod(&config)?;
        let sandbox_time = before.elapsed();
        let addresses = self.cri.pod_addresses(&sandbox)?;
        let mut containers = BTreeMap::new();
        for container in &pod.containers {
            let id = self.cri.run_container(&sandbox, &config, container.config())?;
            containers.insert(container.name.clone(), id);
        }
        Ok(RunningPod { name, sandbox, addresses, sandbox_time, containers, logs })
    }

    /// Stops a pod and removes it.
    ///
    /// # Errors
    /// When the runtime refuses.
    pub fn delete(&self, pod: &RunningPod) -> Result<(), Failure> {
        self.cri.stop_pod(&pod.sandbox)?;
        // kubelet stops a sandbox until it sees it stopped. The runtime tears the network down each time, from the second
        // time on without a namespace.
        self.cri.stop_pod(&pod.sandbox)?;
        Ok(self.cri.remove_pod(&pod.sandbox)?)
    }
}

impl RunningPod {
    /// Id of a container.
    ///
    /// # Errors
    /// When the pod has no such container.
    pub fn container(&self, name: &str) -> Result<&str, Failure> {
        match self.containers.get(name) {
            Some(id) => Ok(id),
            None => Failure::unexpected(format!("pod {} has no container {name}", self.name)),
        }
    }
}
