//! Rules in other words: iptables text for people and for comparison, nf_tables expressions for the kernel.

pub mod commands;
pub mod compat;
pub mod describe;
pub mod explain;
pub mod iptables;
pub mod native;
pub mod nft;
