//! Container images made from files: one layer, no base, the same bytes for the same input.
//!
//! Writes an OCI layout as a tar archive, which `ctr images import` reads. The layer is not compressed: the archive
//! travels from one folder to the next. Symbolic links are followed; the image holds what they point at.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use ring::digest::{Context, SHA256};
use serde_json::json;
use tar::{Builder, EntryType, Header};
use thiserror::Error;

/// An image that could not be made.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A file could not be read or written.
    #[error("{what} {path}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// `ldd` did not say which libraries a program needs.
    #[error("ldd {program}: {reason}")]
    Libraries {
        /// The program.
        program: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// What goes into an image.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Reference, for example `local.test/pause:1`.
    pub reference: String,
    /// Source file and absolute path in the image; all of them executable.
    pub files: Vec<(PathBuf, String)>,
    /// Entry point.
    pub entrypoint: Vec<String>,
}

impl Image {
    /// An image whose entry point is its first file.
    pub fn of(reference: &str, files: &[(&Path, &str)]) -> Self {
        let files: Vec<_> = files.iter().map(|(from, to)| (from.to_path_buf(), (*to).to_owned())).collect();
        let entrypoint = files.first().map(|(_, to)| to.clone()).into_iter().collect();
        Self { reference: reference.to_owned(), files, entrypoint }
    }

    /// Adds the loader and the shared libraries `program` needs, at the paths where it looks for them.
    ///
    /// # Errors
    /// [`ImageError::Libraries`] when `ldd` cannot tell.
    pub fn with_libraries_of(mut self, program: &Path) -> Result<Self, ImageError> {
        let failed = |reason: String| ImageError::Libraries { program: program.to_owned(), reason };
        let output = Command::new("ldd").arg(program).output().map_err(|e| failed(e.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let libraries = libraries(&text);
        if libraries.is_empty() {
            return Err(failed(format!("{text}{}", String::from_utf8_lossy(&output.stderr))));
        }
        self.files.extend(libraries.into_iter().map(|path| (PathBuf::from(&path), path)));
        Ok(self)
    }

    /// Writes the image to `archive`.
    ///
    /// # Errors
    /// [`ImageError::File`] names the file that failed.
    pub fn write(&self, archive: &Path) -> Result<(), ImageError> {
        let layer_path = archive.with_extension("layer");
        let written = |source| ImageError::File { what: "write", path: layer_path.clone(), source };
        {
            let mut layer = Builder::new(File::create(&layer_path).map_err(written)?);
            self.fill(&mut layer)?;
            layer.into_inner().and_then(|mut file| file.flush()).map_err(written)?;
        }
        let result = self.assemble(&layer_path, archive);
        // The layer is now inside the archive.
        drop(std::fs::remove_file(&layer_path));
        result.map_err(|source| ImageError::File { what: "write", path: archive.to_owned(), source })
    }

    fn fill(&self, layer: &mut Builder<File>) -> Result<(), ImageError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ImageError::File { what: "add to the image", path, source }
        };
        for directory in self.directories() {
            let header = header(EntryType::Directory, 0);
            add(layer, header, &directory, io::empty()).map_err(failed(Path::new(&directory)))?;
        }
        for (from, to) in &self.files {
            let file = File::open(from).map_err(failed(from))?;
            let size = file.metadata().map_err(failed(from))?.len();
            add(layer, header(EntryType::Regular, size), to, file).map_err(failed(from))?;
        }
        Ok(())
    }

    /// Every directory above a file, parents first.
    fn directories(&self) -> BTreeSet<String> {
        let parents = self.files.iter().flat_map(|(_, to)| Path::new(to).ancestors().skip(1));
        parents.filter_map(Path::to_str).filter(|path| *path != "/" && !path.is_empty()).map(str::to_owned).collect()
    }

    fn assemble(&self, layer_path: &Path, archive: &Path) -> io::Result<()> {
        let mut layer = File::open(layer_path)?;
        let layer_size = layer.metadata()?.len();
        let layer_digest = digest(&mut layer)?;
        let config = json!({
            "architecture": architecture(), "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/local/bin:/bin:/"]},
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        })
        .to_string();
        let config_digest = digest(&mut config.as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": config_digest, "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": layer_digest, "size": layer_size}],
        })
        .to_string();
        let manifest_digest = digest(&mut manifest.as_bytes())?;
        let tag = self.reference.rsplit(':').next().unwrap_or("latest");
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": manifest_digest, "size": manifest.len(),
                "annotations": {"io.containerd.image.name": self.reference, "org.opencontainers.image.ref.name": tag}}],
        })
        .to_string();

        let mut out = Builder::new(File::create(archive)?);
        let mut small = |path: &str, content: &str| {
            add(&mut out, header(EntryType::Regular, content.len() as u64), path, Cursor::new(content.as_bytes()))
        };
        small("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        small("index.json", &index)?;
        small(&blob(&manifest_digest), &manifest)?;
        small(&blob(&config_digest), &config)?;
        let layer = File::open(layer_path)?;
        add(&mut out, header(EntryType::Regular, layer_size), &blob(&layer_digest), layer)?;
        out.into_inner()?.flush()
    }
}

/// This machine's architecture as image configurations spell it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Absolute paths in the output of `ldd`: the loader and the libraries, not the kernel's page.
fn libraries(ldd: &str) -> BTreeSet<String> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    ldd.lines().filter_map(path).collect()
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// A header that depends on the content only: no owner, no time of this machine.
fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn add<W: Write>(archive: &mut Builder<W>, mut header: Header, path: &str, content: impl Read) -> io::Result<()> {
    archive.append_data(&mut header, path.trim_start_matches('/'), content)
}

fn digest(content: &mut impl Read) -> io::Result<String> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = content.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        context.update(buffer.get(..read).unwrap_or_default());
    }
    let hex: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_make_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, "#!/bin/false\n").unwrap();
        let image = Image::of("local.test/program:1", &[(&program, "/usr/bin/program")]);
        let write = |name: &str| {
            let archive = folder.path().join(name);
            image.write(&archive).unwrap();
            std::fs::read(archive).unwrap()
        };
        assert_eq!(write("a.tar"), write("b.tar"));
        let mut names = std::fs::read_dir(folder.path()).unwrap().count();
        names -= 1;
        assert_eq!(names, 2, "only the archives are left");
    }

    #[test]
    fn every_blob_is_named_by_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, vec![7; 70_000]).unwrap();
        let archive = folder.path().join("image.tar");
        Image::of("local.test/program:1", &[(&program, "/program")]).write(&archive).unwrap();
        let mut blobs = 0;
        for entry in tar::Archive::new(File::open(archive).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            if let Some(hex) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(digest(&mut entry).unwrap(), format!("sha256:{hex}"));
                blobs += 1;
            }
        }
        assert_eq!(blobs, 3);
    }

    #[test]
    fn libraries_are_taken_from_both_forms_of_ldds_lines() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(libraries(text).into_iter().collect::<Vec<_>>(), ["/lib/x/libm.so.6", "/lib64/ld.so.2"]);
        assert!(libraries("\tnot a dynamic executable\n").is_empty());
    }
}
