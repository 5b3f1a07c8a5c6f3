//! A stand-in for the agent's sockets: HTTP/1.1 on a unix socket, one answer for all, and every way to misbehave.
//!
//! It knows nothing of what is asked: [`UnixHttp`] gives the [`Reply`] it was told to give and records what came. One
//! of them stands for `agent.sock`, one for `log.sock`, one for `pluginevent.sock`. Used by plugin tests.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

pub use crate::http::Behaviour;

use crate::http::Incoming;

/// How long a connection may be silent before the server gives it up.
const IDLE: Duration = Duration::from_secs(30);

/// What every request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

/// One request as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Method, for example `POST`.
    pub method: String,
    /// Path, as sent.
    pub path: String,
    /// Body.
    pub body: Vec<u8>,
}

/// A running server. It stops when dropped, and its socket goes.
#[derive(Debug)]
pub struct UnixHttp {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    reply: Reply,
    behaviour: Behaviour,
    /// Requests since the behaviour was set.
    seen: usize,
    received: Vec<Received>,
}

impl Reply {
    /// 200 with nothing.
    pub fn empty() -> Self {
        Self { status: 200, body: Vec::new() }
    }

    /// 200 with a JSON body.
    pub fn json(body: &Value) -> Self {
        Self { status: 200, body: body.to_string().into_bytes() }
    }

    /// This status with a sentence.
    pub fn status(status: u16) -> Self {
        Self { status, body: b"as the test wants it\n".to_vec() }
    }
}

impl Received {
    /// The body as JSON; `null` when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl UnixHttp {
    /// Listens at `path`, in place of a socket that is already there. All requests get `reply` until another is set.
    ///
    /// # Errors
    /// When the socket cannot be made; its path may have at most 107 bytes.
    pub fn start(path: &Path, reply: Reply) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let state = State { reply, behaviour: Behaviour::Normal, seen: 0, received: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let stop = Arc::new(AtomicBool::new(false));
        let acceptor = {
            let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
            std::thread::Builder::new().name("unix-http".to_owned()).spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let Ok(stream) = stream else { continue };
                    let state = Arc::clone(&state);
                    // A client that gives up is part of many tests: its broken connection is nobody's error.
                    std::thread::spawn(move || drop(serve(stream, &state)));
                }
            })?
        };
        Ok(Self { path: path.to_owned(), state, stop, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What all requests get from now on.
    pub fn set_reply(&self, reply: Reply) {
        self.state().reply = reply;
    }

    /// How the reply is given from now on.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        let mut state = self.state();
        state.behaviour = behaviour;
        state.seen = 0;
    }

    /// Requests so far, oldest first. One that did not come whole is not among them.
    pub fn requests(&self) -> Vec<Received> {
        self.state().received.clone()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.state().received.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for UnixHttp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The acceptor only looks at the flag after a connection.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            drop(acceptor.join());
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut stream: UnixStream, state: &Mutex<State>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let Some(Incoming { method, path, body, .. }) = Incoming::read(&mut stream)? else { return Ok(()) };
    let (behaviour, reply) = {
        let mut state = lock(state);
        state.received.push(Received { method, path, body });
        state.seen += 1;
        let mut reply = state.reply.clone();
        if let Some(status) = state.behaviour.forced_status(state.seen) {
            reply = Reply::status(status);
        }
        (state.behaviour.clone(), reply)
    };
    behaviour.answer(&mut stream, "application/json", (reply.status, &reply.body))?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::json;

    use super::*;

    const POST: &[u8] = b"POST /log HTTP/1.1\r\nHost: x\r\ncontent-length: 6\r\n\r\n[\"a\"]\n";

    fn ask(server: &UnixHttp) -> String {
        let mut stream = UnixStream::connect(server.path()).unwrap();
        stream.write_all(POST).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn requests_are_recorded_and_answered_as_the_test_wants_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let server = UnixHttp::start(&path, Reply::json(&json!({"verdict": "skip"}))).unwrap();
        assert!(ask(&server).ends_with("\r\n\r\n{\"verdict\":\"skip\"}"));
        let received = server.requests();
        assert_eq!((received[0].method.as_str(), received[0].path.as_str()), ("POST", "/log"));
        assert_eq!(received[0].json(), json!(["a"]));
        server.set_behaviour(Behaviour::FailFirst { n: 1, status: 503 });
        assert!(ask(&server).starts_with("HTTP/1.1 503 "));
        assert!(ask(&server).starts_with("HTTP/1.1 200 "));
        server.set_behaviour(Behaviour::Close);
        assert_eq!(ask(&server), "");
        server.set_behaviour(Behaviour::Garbage);
        assert!(ask(&server).contains("not HTTP"));
        drop(server);
        assert!(!path.exists(), "the socket goes with its server");
    }
}
