//! The plugin from outside: the real binary with pipes, a run directory of its own and a stand-in API server; where
//! patience matters, the same code in this process with less of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod agent;
mod ambient;
mod api_failures;
mod call;
mod decisions;
mod input;
mod last_words;
mod log;
mod matrix;
mod rules;
mod verbs;
