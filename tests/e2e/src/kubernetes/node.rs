//! The node: every component of Kubernetes in namespaces of its own, found from outside by files and namespaces.
//!
//! It prepares the files, starts `cluster/node.sh`, and waits until the node is Ready. All of it ends with this value.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sys::netns::Netns;
use testkit::containerd::{self, Killer, NETWORK_SCRIPT};
use testkit::cri::Cri;
use testkit::work_dir::{Process, WorkDir};

use crate::cluster::{serve_outside, write_lists};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::kubernetes::kubectl::Kubectl;
use crate::kubernetes::pki;

/// Longest wait for the node: on a busy machine the API server alone takes half a minute.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
/// After so many ends of components, none of them asked for, the node will not come up.
const TOO_MANY_ENDS: usize = 8;
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cluster");
/// What the node keeps for itself, below its directory and, inside, below the root.
const PLACES: [&str; 3] = ["opt/cni/bin", "run", "var/lib"];

/// A running node. It ends when dropped.
pub struct Node {
    killer: Killer,
    keeper: u32,
    programs: PathBuf,
    directory: PathBuf,
    logs: PathBuf,
    /// Whether pods have IPv6.
    pub ipv6: bool,
    /// The runtime's socket.
    pub cri: Cri,
    /// An administrator's `kubectl`.
    pub kubectl: Kubectl,
}

impl Node {
    /// Starts the components, which `programs` holds, with all their files in `work`. `started` is called with what ends
    /// them as soon as there is something to end.
    ///
    /// # Errors
    /// Says what could not be prepared.
    pub fn start(work: &WorkDir, programs: &Path, started: impl FnOnce(Killer)) -> Result<Self, Failure> {
        let directory = work.path().join("node");
        let ipv6 = Path::new("/proc/sys/net/ipv6").is_dir();
        prepare(&directory, ipv6)?;
        let script = work.path().join("network.sh");
        fs::write(&script, NETWORK_SCRIPT).map_err(Failure::system(format!("write {}", script.display())))?;
        let child = spawn(work, programs).map_err(Failure::system("start the node"))?;
        let keeper = child.id();
        let killer = Killer::of(child);
        started(killer.clone());
        work.record(keeper).map_err(Failure::system("record the node's process"))?;
        let cri = Cri::new(&socket(&directory))?;
        let kubectl = Kubectl {
            program: programs.join("kubectl"),
            kubeconfig: directory.join("etc/kubernetes/admin.kubeconfig"),
            home: directory.clone(),
            network: PathBuf::from(format!("/proc/{keeper}/ns/net")),
        };
        Ok(Self { killer, keeper, programs: programs.to_owned(), directory, logs: work.logs(), ipv6, cri, kubectl })
    }

    /// Waits until the runtime answers and the machine outside is there, and starts its web server.
    ///
    /// # Errors
    /// When the node ends, or does not answer in time.
    pub fn wait_for_runtime(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        self.wait_for(interrupt, "containerd", || Ok(self.cri.version().map(drop)?))?;
        serve_outside(&self.outside()?)
    }

    /// Waits until the node is Ready and pods can be created.
    ///
    /// # Errors
    /// When the node ends, or is not Ready in time.
    pub fn wait_until_ready(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let steps: [&[&str]; 3] = [
            &["wait", "--for=condition=Ready", "node/node-1", "--timeout=5s"],
            &["get", "serviceaccount", "default", "--namespace=default"],
            &["get", "configmap", "kube-root-ca.crt", "--namespace=default"],
        ];
        for step in steps {
            self.wait_for(interrupt, "the node Ready", || self.kubectl.run(step).map(drop))?;
        }
        Ok(())
    }

    /// Version of Kubernetes, as the node tells it.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn version(&self) -> Result<String, Failure> {
        let node = self.kubectl.get(&["node", "node-1"])?;
        let version = node.pointer("/status/nodeInfo/kubeletVersion").and_then(Value::as_str);
        Ok(version.unwrap_or("of an unknown version").to_owned())
    }

    /// Loads an image from its archive.
    ///
    /// # Errors
    /// When the runtime refuses it.
    pub fn import(&self, archive: &Path, reference: &str) -> Result<(), Failure> {
        let ctr = self.programs.join("ctr");
        Ok(containerd::import(&ctr, &socket(&self.directory), &self.cri, archive, reference)?)
    }

    /// A place of the node's own, seen from the machine: `path` is absolute on the node, in `/etc`, `/opt`, `/run` or
    /// `/var/lib`.
    pub fn file(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    /// Where the logs of this run are.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Network of the machine outside the cluster.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn outside(&self) -> Result<Netns, Failure> {
        Ok(Netns::open(&PathBuf::from(format!("/proc/{}/root/run/netns/outside", self.keeper)))?)
    }

    /// Ends a component, which the node then starts again.
    ///
    /// # Errors
    /// When there is no such component.
    pub fn restart(&self, component: &str) -> Result<(), Failure> {
        let what = format!("restart {component}");
        let path = self.file(&format!("/run/{component}.pid"));
        let id = fs::read_to_string(&path).map_err(Failure::system(format!("read {}", path.display())))?;
        let Some(init) = Process::first_child_of(self.keeper) else {
            return Failure::unexpected(format!("{what}: the node is gone"));
        };
        // The number means something inside only.
        let mut command = Command::new("nsenter");
        command.args(["--target", &init.id().to_string(), "--pid", "sh", "-c", r#"kill "$1""#, "sh", id.trim()]);
        let status = command.status().map_err(Failure::system(what.clone()))?;
        if status.success() { Ok(()) } else { Failure::unexpected(format!("{what}: kill {}: {status}", id.trim())) }
    }

    /// Fails where waiting on would change nothing.
    fn check(&self) -> Result<(), Failure> {
        if let Some(status) = self.killer.ended() {
            return Failure::unexpected(format!("the node ended with {status}"));
        }
        let restarts = fs::read_to_string(self.logs.join("restarts.log")).unwrap_or_default();
        let ends: Vec<_> = restarts.lines().collect();
        match ends.last() {
            Some(last) if ends.len() >= TOO_MANY_ENDS => {
                Failure::unexpected(format!("the node's components end: {last}"))
            }
            _ => Ok(()),
        }
    }

    fn wait_for(
        &self,
        interrupt: &Interrupt,
        what: &str,
        look: impl Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            interrupt.check()?;
            self.check()?;
            match look() {
                Ok(()) => return Ok(()),
                Err(failure) if Instant::now() > deadline => {
                    return Failure::unexpected(format!("{what}: not within {} s: {failure}", PATIENCE.as_secs()));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.killer.kill();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("run/containerd/containerd.sock")
}

fn prepare(directory: &Path, ipv6: bool) -> Result<(), Failure> {
    for place in PLACES {
        let path = directory.join(place);
        fs::create_dir_all(&path).map_err(Failure::system(format!("create {}", path.display())))?;
    }
    containerd::install_plugins(&directory.join("opt/cni/bin"))?;
    let etc = directory.join("etc");
    copy_etc(&etc)?;
    for gone in ["cni", "containerd", "kubernetes"] {
        // Only some machines have them.
        drop(fs::remove_dir_all(etc.join(gone)));
    }
    let lists = etc.join("cni/net.d");
    fs::create_dir_all(&lists).map_err(Failure::system(format!("create {}", lists.display())))?;
    write_lists(&lists, Path::new("/var/lib/cni/networks"), ipv6)?;
    let kubernetes = etc.join("kubernetes");
    pki::write(&kubernetes)?;
    let copies = [("containerd.toml", &etc), ("kubelet.yaml", &kubernetes)];
    for (name, to) in copies {
        let copied = fs::copy(Path::new(SCRIPTS).join(name), to.join(name));
        copied.map_err(Failure::system(format!("copy {name} to {}", to.display())))?;
    }
    // There is no name server; the machine's is none of the pods' business.
    let resolv = kubernetes.join("resolv.conf");
    fs::write(&resolv, "nameserver 10.96.0.10\n").map_err(Failure::system(format!("write {}", resolv.display())))
}

/// The node's `/etc` starts as a copy of the machine's: programs find their loaders, users and protocols there.
fn copy_etc(to: &Path) -> Result<(), Failure> {
    let status =
        Command::new("cp").args(["--archive", "/etc"]).arg(to).status().map_err(Failure::system("copy /etc"))?;
    if status.success() { Ok(()) } else { Failure::unexpected(format!("copy /etc: cp ended with {status}")) }
}

fn spawn(work: &WorkDir, programs: &Path) -> std::io::Result<Child> {
    let log = File::create(work.logs().join("node.log"))?;
    Command::new("bash")
        .arg(Path::new(SCRIPTS).join("node.sh"))
        .arg("start")
        .args([work.path(), programs])
        .arg(work.name())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
        // Ctrl-C at the terminal is for us: we end the node ourselves, after looking at it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}
