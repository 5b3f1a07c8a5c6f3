//! The service accounts of the stand-in API server, and the tokens they were given.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct Accounts {
    /// How long tokens live, in seconds, and whether they are accepted.
    accounts: HashMap<(String, String), (u64, bool)>,
    /// Tokens, and whether they are accepted.
    issued: HashMap<String, bool>,
}

impl Accounts {
    pub(super) fn set(&mut self, namespace: &str, name: &str, seconds: u64, accepted: bool) {
        self.accounts.insert((namespace.to_owned(), name.to_owned()), (seconds, accepted));
    }

    /// The answer to a request for a token; `None` when there is no such account.
    pub(super) fn issue(&mut self, namespace: &str, name: &str) -> Option<Value> {
        let (seconds, accepted) = *self.accounts.get(&(namespace.to_owned(), name.to_owned()))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({"iat": now, "exp": now + seconds, "jti": self.issued.len().to_string(),
            "sub": format!("system:serviceaccount:{namespace}:{name}")});
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
        self.issued.insert(token.clone(), accepted);
        Some(json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {"name": name},
            "spec": {"audiences": ["api"], "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}}))
    }

    /// Whether a token is accepted; `None` when it is none of these.
    pub(super) fn accept(&self, token: &str) -> Option<bool> {
        self.issued.get(token).copied()
    }
}
