//! A look-alike of the volume Kubernetes projects into a pod for its service account.
//!
//! As the kubelet does it: `token`, `ca.crt` and `namespace` are links to `..data/…`, `..data` is a link to a directory
//! with the time in its name, and a rotation swaps `..data` by a rename. A watch on the files themselves goes deaf.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The names in the volume.
const FILES: [&str; 3] = ["token", "ca.crt", "namespace"];

/// The volume.
#[derive(Debug)]
pub struct ServiceAccountVolume {
    directory: PathBuf,
    ca_pem: String,
    namespace: String,
    generation: u32,
}

impl ServiceAccountVolume {
    /// Creates the volume in `directory`, which is created as well.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create(directory: &Path, token: &str, ca_pem: &str, namespace: &str) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let mut volume = Self {
            directory: directory.to_owned(),
            ca_pem: ca_pem.to_owned(),
            namespace: namespace.to_owned(),
            generation: 0,
        };
        volume.rotate(token)?;
        for name in FILES {
            symlink(Path::new("..data").join(name), directory.join(name))?;
        }
        Ok(volume)
    }

    /// The directory to mount.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Puts a new token in place, all three files at once.
    ///
    /// # Errors
    /// When a file cannot be written; the old token is then still there.
    pub fn rotate(&mut self, token: &str) -> io::Result<()> {
        let name = |generation: u32| format!("..2026_01_01_00_00_00.{generation:09}");
        let (old, new) = (name(self.generation), name(self.generation + 1));
        let data = self.directory.join(&new);
        fs::create_dir(&data)?;
        for (file, content) in FILES.iter().zip([token, &self.ca_pem, &self.namespace]) {
            let path = data.join(file);
            fs::write(&path, content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        }
        let link = self.directory.join("..data_tmp");
        symlink(&new, &link)?;
        fs::rename(&link, self.directory.join("..data"))?;
        self.generation += 1;
        match fs::remove_dir_all(self.directory.join(old)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_rotation_only_the_new_token_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut volume = ServiceAccountVolume::create(folder.path(), "one", "CA", "istio-system").unwrap();
        let token = || fs::read_to_string(folder.path().join("token")).unwrap();
        assert_eq!(token(), "one");
        volume.rotate("two").unwrap();
        assert_eq!(token(), "two");
        assert_eq!(fs::read_to_string(folder.path().join("namespace")).unwrap(), "istio-system");
        // Three links, `..data`, and one directory of data.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    }
}
