//! A stand-in Kubernetes API server over TLS: pods by name, bearer tokens, and every way to misbehave.
//!
//! It answers `GET` of pods and namespaces by name, lists and watches pods by node, takes events, and gives tokens of service
//! accounts, as Kubernetes does, `Status` objects included, and records what it was asked. Other objects can be put at a path. Used by tests of plugin
//! and agent, and by the demo.

mod accounts;
mod pods;

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

pub use crate::http::Behaviour;

use self::accounts::Accounts;
use self::pods::{Pods, Selection};
use crate::http::Incoming;

/// How long a connection may be silent before the server gives it up.
const IDLE: Duration = Duration::from_secs(30);

/// One request as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, for example `GET`.
    pub method: String,
    /// Path with query, as sent.
    pub path: String,
    /// Whether the bearer token was one of the accepted ones.
    pub authorised: bool,
    /// Body.
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A pod has changed, or watches are to end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pods: Pods,
    accounts: Accounts,
    /// Labels by name.
    namespaces: HashMap<String, Value>,
    /// By path.
    others: HashMap<String, Value>,
    /// `None` accepts every token.
    tokens: Option<Vec<String>>,
    behaviour: Behaviour,
    /// Requests since the behaviour was set.
    seen: usize,
    requests: Vec<Request>,
}

/// A running server. It stops when dropped.
pub struct ApiServer {
    addr: SocketAddr,
    ca_pem: String,
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Listens on `addr` (port 0 picks a free one) with a certificate made for it, `localhost` and both loopback
    /// addresses. Every token is accepted until [`ApiServer::set_tokens`] is called.
    ///
    /// # Errors
    /// When the address cannot be bound or the certificates cannot be made.
    pub fn start(addr: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        let (ca_pem, config) = certificates(addr).map_err(io::Error::other)?;
        let config = Arc::new(config);
        let shared = Arc::new(Shared::default());
        let stop = Arc::new(AtomicBool::new(false));
        let acceptor = {
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            std::thread::Builder::new().name("api".to_owned()).spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let Ok(stream) = stream else { continue };
                    let (config, shared) = (Arc::clone(&config), Arc::clone(&shared));
                    // A client that gives up is part of many tests: its broken connection is nobody's error.
                    std::thread::spawn(move || drop(serve(stream, config, &shared)));
                }
            })?
        };
        Ok(Self { addr, ca_pem, shared, stop, acceptor: Some(acceptor) })
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `https://` URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", self.addr)
    }

    /// The certificate to trust, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Creates or replaces a pod. Name, namespace and kind are filled in where the object lacks them.
    pub fn set_pod(&self, namespace: &str, name: &str, mut pod: Value) {
        if let Some(object) = pod.as_object_mut() {
            object.entry("apiVersion").or_insert_with(|| "v1".into());
            object.entry("kind").or_insert_with(|| "Pod".into());
            let metadata = object.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.entry("name").or_insert_with(|| name.into());
                metadata.entry("namespace").or_insert_with(|| namespace.into());
            }
        }
        self.state().pods.set(namespace, name, pod);
        self.shared.changed.notify_all();
    }

    /// Creates or replaces a namespace with these labels.
    pub fn set_namespace(&self, name: &str, labels: Value) {
        self.state().namespaces.insert(name.to_owned(), labels);
    }

    /// Creates or replaces an object that is no pod: what a GET of `path` answers.
    pub fn set_object(&self, path: &str, object: Value) {
        self.state().others.insert(path.to_owned(), object);
    }

    /// Creates or replaces a service account. Tokens of it live this long; `accepted` says whether they are any good.
    pub fn set_service_account(&self, namespace: &str, name: &str, seconds: u64, accepted: bool) {
        self.state().accounts.set(namespace, name, seconds, accepted);
    }

    /// Deletes a pod.
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        self.state().pods.remove(namespace, name);
        self.shared.changed.notify_all();
    }

    /// Breaks off all watches in the middle. With `forget`, what happened so far cannot be watched from then on, so that
    /// clients have to list anew.
    pub fn break_watches(&self, forget: bool) {
        self.state().pods.break_watches(forget);
        self.shared.changed.notify_all();
    }

    /// Accepts these bearer tokens only; others get 401.
    pub fn set_tokens(&self, tokens: &[&str]) {
        self.state().tokens = Some(tokens.iter().map(|&token| token.to_owned()).collect());
    }

    /// How requests are treated from now on.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        let mut state = self.state();
        state.behaviour = behaviour;
        state.seen = 0;
    }

    /// Requests so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.state().requests.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.break_watches(true);
        // The acceptor only looks at the flag after a connection.
        let mut wake = self.addr;
        if wake.ip().is_unspecified() {
            wake.set_ip(if wake.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
        }
        if TcpStream::connect_timeout(&wake, Duration::from_secs(1)).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            drop(acceptor.join());
        }
    }
}

/// A fresh authority, and a server set-up whose certificate it signed.
fn certificates(addr: SocketAddr) -> Result<(String, ServerConfig), Box<dyn std::error::Error + Send + Sync>> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(rcgen::DnType::CommonName, "stand-in cluster authority");
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let mut names: Vec<String> = ["localhost", "kubernetes.default.svc", "127.0.0.1", "::1"].map(str::to_owned).into();
    let own = addr.ip().to_string();
    if !addr.ip().is_unspecified() && !names.contains(&own) {
        names.push(own);
    }
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
    let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
    let private = PrivateKeyDer::try_from(key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)?;
    Ok((ca_pem, config))
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, shared: &Shared) -> io::Result<()> {
    // As Go does it: otherwise the second write of an answer waits for the client's delayed acknowledgement, 40 ms.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut tls = StreamOwned::new(connection, stream);
    let Some(incoming) = Incoming::read(&mut tls)? else { return Ok(()) };

    let (behaviour, answer) = decide(&mut shared.lock(), incoming);
    match answer {
        Answer::Whole(status, body) => {
            if !behaviour.answer(&mut tls, "application/json", (status, body.to_string().as_bytes()))? {
                return Ok(());
            }
        }
        Answer::Watch(selection) => return pods::watch(&mut tls, shared, &selection),
    }
    tls.conn.send_close_notify();
    tls.flush()
}

enum Answer {
    Whole(u16, Value),
    Watch(Selection),
}

/// Records the request and decides what it gets.
fn decide(state: &mut State, Incoming { method, path, token, body }: Incoming) -> (Behaviour, Answer) {
    let accepted = state.tokens.as_ref();
    let accounts = &state.accounts;
    let authorised = token.is_some_and(|token| {
        accounts.accept(&token).unwrap_or_else(|| accepted.is_none_or(|tokens| tokens.contains(&token)))
    });
    let request = Request { method, path, authorised, body };
    state.requests.push(request.clone());
    state.seen += 1;
    let answer = match state.behaviour.forced_status(state.seen) {
        Some(status) => Answer::Whole(status, status_object(status, "forced by the test")),
        None if !authorised => Answer::Whole(401, status_object(401, "Unauthorized")),
        None => find(state, &request),
    };
    (state.behaviour.clone(), answer)
}

fn find(state: &mut State, request: &Request) -> Answer {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (status, body) = match (request.method.as_str(), segments.as_slice()) {
        ("GET", ["api", "v1", "namespaces", namespace, "pods", name]) => match state.pods.get(namespace, name) {
            Some(pod) => (200, pod.clone()),
            None => (404, status_object(404, &format!("pods \"{name}\" not found"))),
        },
        ("GET", ["api", "v1", "pods"]) => {
            let selection = Selection::from_query(query);
            if selection.watch {
                return Answer::Watch(selection);
            }
            (200, state.pods.list(&selection))
        }
        ("POST", ["apis", "events.k8s.io", "v1", "namespaces", _, "events"]) => {
            (201, serde_json::from_slice(&request.body).unwrap_or_default())
        }
        ("POST", ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]) => {
            match state.accounts.issue(namespace, name) {
                Some(answer) => (201, answer),
                None => (404, status_object(404, &format!("serviceaccounts \"{name}\" not found"))),
            }
        }
        ("GET", ["api", "v1", "namespaces", name]) => match state.namespaces.get(*name) {
            Some(labels) => {
                let metadata = json!({"name": name, "labels": labels});
                (200, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
            }
            None => (404, status_object(404, &format!("namespaces \"{name}\" not found"))),
        },
        _ => match state.others.get(path).filter(|_| request.method == "GET") {
            Some(object) => (200, object.clone()),
            None => (404, status_object(404, "the server could not find the requested resource")),
        },
    };
    Answer::Whole(status, body)
}

/// A Kubernetes `Status` object for a failure.
fn status_object(code: u16, message: &str) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
           "message": message, "reason": reason, "code": code})
}
