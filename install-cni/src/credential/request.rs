//! Gets a token of the plugin's own service account, and tries it out. Two requests to the API server.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use thiserror::Error;

use super::Token;
use crate::cluster::{self, ClusterError};
use crate::config::Config;
use crate::install::token::Life;
use crate::pods::thin::ThinPod;

/// How long both requests may take together.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a token is asked to live, in seconds. The API server may give another one.
const LIFE: i64 = 3600;
/// The pod that is looked at when the agent does not know its own. Whether it exists makes no difference.
const ANY_POD: &str = "istio-cni-node";
/// HTTP status of a request that the service account may not make.
const FORBIDDEN: u16 = 403;

/// Why there is no token.
#[derive(Debug, Error)]
pub(super) enum RequestError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the Role istio-cni does not allow to create tokens of service account {0}: {1}")]
    NotAllowed(String, String),
    #[error("no token of service account {0}")]
    Request(String, #[source] kube::Error),
    #[error("the API server gave no token of service account {0}")]
    Nothing(String),
    #[error("service account {0} may not read pods, so its token is of no use to the plugin: {1}")]
    Useless(String, String),
    #[error("a fresh token of service account {0} is not accepted")]
    Refused(String, #[source] kube::Error),
    #[error("no token of service account {0}: the API server took longer than {wait} s", wait = PATIENCE.as_secs())]
    Slow(String),
}

/// A token of `account` that works, and how long it lives.
pub(super) async fn token(config: &Config, account: &str) -> Result<(Token, Duration), RequestError> {
    let checked = async {
        let (token, life) = request(config, account).await?;
        check(config, account, &token).await?;
        Ok((token, life))
    };
    tokio::time::timeout(PATIENCE, checked).await.unwrap_or_else(|_| Err(RequestError::Slow(account.to_owned())))
}

async fn request(config: &Config, account: &str) -> Result<(Token, Duration), RequestError> {
    let accounts =
        Api::<ServiceAccount>::namespaced(cluster::client(&config.kubeconfig)?, &config.plugin.pod_namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(LIFE), ..TokenRequestSpec::default() };
    let wanted = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = match accounts.create_token_request(account, &PostParams::default(), &wanted).await {
        Ok(answer) => answer.status,
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
            return Err(RequestError::NotAllowed(account.to_owned(), status.message.clone()));
        }
        Err(error) => return Err(RequestError::Request(account.to_owned(), error)),
    };
    let is_one_word = |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let status = answer.unwrap_or_default();
    let token = status.token.filter(is_one_word).ok_or_else(|| RequestError::Nothing(account.to_owned()))?;
    // Of a token that says when it began, the length is known whatever our clock says.
    let length = Life::of(&token)
        .map(|life| life.length())
        .or_else(|| SystemTime::from(status.expiration_timestamp?.0).duration_since(SystemTime::now()).ok());
    let length = length.filter(|length| !length.is_zero()).ok_or_else(|| RequestError::Nothing(account.to_owned()))?;
    Ok((Token::new(token), length))
}

/// Does with the token what the plugin will do.
async fn check(config: &Config, account: &str, token: &Token) -> Result<(), RequestError> {
    let client = cluster::client_with(&config.kubeconfig, token.reveal())?;
    let name = Some(config.agent.pod_name.as_str()).filter(|name| !name.is_empty()).unwrap_or(ANY_POD);
    match Api::<ThinPod>::namespaced(client, &config.plugin.pod_namespace).get_opt(name).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
            Err(RequestError::Useless(account.to_owned(), status.message.clone()))
        }
        Err(error) => Err(RequestError::Refused(account.to_owned(), error)),
    }
}
