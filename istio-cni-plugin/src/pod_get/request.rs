//! One GET from the API server, over TLS if the kubeconfig says so, with one deadline for all of it: name, connection, TLS,
//! answer.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;
use sys::stream::Stream;

use super::url::Server;
use crate::http::{Answer, HttpError, connect_error, exchange};

/// Largest answer that is read, in bytes. The API server takes no pod that is larger than about a fifth of it.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// Asks `server` for `path`.
pub(super) fn get(
    server: &Server,
    trust: Arc<ClientConfig>,
    path: &str,
    token: &str,
    deadline: Instant,
) -> Result<Answer, HttpError> {
    let mut tcp = connect(server, deadline)?;
    let mut request = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        request,
        "GET {}{path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: istio-cni/{}\r\nAccept: application/json\r\n\
         Authorization: Bearer {token}\r\nConnection: close\r\n\r\n",
        server.prefix,
        server.authority,
        env!("CARGO_PKG_VERSION"),
    );
    if !server.tls {
        return exchange(&mut tcp, &request, MAX_ANSWER);
    }
    let name = ServerName::try_from(server.host.clone())
        .map_err(|error| HttpError::Resolve { host: server.host.clone(), reason: error.to_string() })?;
    let connection = ClientConnection::new(trust, name).map_err(HttpError::Tls)?;
    exchange(&mut StreamOwned::new(connection, tcp), &request, MAX_ANSWER)
}

fn connect(server: &Server, deadline: Instant) -> Result<Stream, HttpError> {
    let mut last = HttpError::Resolve { host: server.host.clone(), reason: "it has no address".to_owned() };
    for address in resolve(server, deadline)? {
        match Stream::tcp(address, deadline).map_err(|source| connect_error(address.to_string(), source)) {
            Err(failed @ HttpError::Connect { .. }) => last = failed,
            other => return other,
        }
    }
    Err(last)
}

/// The addresses of the server. Only a name takes a look-up, on a thread that is left behind when it takes too long.
fn resolve(server: &Server, deadline: Instant) -> Result<Vec<SocketAddr>, HttpError> {
    if let Ok(ip) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, server.port)]);
    }
    let failed = |reason: String| HttpError::Resolve { host: server.host.clone(), reason };
    let (sender, receiver) = mpsc::channel();
    let name = (server.host.clone(), server.port);
    std::thread::Builder::new()
        .name("resolve".to_owned())
        // Nobody listens any more when the time was up.
        .spawn(move || drop(sender.send(name.to_socket_addrs().map(Iterator::collect))))
        .map_err(|error| failed(error.to_string()))?;
    match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(addresses) => addresses.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed("no answer from the resolver in time".to_owned())),
    }
}
