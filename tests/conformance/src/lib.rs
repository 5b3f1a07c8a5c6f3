//! Runs the conformance cases against the product's own functions.
//!
//! The cases are data: what goes in, what must come out. A kind that is not built yet is pending, and a case that names
//! a quirk of the reference which we leave on purpose is set aside; both are counted apart and never as passed.

pub mod ambient;
pub mod cases;
pub mod install;
pub mod logs;
pub mod native;
pub mod plugin;
mod retry;
pub mod sidecar;

use cases::Case;

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it must.
    Passed,
    /// Otherwise: what was expected and what came out.
    Failed(String),
    /// The kind is not built yet; under this heading.
    Pending(String),
    /// We differ from the reference on purpose; the name of the quirk.
    Different(String),
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Passed)
    }
}

/// Runs one case.
#[must_use]
pub fn run(case: &Case) -> Outcome {
    if let Some(quirk) = case.data["quirk"].as_str() {
        return Outcome::Different(quirk.to_owned());
    }
    match case.area.as_str() {
        "sidecar" => sidecar::run(case),
        "plugin" => plugin::run(case),
        "install" => install::run(case),
        "ambient" => ambient::run(case),
        "logs" => logs::run(case),
        _ => pending(case),
    }
}

/// The outcome of a kind that is not built yet.
fn pending(case: &Case) -> Outcome {
    Outcome::Pending(format!("{}/{}", case.area, case.kind))
}

/// Compares two values that can be shown.
fn expect<T: PartialEq + std::fmt::Debug>(what: &str, want: &T, got: &T) -> Result<(), String> {
    if want == got { Ok(()) } else { Err(format!("{what}\n  expected {want:?}\n  got      {got:?}")) }
}
