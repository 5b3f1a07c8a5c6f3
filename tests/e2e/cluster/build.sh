#!/usr/bin/env bash
# Builds the parts of a one-node Kubernetes from the modules their projects publish.
#
#   tests/e2e/cluster/build.sh         builds what is missing and prints the directory
#   tests/e2e/cluster/build.sh --dir   only prints the directory
#
# Each part is kept by version outside the checkout, so a part that is there costs nothing, and what was finished before
# an interruption is not done again. All of them take about 20 minutes on two cores, most of it for the API server.
# Needs Go and nothing else: no C, no registry of images. Go's caches for this are removed at the end: they are 20 times
# as large as the programs.
set -euo pipefail

KUBE_VERSION=${KUBE_VERSION:-1.37.2}
ETCD_VERSION=${ETCD_VERSION:-3.6.16}
CONTAINERD_VERSION=${CONTAINERD_VERSION:-2.3.7}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/istio-cni-dev
OUT=$CACHE/kube-$KUBE_VERSION-etcd-$ETCD_VERSION-containerd-$CONTAINERD_VERSION

if [ "${1:-}" = --dir ]; then
    echo "$OUT"
    exit
fi

say() { echo "cluster: $*" >&2; }
fail() { say "$*"; exit 1; }

# go_mod MODULE VERSION REPLACED...: a go.mod that requires one module as its authors released it, with their settings.
# A released module cannot take its neighbours from folders beside it: each of these is named, and comes in the
# version of the same release.
go_mod() {
    local module=$1 version=$2 neighbours=$3 source
    source=$(cd "$scratch" && go mod download -json "$module@v$version" | sed -n 's/^\t"GoMod": "\(.*\)",\{0,1\}$/\1/p')
    [ -f "$source" ] || fail "$module has no version $version, or the network is down"
    printf 'module example.invalid/cluster\n\n'
    grep -E '^(go|godebug) ' "$source"
    printf 'require %s v%s\n' "$module" "$version"
    [ -z "$neighbours" ] ||
        sed -n 's|^\(replace \)\{0,1\}[[:space:]]*\([^ ]*\) => \./staging/.*|\2|p' "$source" |
        while read -r path; do printf 'replace %s => %s %s\n' "$path" "$path" "$neighbours"; done
}

# program PACKAGE: what the program is called. A main package at the root of a module is named by its version only.
program() {
    local name=${1##*/}
    [[ $name != v[0-9] ]] || name=etcd
    echo "$name"
}

# build MODULE VERSION NEIGHBOURS LDFLAGS PACKAGE...: the programs of one module that are not there yet
build() {
    local module=$1 version=$2 neighbours=$3 ldflags=$4 package name
    local dir=$scratch/${module//\//_}
    shift 4
    # One at a time: what is finished stays if this is interrupted.
    for package; do
        name=$(program "$package")
        [ ! -x "$OUT/$name" ] || continue
        say "building $name $version ($(date +%T))"
        [ -d "$dir" ] || { mkdir "$dir" && go_mod "$module" "$version" "$neighbours" >"$dir/go.mod"; }
        (cd "$dir" && go build -tags no_btrfs -ldflags "-s -w $ldflags" -o "$scratch/new" "$package") >&2 ||
            fail "$name $version does not build: see above"
        cp "$scratch/new" "$OUT/.$name.$$"
        mv "$OUT/.$name.$$" "$OUT/$name"
    done
}

# Without them the programs say version 0.0.0, and refuse to work with each other.
kube_version_flags() {
    local minor=${KUBE_VERSION#1.} package
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf -- '-X %s=%s ' "$package.gitVersion" "v$KUBE_VERSION" "$package.gitMajor" 1 \
            "$package.gitMinor" "${minor%%.*}" "$package.gitTreeState" clean
    done
}

PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null || fail "the parts of the cluster are built with Go, which is not there: see https://go.dev/dl"
mkdir -p "$OUT"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" "$OUT"/.*."$$"' EXIT
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-mod=mod -modcacherw -buildvcs=false'
export GOCACHE=$OUT/.go/built GOMODCACHE=$OUT/.go/modules

build go.etcd.io/etcd/server/v3 "$ETCD_VERSION" "" "" go.etcd.io/etcd/server/v3
build github.com/containerd/containerd/v2 "$CONTAINERD_VERSION" "" \
    "-X github.com/containerd/containerd/v2/version.Version=v$CONTAINERD_VERSION" \
    github.com/containerd/containerd/v2/cmd/{containerd,ctr,containerd-shim-runc-v2}
build k8s.io/kubernetes "$KUBE_VERSION" "v0.${KUBE_VERSION#1.}" "$(kube_version_flags)" \
    k8s.io/kubernetes/cmd/{kube-apiserver,kubelet,kube-controller-manager,kube-scheduler,kubectl}
rm -rf "$OUT/.go"
echo "$OUT"
