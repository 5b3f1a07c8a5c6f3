//! The only home of effects: namespaces on threads, netlink sockets, atomic files, other programs, the clock of logs.
//!
//! Nothing here knows what a pod or a rule is. `unsafe`, namespace changes and process starts are allowed in this
//! crate and nowhere else in the product; `make lint` checks it.

pub mod arena;
pub mod capabilities;
pub mod clock;
pub mod file;
pub mod interrupt;
pub mod log;
pub mod netlink;
pub mod netns;
pub mod original_dst;
pub mod process;
pub mod sandbox;
pub mod stream;
#[cfg(all(panic = "abort", target_env = "musl"))]
mod unwind;
pub mod userns;
pub mod xtables;
