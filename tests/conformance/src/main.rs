//! `conformance [DIR]`: runs all cases below a directory, prints each one that fails, and ends with the numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conformance::Outcome;
use conformance::cases::load;

fn main() -> ExitCode {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let dir = std::env::args_os().nth(1).map_or_else(own, PathBuf::from);
    let cases = match load(&dir) {
        Ok(cases) => cases,
        Err(fault) => {
            eprintln!("conformance: {fault}");
            return ExitCode::FAILURE;
        }
    };
    let (mut passed, mut failed) = (0, 0);
    let (mut pending, mut different) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new());
    for case in cases {
        match conformance::run(&case) {
            Outcome::Passed => passed += 1,
            Outcome::Failed(why) => {
                failed += 1;
                println!("FAILED {}/{} {}: {why}", case.area, case.kind, case.name);
            }
            Outcome::Pending(kind) => *pending.entry(kind).or_default() += 1,
            Outcome::Different(quirk) => *different.entry(quirk).or_default() += 1,
        }
    }
    list("pending, not built yet", &pending);
    list("set aside, the reference's behaviour is left on purpose", &different);
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn list(title: &str, counts: &BTreeMap<String, usize>) {
    if !counts.is_empty() {
        println!("{title} ({}):", counts.values().sum::<usize>());
        for (name, count) in counts {
            println!("  {count:4} {name}");
        }
    }
}
