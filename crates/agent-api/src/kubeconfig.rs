//! The plugin's kubeconfig: rendered by the agent, parsed by the plugin.
//!
//! The text equals Istio's byte for byte. The plugin carries no YAML parser: it reads the four keys it needs line by
//! line, which accepts this shape in any order of keys and with or without quotes.

use thiserror::Error;

/// How the API server's certificate is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerTrust {
    /// Base64 of a PEM bundle.
    CaData(String),
    /// Not at all (`insecure-skip-tls-verify`).
    Insecure,
}

/// Where the API server is and how to log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    /// URL without a path, for example `https://10.96.0.1:443`.
    pub server: String,
    /// Trust in the server's certificate.
    pub trust: ServerTrust,
    /// Bearer token.
    pub token: String,
}

/// A kubeconfig that lacks something.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KubeconfigError {
    /// A key is absent or empty.
    #[error("kubeconfig has no {0}")]
    Missing(&'static str),
}

impl std::fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubeconfig").field("server", &self.server).field("token", &"(hidden)").finish_non_exhaustive()
    }
}

impl Kubeconfig {
    /// The text of the file.
    pub fn render(&self) -> String {
        let trust = match &self.trust {
            ServerTrust::CaData(data) => format!("certificate-authority-data: {data}"),
            ServerTrust::Insecure => "insecure-skip-tls-verify: true".to_owned(),
        };
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    {trust}\n    server: {server}\n  name: local\ncontexts:\n\
             - context:\n    cluster: local\n    user: istio-cni\n  name: istio-cni-context\n\
             current-context: istio-cni-context\nkind: Config\nusers:\n- name: istio-cni\n  user:\n    token: {token}\n",
            server = self.server,
            token = self.token,
        )
    }

    /// Reads the text of a kubeconfig with one cluster and one user.
    ///
    /// # Errors
    /// Names the first key that is missing.
    pub fn parse(text: &str) -> Result<Self, KubeconfigError> {
        let value = |key: &str| {
            text.lines().find_map(|line| {
                let rest = line.trim_start().trim_start_matches("- ").trim_start().strip_prefix(key)?;
                let value = rest.strip_prefix(':')?.trim().trim_matches(|c| c == '"' || c == '\'');
                (!value.is_empty()).then(|| value.to_owned())
            })
        };
        let server = value("server").ok_or(KubeconfigError::Missing("server"))?;
        let trust = match value("certificate-authority-data") {
            Some(data) => ServerTrust::CaData(data),
            None if value("insecure-skip-tls-verify").as_deref() == Some("true") => ServerTrust::Insecure,
            None => return Err(KubeconfigError::Missing("certificate-authority-data")),
        };
        let token = value("token").ok_or(KubeconfigError::Missing("token"))?;
        Ok(Self { server, trust, token })
    }
}

/// The server URL from the parts a pod gets in its environment. IPv6 literals are put in brackets, once.
pub fn server_url(protocol: &str, host: &str, port: &str) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.contains(':') { format!("{protocol}://[{bare}]:{port}") } else { format!("{protocol}://{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(trust: ServerTrust) -> Kubeconfig {
        Kubeconfig { server: server_url("https", "fd00::1", "443"), trust, token: "a.b.c".to_owned() }
    }

    #[test]
    fn what_is_rendered_is_parsed_back() {
        for trust in [ServerTrust::CaData("Q0E=".to_owned()), ServerTrust::Insecure] {
            let config = sample(trust);
            assert_eq!(Kubeconfig::parse(&config.render()), Ok(config));
        }
    }

    #[test]
    fn ipv6_hosts_are_bracketed_once() {
        assert_eq!(server_url("https", "fd00::1", "443"), "https://[fd00::1]:443");
        assert_eq!(server_url("https", "[fd00::1]", "443"), "https://[fd00::1]:443");
        assert_eq!(server_url("https", "api.example", "6443"), "https://api.example:6443");
    }

    #[test]
    fn a_missing_key_is_named() {
        assert_eq!(Kubeconfig::parse(""), Err(KubeconfigError::Missing("server")));
        assert_eq!(
            Kubeconfig::parse("server: https://a:1\ninsecure-skip-tls-verify: true\n"),
            Err(KubeconfigError::Missing("token"))
        );
    }

    #[test]
    fn the_token_is_not_in_debug_output() {
        assert!(!format!("{:?}", sample(ServerTrust::Insecure)).contains("a.b.c"));
    }
}
