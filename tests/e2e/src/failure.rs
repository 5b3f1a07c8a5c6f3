//! Why the demo ends early. The text is what a person reads last, so it names what was expected.

use std::io;

use sys::netns::NetnsError;
use testkit::containerd::ContainerdError;
use testkit::cri::CriError;
use testkit::image::ImageError;
use thiserror::Error;

/// Anything that ends the demo early.
#[derive(Debug, Error)]
pub enum Failure {
    /// A signal asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// Something is not as it must be.
    #[error("{0}")]
    Unexpected(String),
    /// A file or socket did not work.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The container runtime refused a call.
    #[error(transparent)]
    Runtime(#[from] CriError),
    /// The node could not be started or used.
    #[error(transparent)]
    Node(#[from] ContainerdError),
    /// An image could not be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

impl Failure {
    /// For `map_err` on a system error while doing `what`.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    /// An `Err` that says what is not as it must be.
    pub fn unexpected<T>(text: impl Into<String>) -> Result<T, Self> {
        Err(Self::Unexpected(text.into()))
    }
}
