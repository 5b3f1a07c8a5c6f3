//! A real Envoy in a namespace, as the user that Istio's injector gives it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::envoy::{ADMIN_PORT, Interception, Served, config_for, served};
use crate::netns::Sandbox;

/// How long Envoy may take to start, and to write a line.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// User and group of the proxy.
const PROXY: u32 = 1337;

/// The Envoy that `tests/setup.sh` downloads. With `REQUIRE_ENVOY=1` it must be there.
///
/// # Panics
/// When it must be there and is not.
pub fn program() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
    let program = cache.join("istio-cni-dev/envoy");
    if program.exists() {
        return Some(program);
    }
    let required = std::env::var_os("REQUIRE_ENVOY").is_some_and(|value| value == "1");
    assert!(!required, "REQUIRE_ENVOY=1, but there is no {}; run tests/setup.sh test", program.display());
    eprintln!("skipped: there is no {}; run tests/setup.sh test", program.display());
    None
}

/// A running Envoy. It ends with the value.
pub struct Sidecar<'a> {
    sandbox: &'a Sandbox,
    child: Child,
    log: PathBuf,
}

impl<'a> Sidecar<'a> {
    /// Starts Envoy inside `sandbox` and waits until it is ready. Its files go to `directory`.
    ///
    /// # Panics
    /// When it does not start; its own words are in the message.
    pub fn start(program: &Path, interception: Interception, sandbox: &'a Sandbox, directory: &Path) -> Self {
        // In TPROXY mode Envoy needs a capability, so Istio runs it as root, but in the proxy's group.
        let (uid, gid) = match interception {
            Interception::Redirect => (PROXY, PROXY),
            Interception::Tproxy => (0, PROXY),
        };
        let [log, config, words] = ["access.log", "envoy.json", "envoy.log"].map(|name| directory.join(name));
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("a directory of ours");
        fs::write(&log, "").expect("a writable directory");
        chown(&log, Some(uid), Some(gid)).expect("root");
        fs::write(&config, config_for(interception, &log.display().to_string()).to_string()).expect("a config");
        // The proxy's user cannot walk to the program in root's home, so it gets the open file.
        let file = File::open(program).expect("Envoy's program");
        let fd = file.as_raw_fd();
        let mut command = Command::new(format!("/proc/self/fd/{fd}"));
        command.arg("-c").arg(&config).args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&words).expect("a log"));
        command.uid(uid).gid(gid).current_dir(directory);
        // SAFETY: fcntl may be called between fork and exec, and changes the child's copy of the descriptor only.
        unsafe {
            command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        };
        let child = sandbox.run(|| command.spawn()).expect("Envoy starts");
        let mut sidecar = Self { sandbox, child, log };
        let deadline = Instant::now() + PATIENCE;
        while !sidecar.admin("GET /ready").is_some_and(|answer| answer.contains("LIVE")) {
            let ended = sidecar.child.try_wait().ok().flatten();
            let words = || fs::read_to_string(&words).unwrap_or_default();
            assert!(ended.is_none(), "Envoy ended with {ended:?}: {}", words());
            assert!(Instant::now() < deadline, "Envoy is not ready: {}", words());
            std::thread::sleep(PAUSE);
        }
        sidecar
    }

    /// What Envoy served so far, once that is at least `count` connections.
    ///
    /// # Panics
    /// When there are not that many in time.
    pub fn served(&self, count: usize) -> Vec<Served> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Envoy writes its log late, unless it is asked to open it again.
            self.admin("POST /reopen_logs");
            let served = served(&fs::read_to_string(&self.log).expect("the access log"));
            if served.len() >= count {
                return served;
            }
            assert!(Instant::now() < deadline, "{count} connections expected in the access log: {served:#?}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Asks the admin interface.
    fn admin(&self, request: &str) -> Option<String> {
        self.sandbox.run(|| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, ADMIN_PORT)).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            let head = "HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0";
            write!(stream, "{request} {head}\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            Some(answer)
        })
    }
}

impl Drop for Sidecar<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
