//! A node in a temporary directory, and the agent running on it in this process.

#![allow(dead_code)] // Each test program uses its own part of this.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent_api::PluginConfig;
use install_cni::app::App;
use install_cni::config::{AgentConfig, Config, Dirs};
use install_cni::health::Health;
use install_cni::install::edit;
use install_cni::install::kubeconfig::Source;
use install_cni::install::pass::Installer;
use install_cni::shutdown::{Answer, Question};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// A list as people write them: tabs, a number no float holds, an escape, no final line break.
pub const LIST: &str = "{\n\t\"name\": \"k8s-pod-network\",\n\t\"cniVersion\": \"1.0.0\",\n\t\"plugins\": [\n\t\t{\n\t\t\t\"type\": \"bridge\",\n\t\t\t\"mtu\": 12345678901234567890,\n\t\t\t\"note\": \"<\\u00e9>\"\n\t\t},\n\t\t{ \"type\": \"portmap\" }\n\t]\n}";
pub const NETWORK: &str = "\n{ \"type\": \"bridge\", \"name\": \"mynet\", \"cniVersion\": \"0.4.0\" }\n\n";
pub const PLUGIN: &str = "#!/bin/sh\nexit 0\n";

pub struct Node {
    pub root: TempDir,
    pub config: Config,
    /// CA certificates of the API server, from the next rotation on.
    pub ca: String,
    rotations: std::sync::atomic::AtomicU32,
}

impl Node {
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    pub fn at(root: TempDir) -> Self {
        let at = |name: &str| root.path().join(name);
        let dirs = Dirs {
            binaries_from: at("image"),
            binaries_to: vec![at("bin")],
            cni: at("net.d"),
            attachments: at("attachments"),
            service_account: at("account"),
            run: at("run"),
        };
        for dir in [&dirs.binaries_from, &dirs.binaries_to[0], &dirs.cni, &dirs.service_account] {
            std::fs::create_dir(dir).unwrap();
        }
        for name in ["istio-cni", "istio-iptables"] {
            let path = dirs.binaries_from.join(name);
            std::fs::write(&path, PLUGIN).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let kubeconfig = Source {
            host: "10.96.0.1".to_owned(),
            port: "443".to_owned(),
            protocol: "https".to_owned(),
            ca_file: Some(dirs.service_account.join("ca.crt")),
            token_file: dirs.service_account.join("token"),
        };
        let config = Config {
            dirs,
            conf_name: None,
            chained: true,
            conf_mode: 0o600,
            kubeconfig_mode: 0o600,
            kubeconfig,
            plugin: PluginConfig { exclude_namespaces: vec!["kube-system".to_owned()], ..PluginConfig::default() },
            health: ([127, 0, 0, 1], 0).into(),
            owned: None,
            always_clean_up: true,
            node_name: "node-1".to_owned(),
            agent: AgentConfig::default(),
        };
        let node = Self { root, config, ca: "CA".to_owned(), rotations: 0.into() };
        for name in ["token", "ca.crt"] {
            symlink(Path::new("..data").join(name), node.config.dirs.service_account.join(name)).unwrap();
        }
        node.rotate("token-0");
        node
    }

    /// A new token, the way kubelet brings it: everything in a new directory, then one rename of a link.
    pub fn rotate(&self, token: &str) {
        let dir = &self.config.dirs.service_account;
        let number = self.rotations.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let fresh = format!("..2026_{number}");
        std::fs::create_dir(dir.join(&fresh)).unwrap();
        std::fs::write(dir.join(&fresh).join("token"), token).unwrap();
        std::fs::write(dir.join(&fresh).join("ca.crt"), &self.ca).unwrap();
        symlink(&fresh, dir.join("..data_tmp")).unwrap();
        std::fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
        if let Some(old) = number.checked_sub(1) {
            std::fs::remove_dir_all(dir.join(format!("..2026_{old}"))).unwrap();
        }
    }

    pub fn list(&self, name: &str) -> PathBuf {
        self.config.dirs.cni.join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.list(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.list(name)).unwrap_or_default()
    }

    /// Whether our plugin is in the file, exactly once.
    pub fn is_in(&self, name: &str) -> bool {
        edit::count(&self.read(name)) == 1
    }

    pub fn plugin(&self) -> PathBuf {
        self.config.dirs.binaries_to[0].join("istio-cni")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.config.dirs.run.join("istio-cni-kubeconfig")
    }

    /// Name, mode, owner and content of everything in the CNI directory.
    pub fn picture(&self) -> BTreeMap<String, (u32, u32, u32, Vec<u8>)> {
        let entries = std::fs::read_dir(&self.config.dirs.cni).unwrap();
        let picture = |path: PathBuf| {
            let data = path.metadata().unwrap();
            let content = if data.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            (data.mode(), data.uid(), data.gid(), content)
        };
        entries.map(|e| e.unwrap()).map(|e| (e.file_name().into_string().unwrap(), picture(e.path()))).collect()
    }

    /// One pass, without an agent that goes on.
    pub fn pass_once(&self) -> Arc<Health> {
        let health = Arc::new(Health::default());
        Installer::new(Arc::new(self.config.clone()), Arc::clone(&health)).pass();
        health
    }

    /// The agent, running.
    pub fn start(&self) -> Agent {
        Agent::of(App::new(self.config.clone()))
    }

    /// The agent, running, with somebody to ask at its end, who gives this answer; `None` never answers.
    pub fn start_with_answer(&self, answer: Option<Answer>) -> Agent {
        let question = move || async move {
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        };
        self.start_asking(Box::new(|| Box::pin(question())))
    }

    /// The agent, running, with this question for its end.
    pub fn start_asking(&self, question: Question) -> Agent {
        Agent::of(App::new(self.config.clone()).asking(question))
    }

    /// The agent, running and ready.
    #[track_caller]
    pub fn start_ready(&self) -> Agent {
        let agent = self.start();
        agent.becomes_ready();
        agent
    }
}

impl Agent {
    fn of(app: App) -> Self {
        let health = app.health();
        let (end, ended) = oneshot::channel::<()>();
        let (bound, address) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let bound = move |address| bound.send(address).unwrap_or_default();
            runtime.block_on(app.run(ended, bound)).unwrap().unwrap_or_default();
        });
        Agent { health, end: Some(end), address, thread: Some(thread) }
    }
}

pub struct Agent {
    pub health: Arc<Health>,
    end: Option<oneshot::Sender<()>>,
    address: mpsc::Receiver<std::net::SocketAddr>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Agent {
    #[track_caller]
    pub fn becomes_ready(&self) {
        eventually(|| self.health.missing().is_none(), || format!("not ready: {:?}", self.health.missing()));
    }

    /// Waits until the agent says that something with this word in it is missing.
    #[track_caller]
    pub fn misses(&self, word: &str) {
        let missing = || self.health.missing().unwrap_or_default();
        eventually(|| missing().contains(word), || format!("{word:?} is not in {:?}", missing()));
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.address.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// As on SIGTERM.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let (Some(end), Some(thread)) = (self.end.take(), self.thread.take()) {
            end.send(()).unwrap_or_default();
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the agent panicked");
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for something that has to come; generous, so that a slow machine does not fail.
#[track_caller]
pub fn eventually(condition: impl Fn() -> bool, complaint: impl Fn() -> String) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", complaint());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What changes when a file is written anew.
pub fn identity(path: &Path) -> (u64, i64, i64) {
    let data = path.metadata().unwrap();
    (data.ino(), data.mtime(), data.mtime_nsec())
}

/// Replaces a file the orderly way.
pub fn replace(path: &Path, text: &str) {
    let temporary = path.with_file_name(".somebody-elses-temporary");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(&temporary, path).unwrap();
}
