//! What a call is about, and what becomes of its pod. ADD acts on the verdict, CHECK looks whether it still holds.
//!
//! What can be decided from names comes first. Only then is the agent asked, which has the pod in memory; and if it does
//! not know, the API server. So nothing that depends on the agent can hold up the agent itself, or pods we would skip
//! anyway.

use std::path::{Path, PathBuf};

use agent_api::{Answer, PluginConfig, Question, Verdict, event, paths};
use cni::error::code;
use cni::{Error, PodArgs, Request, Verb};
use mesh::{Decision, Redirect, Selectors, SkipReason, ambient, decide, decide_by_name};
use sys::netns::{Netns, NetnsError};

use crate::agent::{self, NoAnswer};
use crate::codes;
use crate::config::Environment;
use crate::http::HttpError;
use crate::log::{Level, Logger};
use crate::pod_get::{Budget, Found, read_pod};

/// What becomes of a pod.
#[derive(Debug)]
pub(crate) enum Judgement {
    /// It is left alone.
    Skip {
        /// Why, as one word.
        reason: String,
        /// The agent knows how the call ends, since it said so.
        recorded: bool,
    },
    /// Its traffic is redirected to its sidecar.
    Redirect(Box<Redirect>),
    /// It is handed to the agent.
    Ambient,
}

impl Judgement {
    fn skip(reason: SkipReason) -> Self {
        Self::Skip { reason: reason.as_str().to_owned(), recorded: false }
    }
}

/// A call about one pod.
pub(crate) struct Call<'a> {
    /// Our part of the configuration.
    pub(crate) config: PluginConfig,
    /// Whose sandbox it is.
    pub(crate) pod: PodArgs,
    /// The call.
    pub(crate) request: &'a Request,
    /// Directory with the kubeconfig, the sockets and the log.
    pub(crate) run_dir: PathBuf,
}

impl<'a> Call<'a> {
    /// Reads configuration and arguments, and lets `log` know where to write.
    ///
    /// # Errors
    /// Names what is invalid.
    pub(crate) fn read(request: &'a Request, log: &mut Logger) -> Result<Self, Error> {
        let config: PluginConfig = request.conf.decode()?;
        let run_dir = run_dir(&config);
        log.configure(&config.plugin_log_level, &run_dir);
        if log.wants(Level::Debug) {
            let keys = serde_json::Value::Object(request.conf.keys().clone());
            log.write(Level::Debug, &format!("configuration {keys}"));
            log.write(Level::Debug, &format!("previous result {}", request.conf.prev_result().unwrap_or("none")));
        }
        let pod =
            PodArgs::parse(&request.args).map_err(|error| Error::new(code::INVALID_ENVIRONMENT, error.to_string()))?;
        log.label("pod", format!("{}/{}", pod.namespace, pod.name));
        Ok(Self { config, pod, request, run_dir })
    }

    /// What is said about the pod in messages.
    pub(crate) fn name(&self) -> String {
        format!("pod {}/{}", self.pod.namespace, self.pod.name)
    }

    /// What names alone say about the pod.
    pub(crate) fn by_name(&self) -> Option<SkipReason> {
        let (config, pod) = (&self.config, &self.pod);
        decide_by_name(&pod.name, &pod.namespace, &config.pod_namespace, &config.exclude_namespaces)
    }

    /// Decides about the pod.
    ///
    /// # Errors
    /// It may be one of the mesh, and nobody could say what it is; or what it asks for cannot be done.
    pub(crate) fn judge(
        &self,
        verb: Verb,
        environment: &Environment,
        budget: &Budget,
        log: &mut Logger,
    ) -> Result<Judgement, Error> {
        let by_name = self.by_name();
        // The agent is let through whatever else is odd about the call: without it the node cannot heal.
        if by_name != Some(SkipReason::SelfAgentPod) && !environment.netns_override {
            self.refuse_own_netns()?;
        }
        if let Some(reason) = by_name {
            return Ok(Judgement::skip(reason));
        }
        match agent::ask(&self.run_dir, &self.question(verb), budget.agent) {
            Ok(answer) => {
                if let Some(judgement) = self.understood(answer, log)? {
                    log.label("source", "agent");
                    return Ok(judgement);
                }
            }
            Err(NoAnswer::Http(HttpError::Stopped(stopped))) => {
                let message = format!("{}: the agent was being asked when {stopped}; nothing was done", self.name());
                return Err(Error::new(code::TRY_AGAIN, message));
            }
            Err(error) => log.write(Level::Debug, &format!("the agent is not asked: {error}")),
        }
        log.label("source", "api-server");
        self.judge_by_api(budget, log)
    }

    /// The question that this call is to the agent.
    pub(crate) fn question(&self, verb: Verb) -> Question {
        Question {
            verb: verb.as_str().to_owned(),
            pod: self.pod.name.clone(),
            namespace: self.pod.namespace.clone(),
            uid: self.pod.uid.clone(),
            container_id: self.request.container_id.clone(),
            netns: self.request.netns.clone(),
            ifname: self.request.ifname.clone(),
            ips: self.request.conf.prev_result().map(event::addresses).unwrap_or_default(),
        }
    }

    /// What the agent's answer comes to; `None` when it does not know.
    fn understood(&self, answer: Answer, log: &mut Logger) -> Result<Option<Judgement>, Error> {
        let judgement = match answer.verdict {
            Verdict::Skip => Judgement::Skip { reason: answer.reason, recorded: answer.recorded },
            Verdict::Redirect => match Redirect::from_texts(&answer.redirection) {
                Ok(redirect) => Judgement::Redirect(Box::new(redirect)),
                Err(invalid) => {
                    let message = format!("the agent's answer cannot be used, so the pod is read: {invalid}");
                    log.write(Level::Warn, &message);
                    return Ok(None);
                }
            },
            Verdict::Refuse => return Err(Error::new(codes::INVALID_ANNOTATION, answer.message)),
            Verdict::Unknown => {
                log.write(Level::Debug, &format!("the agent does not know the pod ({}), so it is read", answer.reason));
                return Ok(None);
            }
        };
        for warning in &answer.warnings {
            log.write(Level::Warn, warning);
        }
        Ok(Some(judgement))
    }

    fn judge_by_api(&self, budget: &Budget, log: &mut Logger) -> Result<Judgement, Error> {
        // Before anything is read: what is wrong with them is wrong for every pod.
        let selectors = self.config.ambient_enabled.then(|| Selectors::compile(&self.config.enablement_selectors));
        let selectors = selectors.transpose().map_err(|invalid| {
            Error::new(code::INVALID_CONFIG, format!("{invalid}; correct AMBIENT_ENABLEMENT_SELECTOR of the agent"))
        })?;
        let kubeconfig = paths::kubeconfig(&self.run_dir);
        let name = (self.pod.namespace.as_str(), self.pod.name.as_str());
        let Found { pod, namespace_labels } =
            read_pod(&kubeconfig, name, selectors.is_some(), budget, log).map_err(|failure| failure.into_cni())?;
        if let Some(selectors) = selectors {
            match ambient::eligible(&selectors, &pod, &namespace_labels) {
                Ok(()) => return Ok(Judgement::Ambient),
                Err(reason) => log.write(Level::Debug, &format!("pod does not belong to ambient mode: {reason}")),
            }
        }
        match decide(&pod).map_err(|invalid| self.invalid(&invalid))? {
            Decision::Skip(reason) => Ok(Judgement::skip(reason)),
            Decision::Redirect(mut redirect) => {
                redirect.or_refuse(self.config.refuse_uncaptured);
                for warning in &redirect.warnings {
                    log.write(Level::Warn, &warning.to_string());
                }
                Ok(Judgement::Redirect(redirect))
            }
        }
    }

    /// The network namespace to work in. It is never the host's.
    ///
    /// # Errors
    /// It cannot be opened, or is our own.
    pub(crate) fn sandbox(&self) -> Result<Netns, Error> {
        let sandbox = Netns::open(Path::new(&self.request.netns)).map_err(|error| no_sandbox(&error))?;
        if sandbox.id() == Netns::current_id().map_err(|error| no_sandbox(&error))? {
            return Err(own_netns(&self.request.netns));
        }
        Ok(sandbox)
    }

    /// Refuses a sandbox that shares our own, the host's, network namespace. One that cannot be opened is not judged
    /// here: most pods need nothing from it.
    fn refuse_own_netns(&self) -> Result<(), Error> {
        match (Netns::id_of(Path::new(&self.request.netns)), Netns::current_id()) {
            (Ok(sandbox), Ok(own)) if sandbox == own => Err(own_netns(&self.request.netns)),
            _ => Ok(()),
        }
    }

    fn invalid(&self, invalid: &mesh::InvalidAnnotation) -> Error {
        Error::new(codes::INVALID_ANNOTATION, invalid.about(&self.pod.namespace, &self.pod.name))
    }
}

/// Directory with the kubeconfig, the sockets and the log.
pub(crate) fn run_dir(config: &PluginConfig) -> PathBuf {
    let stated = config.cni_agent_run_dir.as_str();
    PathBuf::from(if stated.is_empty() { paths::DEFAULT_RUN_DIR } else { stated })
}

/// A namespace that cannot be opened or entered.
pub(crate) fn no_sandbox(error: &NetnsError) -> Error {
    Error::new(code::INVALID_NETNS, format!("{error}; the rules of the pod cannot be set up"))
}

/// The refusal to work in our own network namespace.
fn own_netns(path: &str) -> Error {
    let message = format!(
        "CNI_NETNS {path} is the network namespace of the plugin itself, that is the host's: rules there would capture \
         the node's traffic, so nothing was done; the runtime must name the sandbox's namespace"
    );
    Error::new(code::INVALID_NETNS, message)
}
