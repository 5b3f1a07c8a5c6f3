//! Pods for whose removal a runtime will still call our plugin.
//!
//! CNI's library keeps the list that a pod's network was set up with. CRI-O takes the list from there when it takes the
//! network down, so that without the plugin such pods would hang in Terminating; containerd takes the current one. The
//! directory is only there if it is mounted. Called by uninstall.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use sys::file;

use super::edit;

/// A larger file is not one of the library's; in bytes.
const LIMIT: u64 = 4 << 20;

/// What the library keeps about one attachment, as far as it matters here.
#[derive(Deserialize)]
struct Kept {
    /// The list, in base64.
    #[serde(default)]
    config: String,
}

/// How many of the attachments kept in `directory` were made with our plugin.
pub fn with_our_plugin(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let files = entries.flatten().filter_map(|entry| file::read(&entry.path(), LIMIT).ok().flatten());
    files.filter(|content| names_our_plugin(&content.bytes)).count()
}

fn names_our_plugin(kept: &[u8]) -> bool {
    let list = serde_json::from_slice::<Kept>(kept).ok().and_then(|kept| STANDARD.decode(kept.config).ok());
    list.and_then(|list| String::from_utf8(list).ok()).is_some_and(|list| edit::count(&list) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attachments_that_were_made_with_our_plugin_count() {
        let kept = |list: &str| {
            format!("{{\"kind\":\"cniCacheV1\",\"config\":\"{}\",\"ifName\":\"eth0\"}}", STANDARD.encode(list))
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(with_our_plugin(&dir.path().join("none")), 0);
        for (name, text) in [
            ("n-1-eth0", kept(r#"{"name":"n","plugins":[{"type":"bridge"},{"type":"istio-cni"}]}"#)),
            ("n-2-eth0", kept(r#"{"name":"n","plugins":[{"type":"bridge"}]}"#)),
            ("n-3-eth0", "{}".to_owned()),
            ("n-4-eth0", "{\"config\":\"?\"}".to_owned()),
            ("n-5-eth0", String::new()),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        std::fs::create_dir(dir.path().join("a-directory")).unwrap();
        assert_eq!(with_our_plugin(dir.path()), 1);
    }
}
