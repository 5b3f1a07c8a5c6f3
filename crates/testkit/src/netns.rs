//! Network namespaces of a test's own, with programs run inside and cables between them.
//!
//! A namespace lives as long as the value. Nothing appears in `/run/netns`, so nothing is left there.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use sys::netns::Netns;

/// A network namespace with `lo` up.
pub struct Sandbox {
    netns: Netns,
    file: File,
}

/// Whether tests that need network namespaces can run here. With `REQUIRE_NETNS=1` they must: "cannot" is a failure.
///
/// # Panics
/// When they must and cannot.
pub fn available() -> bool {
    match fresh() {
        Ok(_) => true,
        Err(error) if std::env::var_os("REQUIRE_NETNS").is_some_and(|value| value == "1") => {
            panic!("REQUIRE_NETNS=1, but no network namespace can be made: {error}; run as root");
        }
        Err(error) => {
            eprintln!("skipped: no network namespace can be made: {error}");
            false
        }
    }
}

fn fresh() -> std::io::Result<File> {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    })
    .join()
    .expect("thread of a new namespace")
}

impl Sandbox {
    /// A fresh namespace.
    ///
    /// # Panics
    /// When there can be none; ask [`available`] first.
    #[must_use]
    pub fn new() -> Self {
        let file = fresh().expect("a network namespace");
        let netns = Netns::open(&path_of(&file)).expect("the namespace just made");
        let sandbox = Self { netns, file };
        sandbox.sh("ip link set lo up");
        sandbox
    }

    /// A fresh namespace with these addresses (`10.0.0.2/24`, `fd00::2/64`) on an interface `eth0` that is up.
    #[must_use]
    pub fn with_addresses(addresses: &[&str]) -> Self {
        let sandbox = Self::new();
        sandbox.sh("ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up");
        for address in addresses {
            sandbox.add_address("eth0", address);
        }
        sandbox
    }

    /// Two namespaces joined by a cable, `eth0` on both sides, with these addresses.
    #[must_use]
    pub fn pair(left: &[&str], right: &[&str]) -> (Self, Self) {
        let (a, b) = (Self::new(), Self::new());
        a.sh(&format!("ip link add eth0 type veth peer name eth0 netns {}", b.path().display()));
        for (sandbox, addresses) in [(&a, left), (&b, right)] {
            sandbox.sh("ip link set eth0 up");
            for address in addresses {
                sandbox.add_address("eth0", address);
            }
        }
        (a, b)
    }

    fn add_address(&self, interface: &str, address: &str) {
        // Without "nodad" an IPv6 address cannot be used for a second or two.
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.sh(&format!("ip addr add {address} dev {interface} {nodad}"));
    }

    /// A path that leads to the namespace while this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    /// Runs `work` inside, on a thread of its own.
    ///
    /// # Panics
    /// When `work` does.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run(work).expect("work inside a namespace")
    }

    /// Runs a shell script inside and returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn sh(&self, script: &str) -> String {
        self.feed(script, "").unwrap_or_else(|error| panic!("`{script}` failed: {error}"))
    }

    /// Runs a shell script inside with this input. Returns what it prints, or what it complains.
    ///
    /// # Errors
    /// Its stderr when it fails.
    ///
    /// # Panics
    /// When there is no shell.
    pub fn feed(&self, script: &str, input: &str) -> Result<String, String> {
        self.run(|| {
            let mut child = Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a shell");
            child.stdin.take().expect("piped stdin").write_all(input.as_bytes()).ok();
            let output = child.wait_with_output().expect("a shell that ends");
            if output.status.success() {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            } else {
                Err(String::from_utf8_lossy(&output.stderr).into_owned())
            }
        })
    }

    /// What `iptables-save` and `ip6tables-save` print, without comments and counters.
    #[must_use]
    pub fn saved_rules(&self) -> String {
        let text = self.sh("iptables-nft-save; echo '# ipv6'; ip6tables-nft-save");
        let lines = text.lines().filter(|line| !line.starts_with('#') || *line == "# ipv6");
        lines.map(|line| line.split(" [").next().unwrap_or(line)).fold(String::new(), |all, line| all + line + "\n")
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}
