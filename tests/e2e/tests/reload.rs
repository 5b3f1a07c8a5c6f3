//! A real container runtime notices what the installer writes, and loads it.
//!
//! Containerd looks at its configuration again only at some events: not at new files, not at changed modes, and not at
//! a file that was renamed from another directory. So it matters how we write, and this is where that is proven.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_api::PluginConfig;
use install_cni::config::{AgentConfig, Config, Dirs};
use install_cni::health::Health;
use install_cni::install::kubeconfig::Source;
use install_cni::install::pass::Installer;
use install_cni::install::uninstall::uninstall;
use testkit::containerd::Containerd;
use testkit::cri::Cri;
use testkit::work_dir::WorkDir;

const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "a-list", "plugins": [{"type": "bridge"}]}"#;
const NETWORK: &str = r#"{"cniVersion": "0.4.0", "name": "a-network", "type": "bridge"}"#;

fn config(root: &Path, node: &Containerd) -> Config {
    let at = |name: &str| root.join(name);
    let dirs = Dirs {
        binaries_from: at("image"),
        binaries_to: vec![node.cni_bin()],
        cni: node.cni_config(),
        attachments: at("attachments"),
        service_account: at("account"),
        run: at("run-dir"),
    };
    std::fs::create_dir(&dirs.binaries_from).unwrap();
    std::fs::create_dir(&dirs.service_account).unwrap();
    std::fs::write(dirs.binaries_from.join("istio-cni"), "#!/bin/sh\n").unwrap();
    for name in ["token", "ca.crt"] {
        std::fs::write(dirs.service_account.join(name), name).unwrap();
    }
    let kubeconfig = Source {
        host: "10.96.0.1".to_owned(),
        port: "443".to_owned(),
        protocol: "https".to_owned(),
        ca_file: Some(dirs.service_account.join("ca.crt")),
        token_file: dirs.service_account.join("token"),
    };
    Config {
        dirs,
        conf_name: None,
        chained: true,
        owned: None,
        conf_mode: 0o600,
        kubeconfig_mode: 0o600,
        kubeconfig,
        plugin: PluginConfig::default(),
        health: ([127, 0, 0, 1], 0).into(),
        always_clean_up: true,
        node_name: String::new(),
        agent: AgentConfig::default(),
    }
}

/// One pass of an agent with these settings.
#[track_caller]
fn installs(config: &Config) {
    let health = Arc::new(Health::default());
    // The file of the plugin has to be executable for the list to be edited.
    std::fs::set_permissions(
        config.dirs.binaries_from.join("istio-cni"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    Installer::new(Arc::new(config.clone()), Arc::clone(&health)).pass();
    assert_eq!(health.missing(), None);
}

/// Waits until the list that the runtime has loaded has all of these words, and none of those.
#[track_caller]
fn loads(runtime: &Cri, words: &[&str], not: &[&str]) {
    let start = Instant::now();
    loop {
        let loaded = runtime.status().unwrap().info.get("cniconfig").cloned().unwrap_or_default();
        if words.iter().all(|word| loaded.contains(word)) && !not.iter().any(|word| loaded.contains(word)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{words:?} and not {not:?} in {loaded}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes as network agents do.
fn replace(config: &Config, name: &str, text: &str) {
    let temporary = config.dirs.cni.join(".of-the-network-agent");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, config.dirs.cni.join(name)).unwrap();
}

/// Needs root, and containerd with the basic plugins.
fn is_possible() -> bool {
    let is_root = std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0\t0\t0");
    let has = |paths: &[&str]| paths.iter().any(|path| Path::new(path).exists());
    let possible = is_root
        && has(&["/usr/bin/containerd", "/usr/local/bin/containerd"])
        && has(&["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"]);
    if !possible {
        eprintln!("skipped: no containerd with the basic CNI plugins, or not root; tests/setup.sh demo installs them");
    }
    possible
}

#[test]
fn the_runtime_loads_what_is_installed_and_forgets_what_is_uninstalled() {
    if !is_possible() {
        return;
    }
    let work = WorkDir::create("reload").unwrap();
    let node = Containerd::start(&work).unwrap();
    let runtime = Cri::new(&node.socket()).unwrap();
    let mut config = config(work.path(), &node);

    replace(&config, "10-net.conflist", LIST);
    installs(&config);
    loads(&runtime, &["a-list", "\"istio-cni\""], &[]);
    assert_eq!(uninstall(&config), [""; 0]);
    loads(&runtime, &["a-list"], &["\"istio-cni\""]);

    config.owned = Some("02-istio-cni.conflist".to_owned());
    installs(&config);
    loads(&runtime, &["a-list", "\"istio-cni\""], &[]);
    assert_eq!(uninstall(&config), [""; 0]);
    loads(&runtime, &["a-list"], &["\"istio-cni\""]);

    // A single network becomes a list, and a network again.
    config.owned = None;
    std::fs::remove_file(config.dirs.cni.join("10-net.conflist")).unwrap();
    replace(&config, "10-net.conf", NETWORK);
    installs(&config);
    loads(&runtime, &["a-network", "\"istio-cni\""], &[]);
    assert_eq!(uninstall(&config), [""; 0]);
    loads(&runtime, &["a-network"], &["\"istio-cni\""]);

    // The network agent brings another first file, and our plugin moves there.
    installs(&config);
    replace(&config, "00-new.conflist", LIST);
    installs(&config);
    loads(&runtime, &["a-list", "\"istio-cni\""], &["a-network"]);
}
