//! What a node looks like while the agent comes, stays and goes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod node;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_api::Kubeconfig;
use install_cni::install::uninstall::uninstall;
use install_cni::shutdown::Answer;
use node::{LIST, NETWORK, Node, PLUGIN, eventually, identity, replace};

#[test]
fn a_node_is_installed_and_after_the_end_nothing_of_ours_is_left() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    node.write("20-other.conf", NETWORK);
    node.write("README", "not a configuration");
    std::fs::set_permissions(node.list("10-net.conflist"), PermissionsExt::from_mode(0o604)).unwrap();
    let before = node.picture();

    let agent = node.start_ready();
    assert!(node.is_in("10-net.conflist"));
    assert!(
        node.read("10-net.conflist").contains("12345678901234567890,\n\t\t\t\"note\": \"<\\u00e9>\""),
        "foreign bytes"
    );
    assert_eq!(node.list("10-net.conflist").metadata().unwrap().mode() & 0o777, 0o604);
    for name in ["istio-cni", "istio-iptables"] {
        let path = node.config.dirs.binaries_to[0].join(name);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o755);
        assert_eq!(std::fs::read_to_string(path).unwrap(), PLUGIN);
    }
    let kubeconfig = std::fs::read_to_string(node.kubeconfig()).unwrap();
    assert_eq!(Kubeconfig::parse(&kubeconfig).unwrap().token, "token-0");
    assert_eq!(node.kubeconfig().metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(node.config.dirs.run.metadata().unwrap().mode() & 0o777, 0o700);

    agent.stop();
    assert_eq!(node.picture(), before, "names, contents, modes and owners are as they were");
    assert!(!node.kubeconfig().exists());
    assert_eq!(std::fs::read_dir(&node.config.dirs.binaries_to[0]).unwrap().count(), 0);
}

#[test]
fn modes_that_an_administrator_has_set_survive_install_and_uninstall() {
    for mode in [0o600, 0o640, 0o644, 0o444] {
        for (name, text, list) in [("a.conflist", LIST, "a.conflist"), ("a.conf", NETWORK, "a.conflist")] {
            let node = Node::new();
            node.write(name, text);
            std::fs::set_permissions(node.list(name), PermissionsExt::from_mode(mode)).unwrap();
            // Another owner only where we may give files away.
            let gid =
                if std::os::unix::fs::chown(node.list(name), None, Some(1234)).is_ok() { Some(1234) } else { None };
            let before = node.picture();
            let agent = node.start_ready();
            let data = node.list(list).metadata().unwrap();
            assert_eq!(data.mode() & 0o7777, mode);
            assert!(gid.is_none_or(|gid| data.gid() == gid));
            agent.stop();
            assert_eq!(node.picture(), before);
        }
    }
}

#[test]
fn pods_start_after_every_token_rotation_and_readers_never_see_half_a_kubeconfig() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    let path = node.kubeconfig();
    let untouched = [node.plugin(), node.list("10-net.conflist")];
    let before = untouched.each_ref().map(|path| identity(path));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = || {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&path).expect("the kubeconfig is never missing");
                assert!(Kubeconfig::parse(&text).expect("and never half written").token.starts_with("token-"));
                assert_eq!(agent.health.missing(), None, "a rotation is no reason to be unready");
                reads += 1;
            }
            reads
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for round in 1..=60_u64 {
            node.rotate(&format!("token-{round}"));
            // Irregular, so that rotations fall into every moment of a pass.
            std::thread::sleep(Duration::from_millis(round * 37 % 150));
        }
        eventually(|| std::fs::read_to_string(&path).unwrap().contains("token-60"), || "the last token".to_owned());
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    assert_eq!(untouched.each_ref().map(|path| identity(path)), before, "nothing but the kubeconfig was written");
}

#[test]
fn a_restarted_agent_writes_nothing_that_is_right() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let first = node.start_ready();
    let files = [node.plugin(), node.list("10-net.conflist"), node.kubeconfig()];
    let before = files.each_ref().map(|path| identity(path));
    // A second agent on the same node stands for one that comes after a crash.
    let second = node.start_ready();
    for round in 0..20 {
        node.write(&format!("noise-{round}.tmp"), "x");
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(files.each_ref().map(|path| identity(path)), before);
    assert_eq!(second.health.missing(), None);
    drop((first, second));
}

#[test]
fn our_plugin_is_back_whatever_way_the_network_agent_rewrites_its_list() {
    let node = Node::new();
    let path = node.list("10-net.conflist");
    node.write("10-net.conflist", LIST);
    let _agent = node.start_ready();
    let away = node.root.path().join("away");
    let ways: [(&str, &dyn Fn()); 6] = [
        ("write in place", &|| std::fs::write(&path, LIST).unwrap()),
        ("rename over", &|| replace(&path, LIST)),
        ("delete and create", &|| {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, LIST).unwrap();
        }),
        ("truncate, then write", &|| {
            let mut file = std::fs::File::create(&path).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            file.write_all(LIST.as_bytes()).unwrap();
        }),
        ("another directory in its place", &|| {
            std::fs::rename(&node.config.dirs.cni, &away).unwrap();
            std::fs::create_dir(&node.config.dirs.cni).unwrap();
            std::fs::write(&path, LIST).unwrap();
        }),
        ("the directory back again", &|| {
            std::fs::remove_dir_all(&node.config.dirs.cni).unwrap();
            std::fs::rename(&away, &node.config.dirs.cni).unwrap();
            std::fs::write(&path, LIST).unwrap();
        }),
    ];
    for (way, rewrite) in ways {
        assert!(node.is_in("10-net.conflist"));
        rewrite();
        eventually(|| node.is_in("10-net.conflist"), || format!("not back after: {way}"));
    }
}

#[test]
fn a_removed_or_replaced_plugin_is_restored() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let agent = node.start_ready();
    std::fs::remove_file(node.plugin()).unwrap();
    eventually(|| node.plugin().exists(), || "not restored".to_owned());
    replace(&node.plugin(), "another version");
    eventually(|| std::fs::read_to_string(node.plugin()).is_ok_and(|t| t == PLUGIN), || "not replaced".to_owned());
    std::fs::remove_dir_all(&node.config.dirs.binaries_to[0]).unwrap();
    eventually(|| node.plugin().exists(), || "the directory is not created anew".to_owned());
    agent.becomes_ready();
}

#[test]
fn on_a_new_node_nothing_is_written_before_the_network_agent_has_come() {
    let node = Node::new();
    std::fs::remove_dir(&node.config.dirs.cni).unwrap();
    std::fs::remove_dir(&node.config.dirs.binaries_to[0]).unwrap();
    let agent = node.start();
    agent.misses("does not exist");
    eventually(|| node.plugin().exists(), || "binaries do not need a network".to_owned());
    std::fs::create_dir(&node.config.dirs.cni).unwrap();
    agent.misses("no network configuration yet");
    assert!(node.picture().is_empty());
    node.write("10-net.conflist", LIST);
    agent.becomes_ready();
    assert!(node.is_in("10-net.conflist"));
}

#[test]
fn a_restart_leaves_plugin_list_and_kubeconfig_and_the_successor_writes_nothing() {
    let mut node = Node::new();
    node.config.always_clean_up = false;
    node.write("10-net.conflist", LIST);
    let files = [node.plugin(), node.list("10-net.conflist"), node.kubeconfig()];
    let mut before = None;
    for answer in [Some(Answer::Wanted), Some(Answer::Status(500)), Some(Answer::None("no route".to_owned())), None] {
        let agent = node.start_with_answer(answer);
        agent.becomes_ready();
        let now = files.each_ref().map(|path| identity(path));
        assert_eq!(*before.get_or_insert(now), now);
        agent.stop();
        assert_eq!(files.each_ref().map(|path| identity(path)), now, "it stays");
    }
}

#[test]
fn an_uninstall_is_known_by_the_answer_of_the_api_server() {
    for answer in [Answer::Going, Answer::NotHere, Answer::Status(404), Answer::Status(401), Answer::Status(403)] {
        let mut node = Node::new();
        node.config.always_clean_up = false;
        node.write("10-net.conflist", LIST);
        let before = node.picture();
        let agent = node.start_with_answer(Some(answer));
        agent.becomes_ready();
        agent.stop();
        assert_eq!(node.picture(), before);
        assert!(!node.plugin().exists() && !node.kubeconfig().exists());
        assert_eq!(std::fs::read_dir(&node.config.dirs.run).unwrap().count(), 0);
    }
}

#[test]
fn an_end_while_waiting_leaves_nothing_either() {
    let node = Node::new();
    let agent = node.start();
    agent.misses("no network configuration yet");
    assert!(node.kubeconfig().exists());
    agent.stop();
    assert!(!node.kubeconfig().exists() && !node.plugin().exists());
    assert!(node.picture().is_empty());
}

#[test]
fn no_list_ever_names_a_plugin_that_is_not_there() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut named = 0;
            while !done.load(Ordering::Relaxed) {
                // The list first: it may lose our plugin and the binary go in between, but not the other way round.
                let before = node.is_in("10-net.conflist");
                let runnable =
                    node.plugin().metadata().is_ok_and(|data| data.mode() & 0o111 != 0) && node.kubeconfig().exists();
                assert!(!before || runnable || !node.is_in("10-net.conflist"), "named, but not there");
                named += u32::from(before);
            }
            named
        });
        for _ in 0..15 {
            node.start_ready().stop();
        }
        done.store(true, Ordering::Relaxed);
        assert!(sampler.join().unwrap() > 0);
    });
    assert_eq!(node.read("10-net.conflist"), LIST);
}

#[test]
fn the_plugin_of_another_installation_is_not_removed() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    node.pass_once();
    // That of a newer agent, which has written it just before this one ends.
    replace(&node.plugin(), "newer");
    assert_eq!(uninstall(&node.config), [""; 0]);
    assert_eq!(std::fs::read_to_string(node.plugin()).unwrap(), "newer");
    assert!(!node.plugin().with_file_name("istio-iptables").exists());
}

#[test]
fn the_plugin_of_an_older_version_of_ours_is_removed_because_the_journal_knows_it() {
    let mut node = Node::new();
    node.write("10-net.conflist", LIST);
    node.pass_once();
    std::fs::write(node.config.dirs.binaries_from.join("istio-cni"), "newer").unwrap();
    // Other settings too: the list was edited in one directory, and now another one is in use.
    let elsewhere = node.root.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let before = std::mem::replace(&mut node.config.dirs.cni, elsewhere);
    assert_eq!(uninstall(&node.config), [""; 0]);
    assert!(!node.plugin().exists());
    assert_eq!(std::fs::read_to_string(before.join("10-net.conflist")).unwrap(), LIST);
    assert_eq!(std::fs::read_dir(&node.config.dirs.run).unwrap().count(), 0, "the journal has ended");
}

#[test]
fn pods_that_were_set_up_with_our_plugin_can_be_removed_after_an_uninstall() {
    let node = Node::new();
    node.write("10-net.conflist", LIST);
    node.pass_once();
    let list = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, node.read("10-net.conflist"));
    let kept = &node.config.dirs.attachments;
    std::fs::create_dir(kept).unwrap();
    std::fs::write(kept.join("k8s-pod-network-c0ffee-eth0"), format!("{{\"config\":\"{list}\"}}")).unwrap();
    assert_eq!(uninstall(&node.config), [""; 0]);
    assert_eq!(node.read("10-net.conflist"), LIST, "new pods do not call it");
    assert!(node.plugin().exists(), "CRI-O calls it for the old ones");
    assert!(!node.kubeconfig().exists() && !node.plugin().with_file_name("istio-iptables").exists());
    std::fs::remove_dir_all(kept).unwrap();
    node.pass_once();
    assert_eq!(uninstall(&node.config), [""; 0]);
    assert!(!node.plugin().exists());
}

#[test]
fn probes_tell_what_is_missing() {
    let node = Node::new();
    let agent = node.start();
    let address = agent.address();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    agent.misses("no network configuration yet");
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    let answer = get("/readyz");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("no network configuration yet"), "{answer}");
    let answer = get("/readyz?verbose");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("[+] programs: in order\n"), "{answer}");
    assert!(answer.contains("[-] list: ") && answer.contains("no network configuration yet, since 20"), "{answer}");
    node.write("10-net.conflist", LIST);
    agent.becomes_ready();
    assert!(get("/readyz").starts_with("HTTP/1.1 200"));
    assert!(get("/metrics").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_taken_health_port_does_not_stop_the_work() {
    let mut node = Node::new();
    node.write("10-net.conflist", LIST);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    node.config.health = taken.local_addr().unwrap();
    let agent = node.start_ready();
    assert!(node.is_in("10-net.conflist"));
    drop(taken);
    assert_eq!(agent.address(), node.config.health, "served once the port is free");
}
