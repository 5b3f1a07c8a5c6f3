//! What there is before a pass decides: the image, the node's files, the credentials.
//!
//! Reads and nothing else. A part that cannot be read is no reason not to look at the others. Called by a pass.

use std::path::Path;

use agent_api::paths;
use sys::file::{self, Content, FileError};

use super::binaries::{self, Image, ImageError, Target};
use super::directory::{Directory, DirectoryError};
use super::kubeconfig::{self, KubeconfigError};
use crate::config::Config;
use crate::credential::Bearer;

/// One look at the node.
#[derive(Debug)]
pub struct Observed {
    /// What the image brings.
    pub image: Result<Image, ImageError>,
    /// What the directories of CNI plugins have of it.
    pub targets: Vec<Target>,
    /// The text that the kubeconfig should have.
    pub credentials: Result<String, KubeconfigError>,
    /// The kubeconfig.
    pub kubeconfig: Result<Option<Content>, FileError>,
}

impl Observed {
    /// Looks at the image, at what is installed of it, and at the credentials. When the programs are known to be in
    /// order they are not read, and count as none.
    pub fn look(config: &Config, bearer: &Bearer, programs_are_known: bool) -> Self {
        let dirs = &config.dirs;
        let image = if programs_are_known { Ok(Image::new()) } else { binaries::read_image(&dirs.binaries_from) };
        let targets = match &image {
            Ok(image) => dirs.binaries_to.iter().map(|target| Target::look(target, image)).collect(),
            Err(_) => Vec::new(),
        };
        let kubeconfig = file::read(&paths::kubeconfig(&dirs.run), u64::MAX);
        Self { image, targets, credentials: kubeconfig::wanted(&config.kubeconfig, bearer), kubeconfig }
    }
}

/// Looks at the CNI configuration directory.
///
/// # Errors
/// As [`Directory::observe`].
pub fn lists(config: &Config, directory: &Path) -> Result<Directory, DirectoryError> {
    let named: Vec<_> = [&config.conf_name, &config.owned].into_iter().filter_map(|name| name.as_deref()).collect();
    Directory::observe(directory, &named)
}
