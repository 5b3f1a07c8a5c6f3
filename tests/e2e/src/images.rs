//! The images of the demo, and the programs in them: the agent's from `bin/`, Envoy, and our guest.

use std::path::{Path, PathBuf};

use agent_api::paths::{IPTABLES_NAME, PLUGIN_NAME};
use testkit::containerd::PAUSE_IMAGE;
use testkit::image::Image;

use crate::failure::Failure;

/// Reference of the agent's image.
pub const AGENT_IMAGE: &str = "local.test/istio-cni:1";
/// Reference of the image with the real Envoy.
pub const ENVOY_IMAGE: &str = "local.test/envoy:1";
/// Reference of the application's image.
pub const APP_IMAGE: &str = "local.test/app:1";
/// Where the application's program is in its image.
pub const APP_PROGRAM: &str = "/guest";
/// Where Envoy is in its image.
pub const ENVOY_PROGRAM: &str = "/usr/local/bin/envoy";
/// Where our guest is in the image with Envoy: it takes the command lines that Istio's injector writes.
pub const PROXY_ENTRY: &str = "/usr/local/bin/pilot-agent";
/// Where the agent is in its image.
pub const AGENT_PROGRAM: &str = "/usr/local/bin/install-cni";

/// File name of the agent.
const AGENT_NAME: &str = "install-cni";

/// The programs that go into the images.
#[derive(Debug)]
pub struct Programs {
    binaries: PathBuf,
    envoy: PathBuf,
    guest: PathBuf,
}

impl Programs {
    /// Finds the product's binaries (`DEMO_BIN`, or `bin/`), Envoy, and the guest (`DEMO_GUEST`).
    ///
    /// # Errors
    /// Says which program is missing and what makes it.
    pub fn find() -> Result<Self, Failure> {
        let in_checkout = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bin");
        let binaries = std::env::var_os("DEMO_BIN").map_or_else(in_checkout, PathBuf::from);
        for name in [PLUGIN_NAME, IPTABLES_NAME, AGENT_NAME] {
            let path = binaries.join(name);
            if !path.is_file() {
                return Failure::unexpected(format!("{} is missing: run `make build` first", path.display()));
            }
        }
        let envoy = cache_directory()?.join("istio-cni-dev/envoy");
        if !envoy.is_file() {
            let path = envoy.display();
            return Failure::unexpected(format!("{path} is missing: run `tests/setup.sh demo` first"));
        }
        Ok(Self { binaries, envoy, guest: find_guest()? })
    }

    /// Makes the images in `directory` and gives each archive with its reference to `import`.
    ///
    /// # Errors
    /// Names the image or the file.
    pub fn load(&self, directory: &Path, import: impl Fn(&Path, &str) -> Result<(), Failure>) -> Result<(), Failure> {
        let binary = |name: &str| self.binaries.join(name);
        let in_image = |name: &str| format!("/opt/cni/bin/{name}");
        let mut pause = Image::of(PAUSE_IMAGE, &[(&self.guest, "/pause")]);
        pause.entrypoint.push("pause".to_owned());
        let images = [
            pause,
            Image::of(APP_IMAGE, &[(&self.guest, APP_PROGRAM)]),
            Image::of(
                ENVOY_IMAGE,
                &[
                    (&self.guest, PROXY_ENTRY),
                    (&self.envoy, ENVOY_PROGRAM),
                    (&binary(IPTABLES_NAME), "/usr/local/bin/istio-iptables"),
                ],
            )
            .with_libraries_of(&self.envoy)?,
            Image::of(
                AGENT_IMAGE,
                &[
                    (&binary(AGENT_NAME), AGENT_PROGRAM),
                    (&binary(PLUGIN_NAME), &in_image(PLUGIN_NAME)),
                    (&binary(IPTABLES_NAME), &in_image(IPTABLES_NAME)),
                ],
            ),
        ];
        for image in &images {
            let archive = directory.join("image.tar");
            image.write(&archive)?;
            import(&archive, &image.reference)?;
            std::fs::remove_file(&archive).map_err(Failure::system("remove the image's archive"))?;
        }
        Ok(())
    }
}

/// Where `tests/setup.sh` keeps what it downloads.
fn cache_directory() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache"))) {
        Some(directory) => Ok(directory),
        None => Failure::unexpected("neither XDG_CACHE_HOME nor HOME is set"),
    }
}

/// The program for the pods: where the environment says, or beside ourselves in cargo's target directory.
fn find_guest() -> Result<PathBuf, Failure> {
    let beside = || {
        let myself = std::env::current_exe().ok()?;
        let target_dir = myself.parent()?.parent()?;
        Some(target_dir.join(format!("{}-unknown-linux-musl/release/guest", std::env::consts::ARCH)))
    };
    match std::env::var_os("DEMO_GUEST").map(PathBuf::from).or_else(beside).filter(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => Failure::unexpected("the program for the pods is missing: run `make demo`, which builds it"),
    }
}
