//! A client of the API server, with the agent's own service account.
//!
//! It is made from the parts that the plugin's kubeconfig is made from as well. Token and certificates are read when it
//! is made and once a minute from then on; whoever meets an error makes a new one, which has those in place by then.

use std::error::Error;

use agent_api::kubeconfig::server_url;
use kube::{Client, Config};
use thiserror::Error;

use crate::install::kubeconfig::Source;

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// Host, port or protocol are not what they should be.
    #[error("{url} is no address of an API server: {reason}")]
    Address {
        /// What they make.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Token or certificates.
    #[error("no client of the API server: {0}")]
    Client(String),
}

/// A client. To be called inside the runtime.
///
/// # Errors
/// [`ClusterError`]; the API server itself is not asked for anything.
pub fn client(source: &Source) -> Result<Client, ClusterError> {
    let mut config = config(source)?;
    config.auth_info.token_file = Some(source.token_file.display().to_string());
    connect(config)
}

/// A client that shows this token instead. To be called inside the runtime.
///
/// # Errors
/// As [`client`].
pub fn client_with(source: &Source, token: &str) -> Result<Client, ClusterError> {
    let mut config = config(source)?;
    config.auth_info.token = Some(token.to_owned().into());
    connect(config)
}

fn config(source: &Source) -> Result<Config, ClusterError> {
    let url = server_url(&source.protocol, &source.host, &source.port);
    let mut config = match url.parse() {
        Ok(address) => Config::new(address),
        Err(error) => return Err(ClusterError::Address { url, reason: format!("{error}") }),
    };
    // The file below decides, or nothing does. Without this the client loads the system's authorities first, and fails in an
    // image that has none.
    config.root_cert = Some(Vec::new());
    match &source.ca_file {
        Some(file) => config.root_cert_file = Some(file.clone()),
        None => config.accept_invalid_certs = true,
    }
    Ok(config)
}

fn connect(config: Config) -> Result<Client, ClusterError> {
    Client::try_from(config).map_err(|error| ClusterError::Client(with_sources(&error)))
}

/// An error with those that led to it, each once: the outer ones often leave out what matters.
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}
