//! Getting our plugin onto a node, keeping it there, and taking it off again.
//!
//! One pass looks at the node, computes what it should look like, and writes only what differs. Nothing here runs in the
//! background: the main loop calls [`pass::Installer`] when something may have changed.

pub mod attachments;
pub mod binaries;
pub mod choose;
pub mod convert;
pub mod directory;
pub mod discover;
pub mod edit;
pub mod hint;
pub mod journal;
pub mod kubeconfig;
pub mod observe;
pub mod pass;
pub mod plan;
pub mod rival;
pub mod runner;
pub mod steps;
pub mod token;
pub mod uninstall;
pub mod wanted;
