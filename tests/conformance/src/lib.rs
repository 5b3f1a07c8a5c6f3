//! Runs the conformance cases against the product's own functions.
//!
//! The cases are data: what goes in, what must come out. A kind that is not built yet is pending; it is counted apart
//! and never as passed.

pub mod cases;
pub mod sidecar;
