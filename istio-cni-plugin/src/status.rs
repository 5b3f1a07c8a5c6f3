//! STATUS: could an ADD be served now?
//!
//! An error makes the node not ready, and then no pod starts that is not on the node's own network. If the agent is such
//! a pod, the error would keep away who could mend it. So there is one only when the agent is known to be on the node's
//! network; otherwise what is wrong goes to the log.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_api::{Kubeconfig, PluginConfig, paths};
use cni::error::code;
use cni::{Error, Request, Verb};
use sys::stream::Stream;

use crate::judge::run_dir;
use crate::log::{Level, Logger};

/// How long a socket may take to accept. The runtime asks every few seconds.
const PATIENCE: Duration = Duration::from_millis(500);

/// Serves one STATUS.
pub(crate) fn status(request: &Request) -> Result<(), Error> {
    let mut log = Logger::of(Verb::Status, request);
    let config: PluginConfig = match request.conf.decode() {
        Ok(config) => config,
        Err(error) => {
            // Who could mend it is not known either.
            log.write(Level::Warn, &error.to_string());
            return Ok(());
        }
    };
    log.configure(&config.plugin_log_level, &run_dir(&config));
    let Err(message) = served(&config) else { return Ok(()) };
    if config.agent_host_network {
        log.write(Level::Error, &message);
        return Err(Error::new(code::NOT_AVAILABLE, message));
    }
    log.write(Level::Warn, &message);
    Ok(())
}

/// Says why an ADD of a pod of the mesh could not be served.
fn served(config: &PluginConfig) -> Result<(), String> {
    let run_dir = run_dir(config);
    let accepts = |socket: &Path| Stream::unix(socket, Instant::now() + PATIENCE);
    let hint = "is the istio-cni-node pod on this node running?";
    if config.ambient_enabled {
        let socket = paths::event_socket(&run_dir);
        accepts(&socket).map_err(|error| {
            format!("pods of ambient mode cannot be enrolled: the agent's socket {}: {error}; {hint}", socket.display())
        })?;
    }
    let Err(agent) = accepts(&paths::agent_socket(&run_dir)) else { return Ok(()) };
    let path = paths::kubeconfig(&run_dir);
    let kubeconfig = fs::read_to_string(&path).map_err(|error| error.to_string());
    match kubeconfig.and_then(|text| Kubeconfig::parse(&text).map_err(|error| error.to_string())) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "pods cannot be looked up: the agent does not answer ({agent}), and its kubeconfig {} is of no use: \
             {error}; {hint}",
            path.display()
        )),
    }
}
