//! Starts other programs: the only place in the product that does.
//!
//! A program is found in a list of directories, gets its arguments, its input and, where asked, an environment of its
//! own. Its output is captured. What it says and how it ends comes back as a value; what an exit code means is up to
//! the caller. Namespaces are those of the calling thread.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::userns::UserNamespace;

/// How many of the last lines of stderr an error repeats.
const LAST_LINES: usize = 5;
const ANY_EXECUTE: u32 = 0o111;
/// Directories that are searched when nobody names any, as `PATH` lists them.
pub const DEFAULT_SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program did not do what it should.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// No directory has it.
    #[error("program {program} is not in any of {searched}; install it, or correct PATH")]
    NotFound {
        /// Its name.
        program: String,
        /// The directories, separated by colons.
        searched: String,
    },
    /// It could not be started, or spoken with.
    #[error("{program} cannot be run: {source}")]
    Start {
        /// Its path.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It ran for too long and was ended.
    #[error("`{command}` had not ended after {} s and was killed", .limit.as_secs())]
    Late {
        /// Program and arguments.
        command: String,
        /// The time it was given.
        limit: Duration,
    },
}

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    args: Vec<String>,
    input: String,
    environment: Option<Vec<(String, PathBuf)>>,
    users: Option<UserNamespace>,
    limit: Duration,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
}

impl Output {
    /// Whether it ended with code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// `exit code 2`, or `signal 9`.
    pub fn ending(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no exit code".to_owned(),
        }
    }

    /// The last lines of stderr, in one line.
    pub fn last_words(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let first = lines.len().saturating_sub(LAST_LINES);
        lines.get(first..).unwrap_or_default().join("; ")
    }
}

impl Program {
    /// Finds `name` in the directories of `search`, which is written like `PATH`.
    ///
    /// # Errors
    /// [`ProcessError::NotFound`] when none has an executable file of that name.
    pub fn find(name: &str, search: &OsStr) -> Result<Self, ProcessError> {
        let candidates = std::env::split_paths(search).map(|dir| dir.join(name));
        let path = candidates.into_iter().find(|path| path.is_absolute() && is_executable(path));
        let path = path.ok_or_else(|| ProcessError::NotFound {
            program: name.to_owned(),
            searched: search.to_string_lossy().into_owned(),
        })?;
        let limit = Duration::from_secs(60);
        Ok(Self { path, args: Vec::new(), input: String::new(), environment: None, users: None, limit })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.args.extend(args.into_iter().map(str::to_owned));
        self
    }

    /// What it reads on stdin.
    #[must_use]
    pub fn input(mut self, text: String) -> Self {
        self.input = text;
        self
    }

    /// Its whole environment; without this call it inherits ours.
    #[must_use]
    pub fn only_environment(mut self, name: &str, value: &Path) -> Self {
        self.environment.get_or_insert_default().push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it as root of this user namespace.
    #[must_use]
    pub fn in_user_namespace(mut self, users: Option<UserNamespace>) -> Self {
        self.users = users;
        self
    }

    /// How long it may run; a minute unless said.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Program and arguments as one would type them.
    pub fn command(&self) -> String {
        self.args.iter().fold(self.path.display().to_string(), |line, arg| line + " " + arg)
    }

    /// Runs it and waits for its end.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time. An exit code other than 0 is no error here.
    pub fn run(&self) -> Result<Output, ProcessError> {
        let failed = |source| ProcessError::Start { program: self.path.clone(), source };
        let mut command = Command::new(&self.path);
        command.args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(environment) = &self.environment {
            command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        }
        if let Some(users) = self.users.clone() {
            // SAFETY: between fork and exec it makes system calls and nothing else.
            unsafe { command.pre_exec(move || users.enter()) };
        }
        let mut child = command.spawn().map_err(failed)?;
        match self.converse(&mut child) {
            Ok(Some((status, stdout, stderr))) => {
                Ok(Output { code: status.code(), signal: status.signal(), stdout, stderr })
            }
            Ok(None) => Err(ProcessError::Late { command: self.command(), limit: self.limit }),
            Err(source) => {
                end(&mut child);
                Err(failed(source))
            }
        }
    }

    /// Feeds and listens at the same time, so that neither side can block the other. `None` when it took too long.
    fn converse(&self, child: &mut Child) -> io::Result<Option<(ExitStatus, String, String)>> {
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("a pipe is missing"));
        };
        thread::scope(|scope| {
            let (told, ended) = mpsc::channel();
            let start = |name: &str| thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024);
            // A program may end without reading everything; that is its business.
            start("stdin").spawn_scoped(scope, move || stdin.write_all(self.input.as_bytes()).ok())?;
            let errors = start("stderr").spawn_scoped(scope, move || read_all(stderr))?;
            let words = start("stdout").spawn_scoped(scope, move || {
                let text = read_all(stdout);
                // Nobody listens any more after the time limit.
                told.send(()).ok();
                text
            })?;
            let in_time = ended.recv_timeout(self.limit).is_ok();
            if !in_time {
                end(child);
            }
            let status = child.wait()?;
            let text = |result: thread::Result<String>| result.unwrap_or_default();
            let answer = (status, text(words.join()), text(errors.join()));
            Ok(in_time.then_some(answer))
        })
    }
}

/// Ends a child that is still ours to end, since nobody has waited for it yet.
fn end(child: &mut Child) {
    if child.kill().is_ok() {
        child.wait().ok();
    }
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before an error is still worth showing.
    from.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & ANY_EXECUTE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::find("sh", OsStr::new(DEFAULT_SEARCH)).unwrap().args(["-c", script])
    }

    #[test]
    fn output_input_and_exit_code_are_passed_on() {
        let output = shell("cat; echo oops >&2; exit 3").input("hello\n".to_owned()).run().unwrap();
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (Some(3), "hello\n", "oops\n"));
        assert!(!output.success());
        assert_eq!(output.ending(), "exit code 3");
    }

    #[test]
    fn much_input_beside_much_output_does_not_block() {
        let text = "0123456789abcde\n".repeat(50_000);
        let output = shell("cat; head -c 300000 /dev/zero >&2").input(text.clone()).run().unwrap();
        assert_eq!((output.stdout, output.stderr.len()), (text, 300_000));
    }

    #[test]
    fn a_program_that_does_not_read_its_input_is_no_error() {
        assert!(shell("exit 0").input("x".repeat(1_000_000)).run().unwrap().success());
    }

    #[test]
    fn an_environment_of_its_own_holds_nothing_else() {
        let program = Program::find("env", OsStr::new(DEFAULT_SEARCH)).unwrap();
        let output = program.only_environment("XTABLES_LOCKFILE", Path::new("/run/lock")).run().unwrap();
        assert_eq!(output.stdout, "XTABLES_LOCKFILE=/run/lock\n");
    }

    #[test]
    fn a_missing_program_names_the_directories_searched() {
        let error = Program::find("no-such-program", OsStr::new("/bin:/sbin")).unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("/bin:/sbin"), "{error}");
    }

    #[test]
    fn a_relative_directory_in_the_search_list_is_not_used() {
        assert!(Program::find("sh", OsStr::new("bin:.:")).is_err());
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_named() {
        let error = shell("exec sleep 600").limit(Duration::from_millis(50)).run().unwrap_err();
        assert!(matches!(&error, ProcessError::Late { command, .. } if command.contains("sleep 600")), "{error}");
    }

    #[test]
    fn the_last_lines_of_stderr_are_kept() {
        let stderr = (1..=9).map(|line| format!("line {line}\n")).collect();
        let output = Output { code: None, signal: Some(9), stdout: String::new(), stderr };
        assert_eq!(output.last_words(), "line 5; line 6; line 7; line 8; line 9");
        assert_eq!(output.ending(), "signal 9");
    }
}
