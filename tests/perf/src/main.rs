//! `perf [PEER_CNI]`: measures the built binaries beside an empty process, the iptables tools and, if given, another
//! implementation of the plugin. Everything that is compared is run in turn; medians and ratios are printed. With
//! `BENCH_ONLY=rules`, `BENCH_ONLY=plugin` or `BENCH_ONLY=agent` only that part is run.

mod agent;
mod plugin;
mod rules;
mod series;
mod soak;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    if !testkit::netns::available() {
        eprintln!("perf: the measurements need root");
        return ExitCode::FAILURE;
    }
    let bin = std::env::var_os("BENCH_BIN").map_or_else(|| PathBuf::from("bin"), PathBuf::from);
    let empty = std::env::var_os("BENCH_EMPTY").map(PathBuf::from);
    let peer = std::env::args_os().nth(1).map(PathBuf::from);
    let missing = |path: &PathBuf| !path.is_file();
    let Some(empty) = empty.filter(|path| path.is_file()) else {
        eprintln!("perf: BENCH_EMPTY names no program; use `make bench`");
        return ExitCode::FAILURE;
    };
    for path in ["istio-cni", "install-cni", "istio-iptables"].map(|name| bin.join(name)).iter().chain(&peer) {
        if missing(path) {
            eprintln!("perf: {} is not there; run `make build` first", path.display());
            return ExitCode::FAILURE;
        }
    }
    println!("binaries");
    for name in ["istio-cni", "install-cni", "istio-iptables"] {
        let size = std::fs::metadata(bin.join(name)).map_or(0, |metadata| metadata.len());
        println!("  {name:16} {size:>9} bytes");
    }
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let wanted = |part: &str| only.is_empty() || only == part;
    if wanted("rules") {
        rules::measure(&bin.join("istio-iptables"));
    }
    if wanted("plugin") {
        plugin::measure(&bin.join("istio-cni"), &bin.join("install-cni"), &empty, peer.as_deref());
    }
    if wanted("agent") && !soak::measure(&bin) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
