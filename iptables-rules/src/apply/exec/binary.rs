//! The host's iptables programs: which one, what it can do, and how it is run.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sys::process::{Output, Program};
use sys::sandbox::{self, Bind};
use sys::userns::UserNamespace;

use crate::apply::backend::Programs;
use crate::apply::exec::{ExecError, Note};
use crate::model::Family;

/// A program that waits for the lock may take this long, and some work comes on top.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a program waits for the lock.
const WAIT: &str = "--wait=30";
/// From this version on `iptables-restore` takes the lock.
const LOCKS: Version = Version([1, 6, 2]);
/// From this version on the environment says where the lock file is.
const LOCK_VARIABLE: Version = Version([1, 8, 6]);
const LOCK_FILE: &str = "/run/xtables.lock";
const NAME_SERVICES: &str = "/etc/nsswitch.conf";

/// Where programs are found and how they see the host.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// Directories with programs, written like `PATH`.
    pub search: &'a OsStr,
    /// We are in a pod's network namespace but see the host's files.
    pub on_host: bool,
    /// File of the network namespace, which stands for it in locks.
    pub netns: Option<&'a Path>,
}

/// Version of iptables; all zeros when it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version(pub [u32; 3]);

/// What `--version` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kind {
    /// Its version.
    pub version: Version,
    /// It works on nf_tables, so it needs no lock.
    pub nft: bool,
}

impl Kind {
    /// Reads the line that `--version` prints. An old program has no such option and prints nothing we know.
    pub fn parse(text: &str) -> Self {
        let numbers = text.match_indices('v').find_map(|(place, _)| {
            let rest = text.get(place + 1..)?;
            let end = rest.find(|letter: char| letter != '.' && !letter.is_ascii_digit()).unwrap_or(rest.len());
            let numbers: Option<Vec<u32>> =
                rest.get(..end)?.trim_end_matches('.').split('.').map(|it| it.parse().ok()).collect();
            numbers.filter(|numbers| numbers.len() > 1)
        });
        let mut version = Version::default();
        for (place, number) in version.0.iter_mut().zip(numbers.into_iter().flatten()) {
            *place = number;
        }
        Self { version, nft: text.contains("nf_tables") }
    }

    fn takes_the_lock(self) -> bool {
        !self.nft && self.version >= LOCKS
    }

    /// The arguments that `-restore` gets.
    pub fn restore_arguments(self) -> Vec<&'static str> {
        let mut arguments = vec!["--noflush"];
        if self.takes_the_lock() {
            arguments.push(WAIT);
        }
        arguments
    }
}

/// The programs of one family.
#[derive(Debug)]
pub struct Binary<'a> {
    base: &'static str,
    kind: Option<Kind>,
    host: Host<'a>,
}

impl<'a> Binary<'a> {
    /// Finds the programs of a family.
    pub fn find(family: Family, programs: Programs, host: Host<'a>) -> Result<Self, ExecError> {
        let (legacy, plain) = match family {
            Family::V4 => ("iptables-legacy", "iptables"),
            Family::V6 => ("ip6tables-legacy", "ip6tables"),
        };
        let found = Program::find(&format!("{legacy}-restore"), host.search);
        match (found, programs) {
            (Ok(_), _) => Ok(Self { base: legacy, kind: None, host }),
            (Err(error), Programs::Legacy) => Err(error.into()),
            (Err(error), Programs::LegacyOrPlain) => {
                let mut binary = Self { base: plain, kind: None, host };
                match binary.kind() {
                    Ok(kind) if !kind.nft => Ok(binary),
                    Ok(_) => Err(ExecError::WrongFlavour { program: plain }),
                    Err(_) => Err(error.into()),
                }
            }
        }
    }

    /// Prints the rules.
    pub fn save(&self, notes: &mut Vec<Note>) -> Result<String, ExecError> {
        let program = self.program("-save")?;
        let output = self.run(&program, false, notes)?;
        if output.success() { Ok(output.stdout) } else { Err(ExecError::failed(&program.command(), &output, &[])) }
    }

    /// Carries out a text.
    pub fn restore(&mut self, text: &[String], notes: &mut Vec<Note>) -> Result<(), ExecError> {
        let kind = self.kind()?;
        let input = text.iter().fold(String::new(), |all, line| all + line + "\n");
        let mut program = self.program("-restore")?.args(kind.restore_arguments()).input(input);
        if self.host.on_host {
            // In a pod with users of its own, rules about owners are taken only from them. Reading needs no such thing.
            program = program.in_user_namespace(UserNamespace::foreign_owner(&self.namespace()));
        }
        let output = self.run(&program, kind.takes_the_lock(), notes)?;
        if output.success() { Ok(()) } else { Err(ExecError::failed(&program.command(), &output, text)) }
    }

    /// Asked of the save program: the plain one of some versions does not know the option.
    fn kind(&mut self) -> Result<Kind, ExecError> {
        if let Some(kind) = self.kind {
            return Ok(kind);
        }
        let output = self.program("-save")?.args(["--version"]).run()?;
        let known = output.success() && !output.stderr.contains("unrecognized option");
        let kind = if known { Kind::parse(&output.stdout) } else { Kind::default() };
        self.kind = Some(kind);
        Ok(kind)
    }

    /// File of the network namespace.
    fn namespace(&self) -> PathBuf {
        self.host.netns.map_or_else(own_namespace, Path::to_owned)
    }

    fn program(&self, suffix: &str) -> Result<Program, ExecError> {
        Ok(Program::find(&format!("{}{suffix}", self.base), self.host.search)?.limit(LIMIT))
    }

    fn run(&self, program: &Program, locks: bool, notes: &mut Vec<Note>) -> Result<Output, ExecError> {
        if !self.host.on_host {
            return Ok(program.run()?);
        }
        let netns = self.namespace();
        let mut binds = Vec::new();
        // Owner matches must not ask name services of the host. Without the file there are none to ask.
        if Path::new(NAME_SERVICES).exists() {
            binds.push(Bind { source: PathBuf::from("/dev/null"), target: PathBuf::from(NAME_SERVICES) });
        }
        let mut sandboxed = program.clone();
        if locks {
            // The lock is for one namespace and not for the whole host.
            if self.kind.unwrap_or_default().version >= LOCK_VARIABLE {
                sandboxed = sandboxed.only_environment("XTABLES_LOCKFILE", &netns);
            } else {
                binds.push(Bind { source: netns, target: PathBuf::from(LOCK_FILE) });
            }
        }
        match sandbox::run(&binds, || sandboxed.run()) {
            Ok(result) => Ok(result?),
            Err(error) => {
                notes.push(Note(format!("{} runs without a sandbox: {error}", program.path().display())));
                Ok(program.run()?)
            }
        }
    }
}

/// The namespace of the calling thread, by a path that other threads and processes understand.
fn own_namespace() -> PathBuf {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_else(|_| PathBuf::from("self"));
    Path::new("/proc").join(thread).join("ns/net")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_and_flavour_are_read_from_what_each_version_prints() {
        for (text, version, nft) in [
            ("iptables v1.8.7 (nf_tables)", [1, 8, 7], true),
            ("iptables v1.8.7 (legacy)", [1, 8, 7], false),
            ("iptables v1.6.0", [1, 6, 0], false),
            ("iptables v1.6.1", [1, 6, 1], false),
            ("iptables v1.4.21", [1, 4, 21], false),
            ("iptables v1.8.4 (nf_tables)", [1, 8, 4], true),
            ("iptables-save v1.8.9 (legacy)\n", [1, 8, 9], false),
            ("iptables v2.0", [2, 0, 0], false),
            ("iptables: no version", [0, 0, 0], false),
            ("v v. v1 v99999999999.1", [0, 0, 0], false),
        ] {
            assert_eq!(Kind::parse(text), Kind { version: Version(version), nft }, "{text}");
        }
    }

    #[test]
    fn restore_waits_for_the_lock_where_there_is_one() {
        for (text, waits) in [
            ("iptables v1.6.1", false),
            ("iptables v1.6.2", true),
            ("iptables v1.8.9 (legacy)", true),
            ("iptables v1.8.9 (nf_tables)", false),
            ("", false),
        ] {
            let arguments = Kind::parse(text).restore_arguments();
            assert_eq!(arguments.first(), Some(&"--noflush"), "{text}");
            assert_eq!(arguments.last() == Some(&"--wait=30"), waits, "{text}");
        }
    }
}
