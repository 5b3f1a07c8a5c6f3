//! The built agent, answering questions about the pods of a stand-in API server.
//!
//! It runs in a mount namespace of its own, where its service account is, and ends with its value. It has nothing to
//! install here, and says so in its log; that does not keep it from answering.

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent_api::ask::VERDICT_PATH;
use agent_api::paths::agent_socket;
use testkit::api::ApiServer;

/// Name of the node whose pods it knows.
pub const NODE: &str = "node-1";

/// Puts the service account in its place and becomes the agent.
const ENTER: &str = r#"
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
cp "$1/token" "$1/ca.crt" /run/secrets/kubernetes.io/serviceaccount/
exec "$0"
"#;

/// A running agent.
pub struct Agent(Child);

impl Agent {
    /// Starts `program` with its run directory, and waits until it knows pod `shop/web`.
    pub fn start(program: &Path, run_dir: &Path, api: &ApiServer, token: &str) -> Self {
        let account = tempfile::tempdir().expect("a directory");
        fs::write(account.path().join("token"), token).expect("a token");
        fs::write(account.path().join("ca.crt"), api.ca_pem()).expect("an authority");
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-e", "-c", ENTER])
            .args([program, account.path()])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_AGENT_RUN_DIR", run_dir)
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", api.addr().port().to_string())
            .env("NODE_NAME", NODE)
            .env("MONITORING_PORT", "0")
            .env("AMBIENT_DISABLE_SAFE_UPGRADE", "true")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the agent starts");
        let agent = Self(child);
        let patience = Instant::now() + Duration::from_secs(30);
        while !ask(&agent_socket(run_dir)).is_ok_and(|answer| answer.contains(r#""verdict":"redirect""#)) {
            assert!(Instant::now() < patience, "the agent does not come to know the pods");
            std::thread::sleep(Duration::from_millis(20));
        }
        agent
    }
}

/// What it says about pod `shop/web`.
fn ask(socket: &Path) -> io::Result<String> {
    let question = r#"{"verb":"ADD","namespace":"shop","pod":"web"}"#;
    let mut stream = UnixStream::connect(socket)?;
    write!(
        stream,
        "POST {VERDICT_PATH} HTTP/1.1\r\nHost: unix\r\nContent-Length: {}\r\n\r\n{question}",
        question.len()
    )?;
    io::read_to_string(stream)
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Nothing was installed, so there is nothing to take away.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
