//! One call of a plugin: from environment and stdin to stdout, stderr and an exit code.
//!
//! On stdout goes exactly one JSON document or nothing. What each verb does is the [`Plugin`]'s; what it may rely on
//! (variables present and valid, configuration decoded, version old or new enough for the verb) is checked here.

use std::io::{Cursor, Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config::NetConf;
use crate::error::{Error, code};
use crate::verb::{self, Verb};
use crate::version::Version;

/// Longest question that VERSION reads, in bytes.
const MAX_QUESTION: usize = 64 * 1024;
/// As long as configurations usually are at most, in bytes. Only this one read is needed then.
const USUAL_CONFIGURATION: usize = 16 * 1024;
/// How long VERSION waits for a requested version on stdin. It works without, so this only has to cover a runtime
/// that writes after it started us.
const VERSION_PATIENCE: Duration = Duration::from_millis(100);

/// Who the plugin is, for a person who starts it by hand.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name of the binary.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
}

/// A checked call.
#[derive(Debug, Clone)]
pub struct Request {
    /// Id of the sandbox; empty for verbs without one.
    pub container_id: String,
    /// Path of the network namespace; may be empty for DEL.
    pub netns: String,
    /// Interface in the sandbox; empty for verbs without one.
    pub ifname: String,
    /// `CNI_ARGS` as given.
    pub args: String,
    /// The configuration.
    pub conf: NetConf,
}

/// Where the configuration comes from.
pub trait Input: Read {
    /// Waits until a read would not block, at the end of the stream neither, but not for longer than `patience`.
    /// Says whether that is so.
    fn wait(&mut self, patience: Duration) -> bool;
}

impl Input for Cursor<Vec<u8>> {
    fn wait(&mut self, _patience: Duration) -> bool {
        true
    }
}

/// What a plugin does. Verbs without a method of their own succeed and do nothing.
pub trait Plugin {
    /// Sets a sandbox up and gives back the result to print.
    ///
    /// # Errors
    /// The sandbox must not start.
    fn add(&self, request: &Request) -> Result<String, Error>;

    /// Tears a sandbox down. It may be called often, late, and for sandboxes never set up.
    ///
    /// # Errors
    /// Avoid them: the runtime keeps the sandbox and tries again.
    fn del(&self, _request: &Request) -> Result<(), Error> {
        Ok(())
    }

    /// Looks whether what ADD made is still there.
    ///
    /// # Errors
    /// It is not.
    fn check(&self, _request: &Request) -> Result<(), Error> {
        Ok(())
    }

    /// Drops what belongs to no valid attachment.
    ///
    /// # Errors
    /// Some of it could not be dropped.
    fn gc(&self, _request: &Request) -> Result<(), Error> {
        Ok(())
    }

    /// Tells whether ADD could be served.
    ///
    /// # Errors
    /// [`code::NOT_AVAILABLE`] or [`code::IMPAIRED`].
    fn status(&self, _request: &Request) -> Result<(), Error> {
        Ok(())
    }
}

/// Serves one call and gives back the exit code. `env` looks a variable up.
pub fn run(
    about: About,
    env: &dyn Fn(&str) -> Option<String>,
    mut stdin: impl Input,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
    plugin: &dyn Plugin,
) -> u8 {
    let command = env(verb::COMMAND).unwrap_or_default();
    if command.is_empty() {
        // Somebody looks what this is. If nobody reads the answer, nobody misses it.
        let _ = writeln!(stderr, "CNI plugin {} {}", about.name, about.version);
        let _ = writeln!(stderr, "CNI protocol versions supported: {}", Version::listed());
        return 0;
    }
    let mut version = Version::LATEST;
    let output = serve(&command, env, &mut stdin, plugin, &mut version);
    let (text, exit) = match output {
        Ok(text) => (text, 0),
        Err(error) => (error.to_json(version), 1),
    };
    if text.is_empty() {
        return exit;
    }
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush()) {
        Ok(()) => exit,
        Err(error) => {
            let _ = writeln!(stderr, "{}: the answer cannot be written to stdout: {error}", about.name);
            1
        }
    }
}

/// The text for stdout. `version` becomes the configuration's as soon as it is known.
fn serve(
    command: &str,
    env: &dyn Fn(&str) -> Option<String>,
    stdin: &mut impl Input,
    plugin: &dyn Plugin,
    version: &mut Version,
) -> Result<String, Error> {
    let verb = Verb::parse(command).ok_or_else(|| {
        let known = Verb::ALL.map(Verb::as_str).join(", ");
        Error::new(code::INVALID_ENVIRONMENT, format!("CNI_COMMAND `{command}` is unknown; it must be one of {known}"))
    })?;
    if verb == Verb::Version {
        return Ok(version_answer(requested_version(stdin)));
    }
    let value = |name| env(name).unwrap_or_default();
    check_environment(verb, &value)?;

    let mut bytes = Vec::with_capacity(USUAL_CONFIGURATION);
    stdin.read_to_end(&mut bytes).map_err(|error| {
        Error::new(code::IO, format!("the network configuration cannot be read from stdin: {error}"))
    })?;
    let conf = NetConf::parse(&bytes)?;
    *version = conf.version();
    if conf.version() < verb.since() {
        return Err(Error::new(
            code::INCOMPATIBLE_VERSION,
            format!("{verb} needs CNI version {} or newer; the configuration has {}", verb.since(), conf.version()),
        ));
    }
    let request = Request {
        container_id: value(verb::CONTAINERID),
        netns: value(verb::NETNS),
        ifname: value(verb::IFNAME),
        args: value(verb::ARGS),
        conf,
    };
    match verb {
        Verb::Add => return plugin.add(&request),
        Verb::Del => plugin.del(&request)?,
        Verb::Check => plugin.check(&request)?,
        Verb::Gc => plugin.gc(&request)?,
        Verb::Status => plugin.status(&request)?,
        Verb::Version => {}
    }
    Ok(String::new())
}

fn check_environment(verb: Verb, value: &dyn Fn(&'static str) -> String) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(code::INVALID_ENVIRONMENT, message));
    let missing: Vec<&str> = verb.required().iter().copied().filter(|&name| value(name).is_empty()).collect();
    if !missing.is_empty() {
        return invalid(format!("required environment variables are missing: {}", missing.join(", ")));
    }
    if !verb.required().contains(&verb::CONTAINERID) {
        return Ok(());
    }
    let id = value(verb::CONTAINERID);
    if !verb::is_identifier(&id) {
        return invalid(format!(
            "CNI_CONTAINERID `{id}` is invalid: it must start with a letter or digit, then letters, digits, `_`, `.`, `-`"
        ));
    }
    let ifname = value(verb::IFNAME);
    match verb::interface_fault(&ifname) {
        Some(fault) => invalid(format!("CNI_IFNAME `{ifname}` is invalid: {fault}")),
        None => Ok(()),
    }
}

/// The version that the runtime asks with. Stdin may be absent, hold anything, or never end.
fn requested_version(stdin: &mut impl Input) -> Option<String> {
    let question = first_value(stdin)?;
    let stated = question.get("cniVersion")?.as_str()?;
    let plausible = stated.len() <= 20 && stated.split('.').count() == 3;
    (plausible && stated.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')).then(|| stated.to_owned())
}

/// The first JSON value of a stream, without waiting for what may follow it.
fn first_value(stdin: &mut impl Input) -> Option<Value> {
    let deadline = Instant::now() + VERSION_PATIENCE;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while bytes.len() < MAX_QUESTION && stdin.wait(deadline.saturating_duration_since(Instant::now())) {
        let count = stdin.read(&mut buffer).ok().filter(|&count| count > 0)?;
        bytes.extend(buffer.iter().take(count));
        match serde_json::Deserializer::from_slice(&bytes).into_iter().next() {
            Some(Ok(value)) => return Some(value),
            Some(Err(error)) if !error.is_eof() => return None,
            Some(Err(_)) | None => {}
        }
    }
    None
}

fn version_answer(requested: Option<String>) -> String {
    let own = requested.unwrap_or_else(|| Version::LATEST.as_str().to_owned());
    json!({"cniVersion": own, "supportedVersions": Version::ALL.map(Version::as_str)}).to_string()
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
