//! A node for the agent: Istio's fixed paths below a scratch directory, and the built program in it as its root.
//!
//! The program is static, so nothing is mounted there. To be used inside a network namespace.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::service_account::ServiceAccountVolume;

const LIST: &str = "{\n  \"name\": \"net\",\n  \"cniVersion\": \"1.0.0\",\n  \"plugins\": [\n    {\"type\": \"bridge\"},\n    {\"type\": \"portmap\"}\n  ]\n}\n";
/// What has to come, comes within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directories.
pub struct Node {
    root: TempDir,
    pub volume: ServiceAccountVolume,
}

/// The running program. It is killed when dropped.
pub struct Agent(Child);

impl Node {
    /// With the programs in `bin`, and this certificate of the API server.
    pub fn new(bin: &Path, ca_pem: &str) -> Self {
        let root = tempfile::tempdir().expect("a scratch directory");
        let at = |name: &str| root.path().join(name);
        for dir in ["opt/cni/bin", "host/opt/cni/bin", "host/etc/cni/net.d", "var/run"] {
            fs::create_dir_all(at(dir)).expect("a directory");
        }
        for (name, place) in [
            ("istio-cni", "opt/cni/bin/istio-cni"),
            ("istio-iptables", "opt/cni/bin/istio-iptables"),
            ("install-cni", "agent"),
        ] {
            fs::copy(bin.join(name), at(place)).expect("a copy of a program");
        }
        fs::write(at("host/opt/cni/bin/bridge"), "").expect("a file");
        fs::write(at("host/etc/cni/net.d/10-net.conflist"), LIST).expect("a list");
        let directory = at("var/run/secrets/kubernetes.io/serviceaccount");
        let volume = ServiceAccountVolume::create(&directory, "token-0", ca_pem, "istio-system").expect("a volume");
        Self { root, volume }
    }

    /// Starts the agent, with the API server at this port of loopback.
    pub fn start(&self, port: u16) -> Agent {
        let mut command = Command::new("chroot");
        command.arg(self.root.path()).arg("/agent").arg("--log_output_level=warn");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", port.to_string());
        command
            .env("EXCLUDE_NAMESPACES", "kube-system")
            .env("POD_NAMESPACE", "istio-system")
            .env("NODE_NAME", "node-1");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Agent(command.spawn().expect("the agent starts"))
    }

    /// Whether our plugin is in the list.
    pub fn is_installed(&self) -> bool {
        fs::read_to_string(self.list("10-net.conflist")).is_ok_and(|text| text.contains("\"istio-cni\""))
    }

    /// A file of the CNI configuration directory.
    pub fn list(&self, name: &str) -> PathBuf {
        self.root.path().join("host/etc/cni/net.d").join(name)
    }

    /// The kubeconfig's text.
    pub fn kubeconfig(&self) -> String {
        fs::read_to_string(self.root.path().join("var/run/istio-cni/istio-cni-kubeconfig")).unwrap_or_default()
    }

    /// What changes when an installed program is written.
    pub fn programs(&self) -> Vec<(u64, i64, i64)> {
        let identity = |name| {
            let data = self.root.path().join("host/opt/cni/bin").join(name).metadata().expect("an installed program");
            (data.ino(), data.mtime(), data.mtime_nsec())
        };
        ["istio-cni", "istio-iptables"].map(identity).into()
    }

    /// What the agent says about a pod.
    pub fn verdict(&self, pod: &str) -> String {
        let body = format!("{{\"verb\":\"ADD\",\"namespace\":\"shop\",\"pod\":\"{pod}\"}}");
        let socket = self.root.path().join("var/run/istio-cni/agent.sock");
        UnixStream::connect(socket).map_or_else(|_| String::new(), |stream| ask(stream, "POST", "/v1/verdict", &body))
    }
}

impl Agent {
    /// Its id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Entries of a directory below `/proc/<id>`.
    pub fn count(&self, what: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{what}", self.id())).map_or(0, Iterator::count)
    }

    /// Resident memory, in KiB.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Watches of inotify.
    pub fn watches(&self) -> usize {
        let files = fs::read_dir(format!("/proc/{}/fdinfo", self.id())).expect("a running agent");
        let texts = files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
        texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count()).sum()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the agent says that it is ready.
pub fn is_ready() -> bool {
    TcpStream::connect("127.0.0.1:8000")
        .is_ok_and(|stream| ask(stream, "GET", "/readyz", "").starts_with("HTTP/1.1 200 "))
}

/// Waits for `condition`, and tells how long that took.
pub fn wait(what: &str, condition: impl Fn() -> bool) -> Duration {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "{what} does not come");
        std::thread::sleep(Duration::from_micros(500));
    }
    started.elapsed()
}

fn ask(mut stream: impl Read + Write, method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    let mut answer = String::new();
    let _ = write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .and_then(|()| stream.read_to_string(&mut answer).map(|_| ()));
    answer
}
