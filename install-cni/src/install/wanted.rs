//! What has to be done on a node: from the settings and what was observed to a list of steps.
//!
//! Pure, so that every situation can be tested as values. Three parts, because each may be possible while another is
//! not: programs, credentials, and the CNI configuration, in the order in which they are needed. Called by a pass.

use std::time::{Duration, Instant};

use serde_json::Value;
use sys::file::FileError;

use super::binaries;
use super::choose::{Choice, choose_in};
use super::directory::{Directory, OwnFiles};
use super::discover::{self, Found, Skipped};
use super::edit::{self, EditError};
use super::hint::hint;
use super::journal::Journal;
use super::kubeconfig::{self, KubeconfigError};
use super::observe::Observed;
use super::plan::{self, PlanError};
use super::steps::Step;
use crate::config::{Config, OWNED_NAME};
use agent_api::paths;

/// How long the list in use may be half written before another file is considered.
const HALF_WRITTEN: Duration = Duration::from_secs(10);

/// Why a part is not in order, apart from the steps that are still to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Something has to appear first.
    Waiting(String),
    /// Something should work and does not.
    Failed(String),
}

/// One part of the work.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// To be done, in this order.
    pub steps: Vec<Step>,
    /// What stands in the way of the rest.
    pub obstacle: Option<Obstacle>,
}

impl Part {
    fn steps(steps: Vec<Step>) -> Self {
        Self { steps, obstacle: None }
    }

    fn waiting(reason: impl ToString) -> Self {
        Self { steps: Vec::new(), obstacle: Some(Obstacle::Waiting(reason.to_string())) }
    }

    fn failed(reason: impl ToString) -> Self {
        Self { steps: Vec::new(), obstacle: Some(Obstacle::Failed(reason.to_string())) }
    }
}

/// The CNI configuration.
#[derive(Debug, Default)]
pub struct Lists {
    /// The work.
    pub part: Part,
    /// The file that runs our plugin, once the steps are done.
    pub file: Option<String>,
    /// Not wrong, but probably not meant.
    pub concerns: Vec<String>,
    /// Files that a runtime skips.
    pub skipped: Vec<Skipped>,
}

/// What a decision about the CNI configuration rests on beside the directory.
pub struct Look<'a> {
    /// What was put where.
    pub journal: &'a Journal,
    /// Whether a directory of CNI plugins has a program of this name.
    pub has_program: &'a dyn Fn(&str) -> bool,
    /// The time.
    pub now: Instant,
}

/// What earlier looks at the CNI configuration have shown.
#[derive(Debug, Default)]
pub struct Memory {
    /// The network's file, as of the last complete look.
    pub network: Option<String>,
    half_written_since: Option<Instant>,
}

/// The image's programs, in every directory of CNI plugins.
pub fn programs(observed: &Observed) -> Part {
    let image = match &observed.image {
        Ok(image) => image,
        Err(error) => return Part::failed(error),
    };
    let mut part = Part::default();
    for target in &observed.targets {
        let (steps, errors) = binaries::plan(image, target);
        part.steps.extend(steps);
        if let (None, Some(error)) = (&part.obstacle, errors.first()) {
            part.obstacle =
                Some(Obstacle::Failed(format!("a binary cannot be installed: {}", with_hint(error, Some(error)))));
        }
    }
    part
}

/// The kubeconfig.
pub fn credentials(config: &Config, observed: &Observed) -> Part {
    let text = match &observed.credentials {
        Ok(text) => text,
        Err(error @ KubeconfigError::Awaited) => return Part::waiting(error),
        Err(error) => return Part::failed(error),
    };
    match &observed.kubeconfig {
        Ok(have) => {
            let path = paths::kubeconfig(&config.dirs.run);
            Part::steps(kubeconfig::plan(&path, have.as_ref(), text, config.kubeconfig_mode).into_iter().collect())
        }
        Err(error) => Part::failed(with_hint(error, Some(error))),
    }
}

/// The CNI configuration, once programs and credentials are there.
pub fn lists(config: &Config, directory: &Directory, look: &Look<'_>, memory: &mut Memory) -> Lists {
    let own = own_files(config, directory, look.journal);
    if !config.chained {
        let (name, text) = (config.standalone_name(), config.standalone_text());
        let part = part(plan::standalone(directory, (name, config.conf_mode), &text, &own));
        return Lists { part, file: Some(name.to_owned()), ..Lists::default() };
    }
    let found = discover::find(directory, &own);
    let mut lists = Lists { skipped: found.skipped.clone(), ..Lists::default() };
    if config.conf_name.is_none()
        && let Some(reason) = memory.half_written(&found, look.now)
    {
        lists.part = Part::waiting(reason);
        return lists;
    }
    let network = match choose_in(directory, config.conf_name.as_deref(), &own) {
        Choice::File(path) => path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned(),
        Choice::Wait(reason) => {
            lists.part = without_network(config, directory, &own, memory, reason);
            return lists;
        }
    };
    let element = Value::Object(config.element());
    match &config.owned {
        None => {
            lists.part = part(plan::chained(directory, &network, &element, &own));
            if let Some(first) = found.valid.first().filter(|first| **first < network) {
                lists.concerns.push(format!(
                    "{first} sorts before {network}, which CNI_CONF_NAME names: a runtime takes the first one, where our plugin is not"
                ));
            }
            lists.file = Some(network.clone());
        }
        Some(name) => {
            lists.part = part(plan::owned(directory, (name, config.conf_mode), &network, &element, &own));
            if let (None, Some(first)) = (&lists.part.obstacle, found.valid.first().filter(|first| *first < name)) {
                lists.part.obstacle = Some(Obstacle::Failed(format!(
                    "{first} sorts before our {name}, so a runtime takes that file and our plugin does not run; give \
                     ours a name that sorts first with ISTIO_OWNED_CNI_CONFIG_FILENAME"
                )));
            }
            lists.file = Some(name.clone());
        }
    }
    lists.concerns.extend(network_program_is_missing(config, directory, &network, look.has_program));
    memory.network = Some(network);
    lists
}

/// Names of the files in `directory` that are wholly ours: as the journal has it, as the settings say, or as they are
/// left by an installation with a file of its own whose journal is gone.
pub fn own_files(config: &Config, directory: &Directory, journal: &Journal) -> OwnFiles {
    let runs_ours = |name: &str| plan::in_use(directory, &OwnFiles::new()).any(|it| it == name);
    let mut own: OwnFiles = journal.own_files(&directory.path).map(str::to_owned).collect();
    if !config.chained {
        own.insert(config.standalone_name().to_owned());
    }
    own.retain(|name| plan::is_own(directory, name));
    match &config.owned {
        Some(name) if config.chained => own.insert(name.clone()),
        _ => runs_ours(OWNED_NAME) && plan::is_copy(directory, OWNED_NAME) && own.insert(OWNED_NAME.to_owned()),
    };
    own
}

impl Memory {
    /// The network's file that is suddenly not JSON is most likely being written, by someone who does not use rename.
    /// To move to the next file for that moment would edit two files for nothing.
    fn half_written(&mut self, found: &Found, now: Instant) -> Option<String> {
        let file = found.skipped.iter().find(|file| file.incomplete && Some(&file.name) == self.network.as_ref());
        let Some(file) = file else {
            self.half_written_since = None;
            return None;
        };
        let since = *self.half_written_since.get_or_insert(now);
        (now.saturating_duration_since(since) <= HALF_WRITTEN)
            .then(|| format!("{} is half written: {}", file.name, file.reason))
    }
}

/// A copy of a network that has gone would give pods a network that does not work. But after a reboot the network's
/// agent may only be late, and without our file pods would start outside the mesh: so only what was seen can go.
fn without_network(config: &Config, directory: &Directory, own: &OwnFiles, memory: &Memory, reason: String) -> Part {
    let gone =
        config.owned.is_some() && memory.network.as_ref().is_some_and(|network| !directory.files.contains_key(network));
    let steps = if gone { plan::drop_own(directory, own, "the network that it copies has gone") } else { Vec::new() };
    Part { steps, obstacle: Some(Obstacle::Waiting(reason)) }
}

/// A file that is not complete JSON is probably being written; everything else needs a person.
fn part(planned: Result<Vec<Step>, PlanError>) -> Part {
    match planned {
        Ok(steps) => Part::steps(steps),
        Err(error @ PlanError::Edit { source: EditError::NotJson(_), .. }) => Part::waiting(error),
        Err(error) => Part::failed(error),
    }
}

/// The surest sign that the runtime looks for plugins somewhere else than where we put ours.
fn network_program_is_missing(
    config: &Config,
    directory: &Directory,
    network: &str,
    has_program: &dyn Fn(&str) -> bool,
) -> Option<String> {
    let kind = edit::kinds(&directory.text(network)?.text)?.into_iter().next().filter(|kind| !has_program(kind))?;
    let places: Vec<_> = config.dirs.binaries_to.iter().map(|target| target.display().to_string()).collect();
    Some(format!(
        "{network} names the plugin {kind}, which is not in {}: if the runtime looks elsewhere, set the chart's cniBinDir",
        places.join(", ")
    ))
}

/// `error` with what usually helps, if that is known.
pub fn with_hint(error: &dyn std::error::Error, file: Option<&FileError>) -> String {
    match file.and_then(hint) {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
