//! Stand-ins and sandboxes for tests; never part of the product.

pub mod agent;
pub mod api;
#[cfg(feature = "node")]
pub mod containerd;
#[cfg(feature = "node")]
pub mod cri;
pub mod envoy;
pub mod flood;
mod http;
#[cfg(feature = "node")]
pub mod image;
pub mod netns;
pub mod process;
pub mod service_account;
pub mod traffic;
#[cfg(feature = "node")]
pub mod work_dir;
