//! The plugin's kubeconfig: where its parts come from and what the file should be.
//!
//! The token is never logged. The shape of the text is in `agent-api`, where the plugin reads it. Called by a pass.

use std::io;
use std::path::{Path, PathBuf};

use agent_api::kubeconfig::{Kubeconfig, ServerTrust, server_url};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sys::file::{self, Access, Content, FileError};
use thiserror::Error;

use super::journal::Put;
use super::steps::Step;
use crate::credential::Bearer;

/// Larger files are neither token nor certificates; in bytes.
const LIMIT: u64 = 1 << 20;

/// Where the parts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// `KUBERNETES_SERVICE_HOST`; empty means not set.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`; empty means not set.
    pub port: String,
    /// `KUBERNETES_SERVICE_PROTOCOL`, normally `https`.
    pub protocol: String,
    /// File with the CA certificates; `None` to skip the check of the server's certificate.
    pub ca_file: Option<PathBuf>,
    /// File with the service account token.
    pub token_file: PathBuf,
}

/// Why there is no kubeconfig. Checked in this order.
#[derive(Debug, Error)]
pub enum KubeconfigError {
    /// Not started in a pod.
    #[error("KUBERNETES_SERVICE_HOST is not set, so the API server's address is not known; is this running in a pod?")]
    NoHost,
    /// Not started in a pod.
    #[error("KUBERNETES_SERVICE_PORT is not set, so the API server's port is not known; is this running in a pod?")]
    NoPort,
    /// The CA file.
    #[error("no CA certificates of the API server: {0}")]
    Ca(FileError),
    /// The token file.
    #[error("no service account token: {0}; is automountServiceAccountToken off?")]
    Token(FileError),
    /// The token of another service account has been asked for just now.
    #[error("the plugin's token has been asked for")]
    Awaited,
    /// A token that would make another file of the kubeconfig.
    #[error("the service account token in {0} is empty or has white space inside; it is not written")]
    BadToken(PathBuf),
}

/// The text the kubeconfig should have now.
///
/// # Errors
/// [`KubeconfigError`], the first that applies.
pub fn wanted(source: &Source, bearer: &Bearer) -> Result<String, KubeconfigError> {
    if source.host.is_empty() {
        return Err(KubeconfigError::NoHost);
    }
    if source.port.is_empty() {
        return Err(KubeconfigError::NoPort);
    }
    let trust = match &source.ca_file {
        Some(path) => ServerTrust::CaData(STANDARD.encode(read(path).map_err(KubeconfigError::Ca)?)),
        None => ServerTrust::Insecure,
    };
    let token = match bearer {
        Bearer::Own => own_token(source)?,
        Bearer::Other(token) => token.reveal().to_owned(),
        Bearer::Awaited => return Err(KubeconfigError::Awaited),
    };
    let server = server_url(&source.protocol, &source.host, &source.port);
    Ok(Kubeconfig { server, trust, token }.render())
}

fn own_token(source: &Source) -> Result<String, KubeconfigError> {
    let token = read(&source.token_file).map_err(KubeconfigError::Token)?;
    let token = String::from_utf8(token).unwrap_or_default();
    // A final line break is common in hand-made secrets and would end the line of the YAML early.
    let token = token.trim_ascii();
    if token.is_empty() || token.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(KubeconfigError::BadToken(source.token_file.clone()));
    }
    Ok(token.to_owned())
}

/// The step that makes the file at `path` hold `wanted` with permission bits `mode`; `None` if it does.
pub fn plan(path: &Path, have: Option<&Content>, wanted: &str, mode: u32) -> Option<Step> {
    let access = Access::new(mode);
    let cause = match have {
        Some(content) if content.bytes != wanted.as_bytes() => "token or API server has changed",
        Some(content) if content.access.mode != access.mode => "its mode was not the wanted one",
        Some(_) => return None,
        None => "the plugin needs it",
    };
    Some(Step::write(path, wanted.as_bytes().to_vec(), access, Put::Credentials, cause))
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let missing = || FileError::Io {
        action: "read",
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "there is no such file"),
    };
    Ok(file::read(path, LIMIT)?.ok_or_else(missing)?.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(dir: &Path) -> Source {
        Source {
            host: "fd00::1".to_owned(),
            port: "443".to_owned(),
            protocol: "https".to_owned(),
            ca_file: Some(dir.join("ca.crt")),
            token_file: dir.join("token"),
        }
    }

    #[test]
    fn what_is_missing_is_told_in_the_order_in_which_one_sets_it_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = Source { host: String::new(), port: String::new(), ..source(dir.path()) };
        assert!(matches!(wanted(&source, &Bearer::Own), Err(KubeconfigError::NoHost)));
        source.host = "10.96.0.1".to_owned();
        assert!(matches!(wanted(&source, &Bearer::Own), Err(KubeconfigError::NoPort)));
        source.port = "443".to_owned();
        assert!(matches!(wanted(&source, &Bearer::Own), Err(KubeconfigError::Ca(_))));
        std::fs::write(dir.path().join("ca.crt"), "CA").unwrap();
        assert!(matches!(wanted(&source, &Bearer::Own), Err(KubeconfigError::Token(_))));
        std::fs::write(dir.path().join("token"), "t").unwrap();
        assert!(
            wanted(&source, &Bearer::Own)
                .unwrap()
                .contains("certificate-authority-data: Q0E=\n    server: https://10.96.0.1:443\n")
        );
        source.ca_file = None;
        std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
        assert!(wanted(&source, &Bearer::Own).unwrap().contains("insecure-skip-tls-verify: true"));
    }

    #[test]
    fn a_line_break_behind_the_token_does_not_break_the_yaml() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), "CA").unwrap();
        std::fs::write(dir.path().join("token"), "a.b.c\r\n").unwrap();
        assert!(wanted(&source(dir.path()), &Bearer::Own).unwrap().ends_with("    token: a.b.c\n"));
        for bad in ["", "\n", "a\nclusters: []", "a b", "a\u{7}b"] {
            std::fs::write(dir.path().join("token"), bad).unwrap();
            let error = wanted(&source(dir.path()), &Bearer::Own).unwrap_err();
            assert!(matches!(error, KubeconfigError::BadToken(_)), "{bad:?}");
            assert!(bad.is_empty() || !error.to_string().contains("clusters"), "the token is not in the message");
        }
    }

    #[test]
    fn only_a_difference_in_content_or_mode_is_written() {
        let path = Path::new("/run/kubeconfig");
        let have = Content { bytes: b"x".to_vec(), access: Access { mode: 0o600, owner: Some((0, 0)) } };
        assert_eq!(plan(path, Some(&have), "x", 0o600), None);
        assert!(plan(path, Some(&have), "y", 0o600).is_some());
        assert!(plan(path, Some(&have), "x", 0o640).is_some());
        assert!(plan(path, None, "x", 0o600).is_some());
    }
}
