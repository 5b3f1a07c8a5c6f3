//! What runs beside the main loop: probes, metrics, the sockets, the watch on pods.
//!
//! None of it can hold the installation up or end the process: what fails is told and tried again. All of it ends with
//! the set of tasks that [`start`] returns, and the sockets go from the disk.

use std::net::SocketAddr;
use std::sync::Arc;

use agent_api::paths;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::credential::Credential;
use crate::health::{self, Health};
use crate::metrics::{self, Metrics};
use crate::pod_events::Teller;
use crate::pods::Pods;
use crate::pods::watch;
use crate::sockets::{logs, questions};
use crate::{admin, cluster};

/// Reports of uncaptured traffic that wait to be told to the API server; more than these are dropped.
const WAITING_REPORTS: usize = 64;

/// Starts everything. `bound` is told where probes and metrics are served.
pub fn start(
    config: &Arc<Config>,
    health: &Arc<Health>,
    credential: &Arc<Credential>,
    bound: impl Fn(SocketAddr) + Send + 'static,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let pods = Arc::new(Pods::default());
    let metrics = Arc::new(Metrics::new(health, paths::kubeconfig(&config.dirs.run)));
    tasks.spawn(health::serve(Arc::clone(health), config.health, bound));
    if let Some(address) = config.agent.metrics {
        tasks.spawn(metrics::serve(Arc::clone(&metrics), address));
    }

    if let Some(address) = config.agent.admin {
        tasks.spawn(admin::serve(Arc::clone(config.agent.plugin_log.levels()), address));
    }

    if let Some(account) = config.agent.plugin_service_account.clone() {
        let (config, health, credential) = (Arc::clone(config), Arc::clone(health), Arc::clone(credential));
        tasks.spawn(async move { credential.keep(&config, &account, &health).await });
    }

    let (reports, waiting) = mpsc::channel(WAITING_REPORTS);
    tasks.spawn(Teller::new(Arc::clone(config), Arc::clone(&pods)).run(waiting));
    tasks.spawn(questions::serve(Arc::clone(config), Arc::clone(&pods), Arc::clone(&metrics), Arc::clone(health)));
    tasks.spawn(logs::serve(Arc::clone(config), metrics, reports, Arc::clone(credential), Arc::clone(health)));

    if config.node_name.is_empty() {
        tracing::warn!("NODE_NAME is not set, so the pods of this node are not known; plugins ask the API server");
    } else {
        let config = Arc::clone(config);
        tasks.spawn(async move {
            let connect = || cluster::client(&config.kubeconfig).map(|api| watch::pods_of(api, &config.node_name));
            watch::keep(&pods, connect).await;
        });
    }
    tasks
}
