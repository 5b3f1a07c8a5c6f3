//! nf_tables as the kernel speaks it over netlink: attributes, expressions, messages.
//!
//! Pure: it makes bytes and reads bytes. Numbers and layouts are those of `linux/netfilter/nf_tables.h` and the
//! `xt_*.h` headers. Sending is the work of `sys::netlink`.

pub mod expr;
pub mod message;
pub mod wire;
