//! A node: containerd of its own, in mount, PID and network namespaces of its own.
//!
//! Nothing of the machine's containerd, CNI files, network or `/run` is touched: where a tool insists on a fixed path,
//! the namespace has memory there. The namespaces end with their first process, and that ends with ours, however ours
//! ends. Two addresses are prepared: the API server's on the node, and a machine outside the cluster. Needs root.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sys::netns::{Netns, NetnsError};
use thiserror::Error;

use crate::cri::{Cri, CriError};
use crate::work_dir::{Process, WorkDir};

/// Address of the API server inside the node, as `KUBERNETES_SERVICE_HOST` would say it.
pub const API_ADDRESS: &str = "10.96.0.1";
/// Addresses of the machine outside the cluster.
pub const OUTSIDE_ADDRESSES: [&str; 2] = ["198.51.100.10", "2001:db8:51::10"];
/// Reference of the image that keeps a pod's namespaces open.
pub const PAUSE_IMAGE: &str = "local.test/pause:1";

/// Containerd's namespace for what the kubelet's interface sees.
const IMAGE_NAMESPACE: &str = "k8s.io";
/// Where distributions put the basic CNI plugins.
const PLUGIN_DIRECTORIES: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
const PLUGINS: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
/// What `node.sh` puts memory over.
const REPLACED: [&str; 3] = ["/run", "/var/run", "/var/lib"];
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(30);

/// A node that could not be started or used.
#[derive(Debug, Error)]
pub enum ContainerdError {
    /// A file of the node could not be prepared.
    #[error("prepare {path}: {source}")]
    Prepare {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A basic CNI plugin is not installed.
    #[error("CNI plugin {0} is in none of {PLUGIN_DIRECTORIES:?}: install containernetworking-plugins")]
    NoPlugin(&'static str),
    /// The node could not see its own files.
    #[error("{path} is below {hidden}, which the node replaces: set TMPDIR to a directory elsewhere")]
    Hidden {
        /// The node's directory.
        path: PathBuf,
        /// What lies over it.
        hidden: &'static str,
    },
    /// A command could not be started or failed.
    #[error("{command}: {reason}")]
    Command {
        /// The command.
        command: String,
        /// What it said.
        reason: String,
    },
    /// Containerd ended, or does not answer.
    #[error("containerd {what}; its log {log} ends with:\n{tail}")]
    NotRunning {
        /// What was seen.
        what: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// An image did not appear at the runtime.
    #[error("containerd imported image {0} and does not show it")]
    NoImage(String),
    /// The runtime refused a call.
    #[error(transparent)]
    Cri(#[from] CriError),
    /// A namespace of the node could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

/// Ends the node at once, from any thread.
#[derive(Clone)]
pub struct Killer {
    /// Waits in the machine's namespaces for the node's first process.
    keeper: Arc<Mutex<Child>>,
}

/// A running node. It ends when dropped.
pub struct Containerd {
    killer: Killer,
    keeper: u32,
    directory: PathBuf,
    log: PathBuf,
}

impl Containerd {
    /// Prepares the node's directories below `work` and starts containerd.
    ///
    /// # Errors
    /// Says what is missing; the node is gone then.
    pub fn start(work: &WorkDir) -> Result<Self, ContainerdError> {
        let directory = work.path().to_owned();
        prepare(&directory)?;
        let log = work.logs().join("containerd.log");
        let child = spawn(&directory, &log)?;
        let keeper = child.id();
        let node = Self { killer: Killer::of(child), keeper, directory, log };
        work.record(keeper).map_err(|source| ContainerdError::Prepare { path: work.path().to_owned(), source })?;
        node.wait_until_it_answers()?;
        Ok(node)
    }

    /// Containerd's socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.directory)
    }

    /// The node's CNI configuration directory.
    pub fn cni_config(&self) -> PathBuf {
        cni_config(&self.directory)
    }

    /// The node's directory of CNI plugins.
    pub fn cni_bin(&self) -> PathBuf {
        cni_bin(&self.directory)
    }

    /// The node's network namespace.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn network(&self) -> Result<Netns, ContainerdError> {
        Ok(Netns::open(&PathBuf::from(format!("/proc/{}/ns/net", self.keeper)))?)
    }

    /// The network namespace of the machine outside the cluster.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn outside(&self) -> Result<Netns, ContainerdError> {
        Ok(Netns::open(&PathBuf::from(format!("/proc/{}/root/run/netns/outside", self.keeper)))?)
    }

    /// Loads an image from its archive and waits until pods can use it.
    ///
    /// # Errors
    /// When `ctr` fails or the runtime does not show the image.
    pub fn import(&self, cri: &Cri, archive: &Path, reference: &str) -> Result<(), ContainerdError> {
        import(Path::new("ctr"), &self.socket(), cri, archive, reference)
    }

    /// A handle that ends the node from another thread.
    pub fn killer(&self) -> Killer {
        self.killer.clone()
    }

    fn wait_until_it_answers(&self) -> Result<(), ContainerdError> {
        let not_running = |what: String| {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let tail = lines.get(lines.len().saturating_sub(10)..).unwrap_or_default().join("\n");
            ContainerdError::NotRunning { what, log: self.log.clone(), tail }
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.socket().exists() {
                let Err(error) = Cri::new(&self.socket())?.version() else { return Ok(()) };
                if Instant::now() > deadline {
                    return Err(not_running(format!("does not answer: {error}")));
                }
            }
            if let Some(status) = self.killer.ended() {
                return Err(not_running(format!("ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(not_running("made no socket".to_owned()));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.killer.kill();
    }
}

impl Killer {
    /// For a node whose first process is the child of `keeper`.
    pub fn of(keeper: Child) -> Self {
        Self { keeper: Arc::new(Mutex::new(keeper)) }
    }

    /// Ends the node and all that runs in it, and waits for it.
    pub fn kill(&self) {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        // The first process before the one that waits for it: otherwise nobody of ours collects it.
        if keeper.try_wait().is_ok_and(|status| status.is_none()) {
            if let Some(init) = Process::first_child_of(keeper.id()) {
                init.end();
                let deadline = Instant::now() + PATIENCE;
                while keeper.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < deadline {
                    std::thread::sleep(PAUSE);
                }
            }
            // Usually it has ended by now.
            drop(keeper.kill());
        }
        drop(keeper.wait());
    }

    /// How the node ended, when it has ended.
    pub fn ended(&self) -> Option<String> {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        keeper.try_wait().ok().flatten().map(|status| status.to_string())
    }
}

/// Loads an image into the containerd at `socket` by its client `ctr`, and waits until pods can use it.
///
/// # Errors
/// As [`Containerd::import`].
pub fn import(ctr: &Path, socket: &Path, cri: &Cri, archive: &Path, reference: &str) -> Result<(), ContainerdError> {
    let (socket, archive) = (socket.display().to_string(), archive.display().to_string());
    let call = |arguments: &[&str]| {
        let mut command = Command::new(ctr);
        command.args(["--address", &socket, "--namespace", IMAGE_NAMESPACE]).args(arguments);
        run(command, &format!("ctr {}", arguments.join(" ")))
    };
    call(&["images", "import", &archive])?;
    // From 1.7 on the kubelet's interface only sees images with this label when they came another way.
    call(&["images", "label", reference, "io.cri-containerd.image=managed"])?;
    let deadline = Instant::now() + PATIENCE;
    while !cri.has_image(reference)? {
        if Instant::now() > deadline {
            return Err(ContainerdError::NoImage(reference.to_owned()));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("containerd.sock")
}

fn cni_config(directory: &Path) -> PathBuf {
    directory.join("node/etc/cni/net.d")
}

fn cni_bin(directory: &Path) -> PathBuf {
    directory.join("node/opt/cni/bin")
}

/// Copies the basic CNI plugins of this machine to `bin`.
///
/// # Errors
/// Names the plugin that is not installed.
pub fn install_plugins(bin: &Path) -> Result<(), ContainerdError> {
    for plugin in PLUGINS {
        let mut candidates = PLUGIN_DIRECTORIES.iter().map(|dir| Path::new(dir).join(plugin));
        let installed = candidates.find(|path| path.exists()).ok_or(ContainerdError::NoPlugin(plugin))?;
        let copy = bin.join(plugin);
        fs::copy(installed, &copy).map_err(failed(&copy))?;
    }
    Ok(())
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ContainerdError + use<> {
    let path = path.to_owned();
    move |source| ContainerdError::Prepare { path, source }
}

fn prepare(directory: &Path) -> Result<(), ContainerdError> {
    if let Some(hidden) = REPLACED.into_iter().find(|hidden| directory.starts_with(hidden)) {
        return Err(ContainerdError::Hidden { path: directory.to_owned(), hidden });
    }
    let bin = cni_bin(directory);
    for wanted in [&directory.join("containerd"), &cni_config(directory), &bin] {
        fs::create_dir_all(wanted).map_err(failed(wanted))?;
    }
    install_plugins(&bin)?;
    let scripts = [("node.sh", NODE_SCRIPT.to_owned()), ("network.sh", NETWORK_SCRIPT.to_owned())];
    for (name, text) in scripts.into_iter().chain([("containerd.toml", config(directory))]) {
        let path = directory.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    Ok(())
}

const NODE_SCRIPT: &str = include_str!("containerd/node.sh");
/// Shell text that gives a fresh node its network, and the machine outside the cluster. It is sourced.
pub const NETWORK_SCRIPT: &str = include_str!("containerd/network.sh");

fn spawn(directory: &Path, log: &Path) -> Result<Child, ContainerdError> {
    let log_failed = |source| ContainerdError::Prepare { path: log.to_owned(), source };
    let log_file = File::create(log).map_err(log_failed)?;
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"])
        // Private first: a machine whose mounts are shared must not see ours.
        .args(["--propagation", "private", "--mount-proc", "sh"])
        .args([directory.join("node.sh"), directory.to_owned()])
        .env_clear()
        .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
        // Ctrl-C at the terminal is for us: we end the node ourselves, after looking at it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log_file.try_clone().map_err(log_failed)?)
        .stderr(log_file)
        .spawn()
        .map_err(|source| ContainerdError::Command { command: "setpriv".to_owned(), reason: source.to_string() })
}

fn run(mut command: Command, name: &str) -> Result<Output, ContainerdError> {
    let failed = |reason: String| ContainerdError::Command { command: name.to_owned(), reason };
    let output = command.output().map_err(|source| failed(source.to_string()))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// Containerd's configuration. Version 2 of the format is read by every release from 1.3 to 2.x.
fn config(directory: &Path) -> String {
    let at = |path: &str| format!("{:?}", directory.join(path).display().to_string());
    format!(
        r#"version = 2
root = {root}
state = {state}
[grpc]
  address = {socket}
[debug]
  level = "info"
[plugins."io.containerd.internal.v1.opt"]
  path = {opt}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  # The profile would be loaded into the machine's kernel.
  disable_apparmor = true
  # Lowering it needs a capability that containers and some virtual machines lack.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {bin}
    conf_dir = {conf}
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#,
        root = at("containerd/root"),
        state = at("containerd/state"),
        socket = at("containerd.sock"),
        opt = at("containerd/opt"),
        bin = at("node/opt/cni/bin"),
        conf = at("node/etc/cni/net.d"),
    )
}
