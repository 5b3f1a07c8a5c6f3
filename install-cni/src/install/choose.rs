//! Which file of the CNI directory we work on.
//!
//! Decided afresh in every pass: a name given by the user is the user's alone, and without one the first valid file is
//! taken, also when it is a new one. Nothing is written here. Called by a pass.

use std::path::{Path, PathBuf};

use super::convert::{self, Origin};
use super::directory::{Directory, OwnFiles};
use super::discover;

/// Name of the file in stand-alone mode.
pub const STANDALONE_NAME: &str = "YYY-istio-cni.conf";

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Work on this file. In stand-alone mode it need not exist.
    File(PathBuf),
    /// There is nothing to work on yet, for this reason.
    Wait(String),
}

/// Chooses among the files of `directory`, which may be missing (stand-alone mode does not look at it).
///
/// `name` is the user's file name, `chained` whether we join an existing configuration.
pub fn choose(directory: &Path, name: Option<&str>, chained: bool) -> Choice {
    if !chained {
        return Choice::File(directory.join(name.unwrap_or(STANDALONE_NAME)));
    }
    // The names below are looked up one by one, so each must be read whatever its ending: `name` is, the others have
    // one of the known ones.
    match Directory::observe(directory, name.as_slice()) {
        Ok(directory) => choose_in(&directory, name, &OwnFiles::new()),
        Err(error) => Choice::Wait(error.to_string()),
    }
}

/// As [`choose`] in chained mode, on a directory that was read already, and never one of our `own` files.
pub fn choose_in(directory: &Directory, name: Option<&str>, own: &OwnFiles) -> Choice {
    let Some(name) = name else {
        let found = discover::find(directory, own);
        return match found.valid.first() {
            Some(first) => Choice::File(directory.path.join(first)),
            None => Choice::Wait(discover::none_valid(directory, &found).to_string()),
        };
    };
    if own.contains(name) {
        return Choice::Wait(format!(
            "CNI_CONF_NAME is {name}, which is the file of our own; name the network's file instead"
        ));
    }
    let candidates = candidates(name);
    match candidates.iter().find(|candidate| directory.files.contains_key(*candidate)) {
        Some(found) => Choice::File(directory.path.join(found)),
        None => Choice::Wait(format!("{} holds none of {}", directory.path.display(), candidates.join(", "))),
    }
}

/// Name of the list that a single network's file becomes. It sorts directly behind that file. Another list that has
/// the usual name already, and is not an earlier conversion, is left alone.
pub(crate) fn list_name(directory: &Directory, name: &str, list: &str) -> String {
    let Some(stem) = name.strip_suffix(".conf") else { return format!("{name}.conflist") };
    let usual = format!("{stem}.conflist");
    let ours = |text: &str| text == list || convert::origin(text).is_some();
    match directory.files.get(&usual) {
        None => usual,
        Some(Ok(text)) if ours(&text.text) => usual,
        Some(_) => format!("{name}.conflist"),
    }
}

/// Name of the file that the conversion `name` was made from: the reverse of [`list_name`].
pub(crate) fn network_name(name: &str, origin: &Origin) -> Option<String> {
    match (origin, name.strip_suffix(".conflist")) {
        (Origin::OursAlone, _) => None,
        (Origin::Text(_), Some(stem)) if stem.ends_with(".conf") || stem.ends_with(".json") => Some(stem.to_owned()),
        (Origin::Text(_), Some(stem)) => Some(format!("{stem}.conf")),
        // Converted in place, because a runtime does not read such a name anyway.
        (Origin::Text(_), None) => Some(name.to_owned()),
    }
}

/// Names that a user's `name` may stand for: itself, what a conversion makes of it, and what that was made from.
fn candidates(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    if name.ends_with(".conf") || name.ends_with(".json") {
        names.push(format!("{name}.conflist"));
    }
    if let Some(stem) = name.strip_suffix(".conf") {
        names.push(format!("{stem}.conflist"));
    } else if let Some(stem) = name.strip_suffix(".conflist") {
        names.push(format!("{stem}.conf"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LIST: &str = r#"{"name":"n","plugins":[{"type":"bridge"}]}"#;

    fn chosen(files: &[(&str, &str)], name: Option<&str>) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        match choose(dir.path(), name, true) {
            Choice::File(path) => Some(path.file_name().unwrap().to_str().unwrap().to_owned()),
            Choice::Wait(_) => None,
        }
    }

    #[test]
    fn the_first_valid_file_in_byte_order_is_taken() {
        assert_eq!(chosen(&[("b.conflist", LIST), ("a.conflist", "{")], None).unwrap(), "b.conflist");
        assert_eq!(chosen(&[("b.conflist", LIST), ("B.conflist", LIST)], None).unwrap(), "B.conflist");
        assert_eq!(chosen(&[], None), None);
    }

    #[test]
    fn a_name_of_the_user_wins_even_if_the_file_is_not_valid() {
        let files = [("a.conflist", LIST), ("x.conflist", "[]"), ("y.conf", "{}"), ("z.file", "")];
        assert_eq!(chosen(&files, Some("x.conflist")).unwrap(), "x.conflist");
        assert_eq!(chosen(&files, Some("x.conf")).unwrap(), "x.conflist");
        assert_eq!(chosen(&files, Some("y.conflist")).unwrap(), "y.conf");
        assert_eq!(chosen(&files, Some("z.file")).unwrap(), "z.file");
        assert_eq!(chosen(&files, Some("never.conf")), None);
    }

    #[test]
    fn stand_alone_mode_looks_at_nothing() {
        let none = Path::new("/does/not/exist");
        assert_eq!(choose(none, None, false), Choice::File(none.join("YYY-istio-cni.conf")));
        assert_eq!(choose(none, Some("s.conf"), false), Choice::File(none.join("s.conf")));
    }

    #[test]
    fn the_name_of_a_conversion_leads_back_to_the_name_of_the_network() {
        let list = convert::convert(r#"{"type":"bridge"}"#, &json!({"type": "istio-cni"})).unwrap();
        let origin = convert::origin(&list).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("taken.conflist"), LIST).unwrap();
        std::fs::write(dir.path().join("earlier.conflist"), &list).unwrap();
        let directory = Directory::observe(dir.path(), &[]).unwrap();
        for (network, conversion) in [
            ("a.conf", "a.conflist"),
            ("a.json", "a.json.conflist"),
            ("taken.conf", "taken.conf.conflist"),
            ("earlier.conf", "earlier.conflist"),
        ] {
            assert_eq!(list_name(&directory, network, &list), conversion);
            assert_eq!(network_name(conversion, &origin).as_deref(), Some(network));
        }
        // Sorted where the network was: before everything that came after it.
        assert!("taken.conf" < "taken.conf.conflist" && "taken.conf.conflist" < "taken.conflist");
        assert!(
            chosen(&[("t.conf.conflist", &list), ("t.conflist", LIST)], Some("t.conf")).unwrap().starts_with("t.conf.")
        );
    }
}
