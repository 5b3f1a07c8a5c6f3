//! What the tests in `tests/` share: random settings and random rules of others. The tests need network namespaces.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod canaries;
pub mod random;
