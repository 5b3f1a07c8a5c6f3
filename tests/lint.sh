#!/usr/bin/env bash
# Formatting, clippy, who may depend on whom, where effects live, and our scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

faults=0
fault() { echo "lint: $*" >&2; faults=1; }

cargo fmt --all --check || fault "run cargo fmt --all"
cargo clippy --locked --quiet --workspace --all-targets -- -D warnings || fault "clippy complains"

# names CRATE [OPTION...]: every package that CRATE links, itself left out.
names() {
    local crate=$1
    shift
    cargo tree --locked --quiet --target all --edges normal,build --prefix none --format '{p}' --package "$crate" "$@" |
        awk -v own="$crate" '$1 != own { print $1 }' | sort -u
}

# only CRATE "ALLOWED..." [OPTION...]: what CRATE may depend on directly.
only() {
    local crate=$1 allowed=" $2 "
    shift 2
    local name
    while read -r name; do
        [[ $allowed == *" $name "* ]] || fault "$crate is pure and must not depend on $name"
    done < <(cargo tree --locked --quiet --target all --edges normal --depth 1 --prefix none --format '{p}' \
        --package "$crate" "$@" | awk -v own="$crate" '$1 != own { print $1 }' | sort -u)
}

# never CRATE "FORBIDDEN...": what CRATE must not link, however deep.
never() {
    local crate=$1 linked name
    linked=" $(names "$crate" | tr '\n' ' ') "
    for name in $2; do
        [[ $linked != *" $name "* ]] || fault "$crate must not link $name"
    done
}

pure="serde serde_json thiserror"
only cni "$pure"
only agent-api "$pure"
only mesh "$pure agent-api iptables-rules"
only iptables-rules "$pure" --no-default-features
never istio-cni-plugin "clap tokio axum notify kube k8s-openapi rtnetlink tracing tracing-subscriber regex testkit"
never install-cni "testkit"
never iptables-rules "tokio axum notify kube tracing-subscriber testkit"

product=(crates/cni crates/mesh crates/agent-api crates/sys iptables-rules istio-cni-plugin install-cni)
sources() { git ls-files -- "${product[@]/%//src}" | grep '\.rs$'; }

# Effects: unsafe code and processes only in crates/sys; the environment only where settings are read.
while read -r file; do
    case $file in
        crates/sys/*) ;;
        *)
            ! grep -nE 'allow\(unsafe_code\)|unsafe (fn|impl|\{)' "$file" || fault "$file: unsafe code belongs into crates/sys"
            ! grep -nE 'process::(\{[^}]*)?Command|CloneFlags|\bsetns\(|\bunshare\(' "$file" ||
                fault "$file: processes and namespaces belong into crates/sys"
            ;;
    esac
    case $file in
        */args.rs | */config.rs | */cli.rs | */main.rs) ;;
        *) ! grep -nE 'env::var' "$file" || fault "$file: the environment is read in args.rs and config.rs only" ;;
    esac
done < <(sources)

git ls-files -- '*.sh' .ci/run | xargs shellcheck || fault "shellcheck complains"

[ "$faults" = 0 ] && echo "lint: clean"
exit "$faults"
