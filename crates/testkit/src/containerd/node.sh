#!/bin/sh
# First process of a node that is only namespaces: prepares them, then becomes containerd.
# Called by containerd.rs inside fresh mount, PID and network namespaces: node.sh WORK_DIRECTORY
set -eu
work=$1

# What containerd, libcni, runc and iptables write to fixed places goes to memory that ends with the namespaces.
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs -o mode=0755 tmpfs /var/lib
mount -t tmpfs -o mode=0700 tmpfs "$work/containerd"
mkdir -p /run/netns
# Volumes that follow mounts of the node need a shared mount above them.
mount --make-rshared /

# shellcheck source=/dev/null
. "$work/network.sh"

exec containerd -c "$work/containerd.toml"
