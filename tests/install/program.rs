//! The program itself: its exit codes, and one life in a root directory of its own with Istio's fixed paths.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod client;
mod node;
mod own_mounts;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use client::post;
use node::{LIST, PLUGIN, eventually};
use own_mounts::{run, unshare};

const PROGRAM: &str = env!("CARGO_BIN_EXE_install-cni");

fn output(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(PROGRAM).args(arguments).env_clear().envs(environment.iter().copied()).output().unwrap()
}

#[test]
fn wrong_usage_ends_with_1_and_help_and_version_with_0() {
    for arguments in [&["surplus"][..], &["--kubeconfig-mode=rw"], &["--nonsense"]] {
        let output = output(arguments, &[]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
    for arguments in [&["--help"][..], &["version"], &["version", "--short"], &["version", "-o", "yaml"]] {
        let output = output(arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
    }
}

#[test]
fn settings_that_cannot_work_end_with_1_and_a_sentence() {
    let pod = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];
    for (more, word) in [
        (("AMBIENT_ENABLED", "true"), "ambient"),
        (("CNI_CONF_NAME", "a/b"), "CNI_CONF_NAME"),
        (("CHAINED_CNI_PLUGIN", "yes"), "CHAINED_CNI_PLUGIN"),
        (("KUBERNETES_SERVICE_PORT", ""), "KUBERNETES_SERVICE_PORT"),
    ] {
        let output = output(&[], &[pod[0], pod[1], more]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        assert!(text.contains("\terror\t") && text.contains(word), "{text}");
    }
}

/// The directories of the node and of the pod below `root`, as the chart mounts them.
fn set_up(root: &Path) {
    let account = root.join("var/run/secrets/kubernetes.io/serviceaccount");
    for dir in ["opt/cni/bin", "host/opt/cni/bin", "host/etc/cni/net.d"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::create_dir_all(account.join("..1")).unwrap();
    std::fs::write(account.join("..1/token"), "secret-1").unwrap();
    std::fs::write(account.join("..1/ca.crt"), "CA").unwrap();
    symlink("..1", account.join("..data")).unwrap();
    for name in ["token", "ca.crt"] {
        symlink(Path::new("..data").join(name), account.join(name)).unwrap();
    }
    let plugin = root.join("opt/cni/bin/istio-cni");
    std::fs::write(&plugin, PLUGIN).unwrap();
    std::fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(root.join("host/etc/cni/net.d/10-net.conflist"), LIST).unwrap();
    std::fs::copy(PROGRAM, root.join("agent")).unwrap();
}

/// Makes the system's libraries visible below `$0` and becomes the agent there. To be run in a mount namespace that ends
/// with it, never in that of the test: removing the test's directory would remove what is mounted there. They are
/// read-only for the same reason.
const ENTER: &str = r#"
for dir in usr lib lib64 bin; do
  if [ -L "/$dir" ]; then cp -PT --remove-destination "/$dir" "$0/$dir"
  elif [ -d "/$dir" ]; then mkdir -p "$0/$dir"; mount --bind "/$dir" "$0/$dir"; mount -o remount,ro,bind "$0/$dir"; fi
done
exec chroot "$0" /agent --log_as_json --log_output_level=debug
"#;

/// Whether the tests below can run here.
#[track_caller]
fn own_root_is_possible() -> bool {
    if unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return true;
    }
    let required = std::env::var("REQUIRE_NETNS").is_ok_and(|value| value == "1");
    assert!(!required, "no namespaces of our own can be had here, but REQUIRE_NETNS=1");
    eprintln!("skipped: no namespaces of our own can be had here");
    false
}

fn agent(root: &Path) -> Command {
    let mut agent = unshare();
    agent.args(["sh", "-e", "-c", ENTER]).arg(root);
    agent.env("KUBERNETES_SERVICE_HOST", "10.96.0.1").env("KUBERNETES_SERVICE_PORT", "443");
    agent.env("EXCLUDE_NAMESPACES", "kube-system, istio-system").env("POD_NAMESPACE", "istio-system");
    // Nobody can be asked here whether this is an uninstall.
    agent.env("AMBIENT_DISABLE_SAFE_UPGRADE", "true");
    agent.stdout(Stdio::piped());
    agent
}

fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

#[test]
fn the_program_installs_follows_the_token_and_leaves_no_trace_on_sigterm() {
    if !own_root_is_possible() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    set_up(root.path());
    let mut agent = agent(root.path()).spawn().unwrap();
    let (lines, log) = mpsc::channel();
    let stdout = BufReader::new(agent.stdout.take().unwrap());
    std::thread::spawn(move || {
        stdout.lines().map_while(Result::ok).for_each(|line| lines.send(line).unwrap_or_default())
    });
    let mut said = Vec::new();
    let mut hears = |word: &str| {
        while !said.iter().any(|line: &String| line.contains(word)) {
            said.push(log.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("no {word:?} in {said:#?}")));
        }
        said.clone()
    };

    hears("the node is installed");
    let list = std::fs::read_to_string(at("host/etc/cni/net.d/10-net.conflist")).unwrap();
    assert!(list.contains("\"kube-system\",\n") && list.contains("\"pod_namespace\": \"istio-system\""), "{list}");
    assert!(list.contains("\"plugin_log_level\": \"debug\""));
    let kubeconfig = at("var/run/istio-cni/istio-cni-kubeconfig");
    assert!(std::fs::read_to_string(&kubeconfig).unwrap().contains("token: secret-1\n"));

    let account = at("var/run/secrets/kubernetes.io/serviceaccount");
    std::fs::create_dir(account.join("..2")).unwrap();
    std::fs::write(account.join("..2/token"), "secret-2").unwrap();
    std::fs::write(account.join("..2/ca.crt"), "CA").unwrap();
    symlink("..2", account.join("..data_tmp")).unwrap();
    std::fs::rename(account.join("..data_tmp"), account.join("..data")).unwrap();
    eventually(|| std::fs::read_to_string(&kubeconfig).unwrap().contains("secret-2"), || "no new token".to_owned());

    // What plugins say, as one batch with their time.
    let entry =
        |n| format!(r#"{{"level":"warn","time":"2020-01-01T00:00:0{n}.5Z","msg":" said {n}\n","pod":"shop/web"}}"#);
    let batch = serde_json::json!([entry(0), "not an entry", entry(1), entry(2)]).to_string();
    assert_eq!(post(&at("var/run/istio-cni/log.sock"), "/log", &batch), (200, String::new()));
    let lines = hears("said 2");
    let first = lines.iter().position(|line| line.contains("\"cni-plugin\"")).unwrap();
    for (n, line) in lines[first..first + 3].iter().enumerate() {
        let expected = serde_json::json!({"level": "warn", "time": format!("2020-01-01T00:00:0{n}.5Z"),
            "scope": "cni-plugin", "msg": format!("said {n}"), "pod": "shop/web"});
        assert_eq!(serde_json::from_str::<serde_json::Value>(line).unwrap(), expected);
    }

    // Of all that root has in its namespaces, what files of others take: CHOWN, DAC_OVERRIDE, FOWNER, FSETID.
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
    for line in ["CapEff:\t000000000000001b", "CapPrm:\t000000000000001b", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{line:?} is not in\n{status}");
    }

    let open_before = open_files(agent.id());
    for round in 0..3000 {
        std::fs::write(at(&format!("host/etc/cni/net.d/noise-{}", round % 50)), "x").unwrap();
    }
    std::fs::write(at("host/etc/cni/net.d/10-net.conflist"), LIST).unwrap();
    eventually(
        || std::fs::read_to_string(at("host/etc/cni/net.d/10-net.conflist")).unwrap() == list,
        || "a change among many events was missed".to_owned(),
    );
    eventually(|| open_files(agent.id()) <= open_before, || "events leave files open".to_owned());

    run("kill", &["-TERM", &agent.id().to_string()]);
    assert_eq!(agent.wait().unwrap().code(), Some(0));
    let said = hears("SIGTERM");
    assert!(said.iter().all(|line| !line.contains("secret-")), "no token in the log: {said:#?}");
    assert!(said.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{said:#?}");
    assert_eq!(std::fs::read_to_string(at("host/etc/cni/net.d/10-net.conflist")).unwrap(), LIST);
    assert_eq!(std::fs::read_dir(at("host/opt/cni/bin")).unwrap().count(), 0);
    assert!(!kubeconfig.exists() && !at("var/run/istio-cni/log.sock").exists());
}

#[test]
fn an_agent_killed_again_and_again_does_not_fill_the_disk() {
    if !own_root_is_possible() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("host/opt/cni/bin");
    set_up(root.path());
    // Large, so that most kills fall into the copy.
    std::fs::write(root.path().join("opt/cni/bin/istio-cni"), vec![b'x'; 30 << 20]).unwrap();
    std::fs::write(bin.join("calico.tmp.1"), "not ours").unwrap();
    let left_over = || -> Vec<String> {
        let names = std::fs::read_dir(&bin).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("istio-cni.istio-cni.tmp.")).collect()
    };
    let mut killed_while_copying = 0;
    for _ in 0..25 {
        let before = left_over();
        let mut process = agent(root.path()).spawn().unwrap();
        // The copy has begun, or was too fast to be seen.
        let copies = || left_over().iter().any(|name| !before.contains(name));
        eventually(|| copies() || bin.join("istio-cni").exists(), || "nothing is copied".to_owned());
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(left_over().len() <= 1, "at most the one of the last kill");
        killed_while_copying += left_over().len();
        std::fs::remove_file(bin.join("istio-cni")).unwrap_or_default();
    }
    assert!(killed_while_copying > 0, "no kill hit a copy, so this test has shown nothing");
    let mut process = agent(root.path()).spawn().unwrap();
    let list = root.path().join("host/etc/cni/net.d/10-net.conflist");
    eventually(|| std::fs::read_to_string(&list).unwrap() != LIST, || "not installed".to_owned());
    assert!(left_over().is_empty());
    run("kill", &["-TERM", &process.id().to_string()]);
    assert_eq!(process.wait().unwrap().code(), Some(0));
    assert!(bin.join("calico.tmp.1").exists() && !bin.join("istio-cni").exists());
    assert_eq!(std::fs::read_to_string(&list).unwrap(), LIST);
}
