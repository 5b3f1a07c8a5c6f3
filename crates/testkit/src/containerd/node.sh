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

ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
# The address where the API server of the cluster is found.
ip address add 10.96.0.1/32 dev lo

# A machine outside the cluster.
ip netns add outside
ip link add outside0 type veth peer name eth0 netns outside
ip -n outside link set lo up
ip -n outside link set eth0 up
ip link set outside0 up
ip address add 198.51.100.1/24 dev outside0
ip -n outside address add 198.51.100.10/24 dev eth0
ip -n outside route add default via 198.51.100.1
if [ -d /proc/sys/net/ipv6 ]; then
    echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6
    echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
    ip address add 2001:db8:51::1/64 dev outside0 nodad
    ip -n outside address add 2001:db8:51::10/64 dev eth0 nodad
    ip -n outside route add default via 2001:db8:51::1
fi

exec containerd -c "$work/containerd.toml"
