//! Finds and reads the case files of a directory.
//!
//! Two layouts: one case per file (`sidecar/`, `ambient/`), or a list of cases per file and topic.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Directory: `sidecar`, `plugin`, …
    pub area: String,
    /// Kind or topic: `rules`, `decide`, …
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The case itself.
    pub data: Value,
}

/// All cases below `dir`, in a steady order.
///
/// # Errors
/// What cannot be read or is no case file.
pub fn load(dir: &Path) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for area in entries(dir)?.into_iter().filter(|path| path.is_dir()) {
        for file in entries(&area)?.into_iter().filter(|path| path.extension().is_some_and(|it| it == "json")) {
            read(&area, &file, &mut cases)?;
        }
    }
    if cases.is_empty() { Err(format!("no case files below {}", dir.display())) } else { Ok(cases) }
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut paths: Vec<PathBuf> = listed.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn read(area: &Path, file: &Path, cases: &mut Vec<Case>) -> Result<(), String> {
    let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| fault(&error))?;
    let data: Value = serde_json::from_str(&text).map_err(|error| fault(&error))?;
    let name_of = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let area = name_of(area);
    if let Some(list) = data["cases"].as_array() {
        cases.extend(list.iter().map(|case| Case {
            area: area.clone(),
            kind: name_of(file),
            name: case["name"].as_str().unwrap_or("(no name)").to_owned(),
            data: case.clone(),
        }));
        return Ok(());
    }
    let kind = data["kind"].as_str().ok_or_else(|| fault(&"it has neither `cases` nor `kind`"))?.to_owned();
    cases.push(Case { area, kind, name: name_of(file), data });
    Ok(())
}
