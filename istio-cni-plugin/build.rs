//! Makes the released static binary smaller, which is copied to and loaded on every node.
//!
//! A panic aborts there, so that the tables for unwinding serve nobody. Elsewhere they stay: tests unwind.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=discard-unwind.ld");
    let is = |name: &str, value: &str| var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl") {
        let directory = var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{directory}/discard-unwind.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
        println!("cargo::rustc-link-arg-bins=-Wl,-z,noseparate-code");
        // Relocations as a bitmap. The musl that comes with Rust reads it; a linker without it says so and goes on.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
