//! Rules by the host's iptables programs, where nf_tables is not to be used: one `-restore --noflush` per family.
//!
//! Observe, compare and change, as over netlink. What is there is read from the kernel; only if it holds anything does
//! `-save` run, and only if something differs does `-restore`. A restore text is carried out table by table, each table
//! at once; if one fails, those before it are put back. `apply` calls this when `backend` decided so.

mod binary;
mod change;

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::io;

use sys::process::{Output, ProcessError};
use sys::xtables;
use thiserror::Error;

use crate::apply::Differences;
pub use crate::apply::backend::Programs;
use crate::apply::netlink::Policy;
use crate::model::{Family, Table};
use crate::plan::Plan;
use crate::render::iptables::restore;
use crate::state::save_text::{SaveText, parse};

use binary::Binary;
pub use binary::{Host, Kind, Version};
use change::{Wanted, tables};

/// How often the rules may change under us before we give up.
const ATTEMPTS: usize = 3;

/// Something that a person may want to know although it worked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note(pub String);

impl Display for Note {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why nothing was applied.
#[derive(Debug, Error)]
pub enum ExecError {
    /// A program is missing, cannot be run or hangs.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The only program found is not the one that is needed.
    #[error("{program} works on nf_tables, which cannot be used here; install iptables-legacy")]
    WrongFlavour {
        /// Its name.
        program: &'static str,
    },
    /// A program complained.
    #[error("`{command}` ended with {ending}: {words}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Its exit code, with what iptables means by it, or signal.
        ending: String,
        /// The last lines of stderr, and the rule that they are about.
        words: String,
        /// Line of the input that it complained about, counted from 1.
        line: Option<usize>,
    },
    /// It also could not be taken back.
    #[error("{failure}. Putting the old rules back failed, too: {undo}")]
    NotUndone {
        /// The first failure.
        failure: Box<ExecError>,
        /// The second one.
        undo: Box<ExecError>,
    },
    /// The kernel does not say what it holds.
    #[error("the legacy rules of the network namespace cannot be read: {0}. The capability NET_ADMIN may be missing")]
    Tables(io::Error),
    /// Rules of ours are there that are not the wanted ones, and may not be replaced.
    #[error("rules of another configuration are in place; they were left as they are")]
    Differ(Differences),
}

impl ExecError {
    fn failed(command: &str, output: &Output, input: &[String]) -> Self {
        let problem = match output.code {
            Some(1) => " (xtables other problem)",
            Some(2) => " (xtables parameter problem)",
            Some(3) => " (xtables version problem)",
            Some(4) => " (xtables resource problem)",
            _ => "",
        };
        let line = failed_line(&output.stderr);
        let rule = line.and_then(|line| input.get(line.checked_sub(1)?)).filter(|rule| *rule != "COMMIT");
        let rule = rule.map(|rule| format!("; the line is `{rule}`")).unwrap_or_default();
        Self::Failed {
            command: command.to_owned(),
            ending: output.ending() + problem,
            words: output.last_words() + &rule,
            line,
        }
    }
}

/// `line 5 failed`, `Error occurred at line: 5`.
fn failed_line(stderr: &str) -> Option<usize> {
    let (_, rest) = stderr.rsplit_once("line")?;
    let digits = rest.trim_start_matches([':', ' ']);
    digits.get(..digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len()))?.parse().ok()
}

/// One family, as it was found.
struct Side<'a> {
    family: Family,
    wanted: Wanted<'a>,
    have: SaveText,
    differences: Vec<crate::state::Difference>,
}

/// Brings the calling thread's namespace to `plan`. Returns what differed. `known` are rules that count as ours when
/// they are found in a built-in chain, beside the wanted ones: for clean-up, where nothing is wanted.
///
/// # Errors
/// See [`ExecError`]; the rules are then as they were before, except for [`ExecError::NotUndone`].
pub fn apply(
    plan: &Plan,
    known: &Plan,
    policy: Policy,
    programs: Programs,
    host: Host<'_>,
    notes: &mut Vec<Note>,
) -> Result<Differences, ExecError> {
    let mut attempts = 1;
    loop {
        let sides = observe(plan, known, programs, host, notes)?;
        let found = differences(&sides);
        let may_replace = |side: &Side<'_>| side.differences.is_empty() || !side.wanted.finds_ours(&side.have);
        if !policy.replace && !sides.iter().all(may_replace) {
            return Err(ExecError::Differ(found));
        }
        let mut done = Vec::new();
        let Err(failure) = change(&sides, policy, programs, host, &mut done, notes) else { return Ok(found) };
        // Somebody else may have been there between our look and our change, perhaps with the same rules.
        if observe(plan, known, programs, host, notes).is_ok_and(|now| differences(&now).is_empty()) {
            return Ok(found);
        }
        let failure = undo(&done, failure, programs, host, notes);
        let moved = |now: &[Side<'_>]| now.iter().map(|side| &side.have).ne(sides.iter().map(|side| &side.have));
        let again = attempts < ATTEMPTS
            && matches!(failure, ExecError::Failed { .. })
            && observe(plan, known, programs, host, notes).is_ok_and(|now| moved(&now));
        if !again {
            return Err(failure);
        }
        attempts += 1;
    }
}

/// Looks at the calling thread's namespace and changes nothing. Returns what differs from `plan`.
///
/// # Errors
/// When the rules cannot be read.
pub fn check(plan: &Plan, programs: Programs, host: Host<'_>) -> Result<Differences, ExecError> {
    Ok(differences(&observe(plan, &Plan::default(), programs, host, &mut Vec::new())?))
}

fn differences(sides: &[Side<'_>]) -> Differences {
    let of = |side: &Side<'_>| side.differences.iter().map(|it| (side.family, it.clone())).collect::<Vec<_>>();
    sides.iter().flat_map(of).collect()
}

fn observe<'a>(
    plan: &'a Plan,
    known: &Plan,
    programs: Programs,
    host: Host<'_>,
    notes: &mut Vec<Note>,
) -> Result<Vec<Side<'a>>, ExecError> {
    let mut sides = Vec::new();
    for family in Family::BOTH {
        let wanted = Wanted::new(plan.rules(family), known.rules(family));
        let tables = xtables::tables(legacy(family)).map_err(ExecError::Tables)?;
        // Policies alone are no reason to start a program.
        let held = tables.iter().any(|table| table.rules > 0 || !table.chains.is_empty());
        let have = if held { parse(&Binary::find(family, programs, host)?.save(notes)?) } else { SaveText::default() };
        let differences = wanted.differences(&have);
        sides.push(Side { family, wanted, have, differences });
    }
    Ok(sides)
}

/// Carries out the changes of both families. `done` gets the tables that were, whether the rest succeeds or not.
fn change<'s, 'p>(
    sides: &'s [Side<'p>],
    policy: Policy,
    programs: Programs,
    host: Host<'_>,
    done: &mut Vec<(&'s Side<'p>, BTreeSet<Table>)>,
    notes: &mut Vec<Note>,
) -> Result<(), ExecError> {
    for side in sides {
        let text = text_of(side, policy);
        if text.is_empty() {
            continue;
        }
        let result = Binary::find(side.family, programs, host)?.restore(&text, notes);
        let stopped = match &result {
            Ok(()) => Some(text.len() + 1),
            Err(ExecError::Failed { line, .. }) => *line,
            Err(_) => None,
        };
        done.push((side, committed(&text, stopped)));
        result?;
    }
    Ok(())
}

/// The restore text for one family. Empty when there is nothing to do.
fn text_of(side: &Side<'_>, policy: Policy) -> Vec<String> {
    let mut tables = tables(&side.differences);
    if policy.rewrite {
        tables.extend(side.wanted.rules().iter().map(|rule| rule.table));
    }
    if tables.is_empty() {
        Vec::new()
    } else if side.wanted.finds_ours(&side.have) {
        side.wanted.replace(&side.have, &tables)
    } else {
        restore(side.wanted.rules())
    }
}

/// Tables of a text that were carried out before `line`.
fn committed(text: &[String], line: Option<usize>) -> BTreeSet<Table> {
    let mut tables = BTreeSet::new();
    let mut current = None;
    for text in text.iter().take(line.unwrap_or_default().saturating_sub(1)) {
        if let Some(name) = text.strip_prefix('*') {
            current = Table::ALL.into_iter().find(|table| table.as_str() == name.trim());
        } else if text == "COMMIT" {
            tables.extend(current);
        }
    }
    tables
}

/// Puts the tables of `done` back and returns the failure to tell.
fn undo(
    done: &[(&Side<'_>, BTreeSet<Table>)],
    failure: ExecError,
    programs: Programs,
    host: Host<'_>,
    notes: &mut Vec<Note>,
) -> ExecError {
    for (side, tables) in done.iter().rev().filter(|(_, tables)| !tables.is_empty()) {
        let put_back = || {
            let mut binary = Binary::find(side.family, programs, host)?;
            let now = parse(&binary.save(notes)?);
            binary.restore(&side.wanted.undo(&now, &side.have, tables), notes)
        };
        if let Err(error) = { put_back }() {
            return ExecError::NotUndone { failure: Box::new(failure), undo: Box::new(error) };
        }
    }
    failure
}

fn legacy(family: Family) -> xtables::Family {
    match family {
        Family::V4 => xtables::Family::V4,
        Family::V6 => xtables::Family::V6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_failed_is_found_in_what_the_tool_says() {
        for (stderr, line) in [
            ("iptables-restore: line 23 failed\n", Some(23)),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--x\"\nError occurred at line: 3\nTry `-h'.\n",
                Some(3),
            ),
            ("modprobe: FATAL\n", None),
            ("line", None),
        ] {
            assert_eq!(failed_line(stderr), line, "{stderr}");
        }
    }

    #[test]
    fn only_tables_before_the_failure_count_as_committed() {
        let text = ["* mangle", "-N X", "COMMIT", "*nat", "-N Y", "COMMIT"].map(str::to_owned);
        assert_eq!(committed(&text, Some(5)), BTreeSet::from([Table::Mangle]));
        assert_eq!(committed(&text, Some(6)), BTreeSet::from([Table::Mangle]));
        assert_eq!(committed(&text, Some(7)), BTreeSet::from([Table::Mangle, Table::Nat]));
        assert_eq!(committed(&text, Some(3)), BTreeSet::new());
        assert_eq!(committed(&text, None), BTreeSet::new());
    }

    #[test]
    fn an_exit_code_of_iptables_is_named_with_the_rule() {
        let output = Output {
            code: Some(2),
            signal: None,
            stdout: String::new(),
            stderr: "iptables-restore v1.8.9 (legacy): invalid port \"*\"\nError occurred at line: 2\n".to_owned(),
        };
        let text = ["*nat".to_owned(), "-A X --dport *".to_owned()];
        let told = ExecError::failed("iptables-legacy-restore --noflush", &output, &text).to_string();
        for part in ["exit code 2", "xtables parameter problem", "invalid port", "`-A X --dport *`"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
