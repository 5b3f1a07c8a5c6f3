//! Atomic files.
