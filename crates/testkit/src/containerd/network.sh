# shellcheck shell=sh
# The network of a node: the API server's address on it, and a machine outside the cluster. To be sourced inside fresh
# mount and network namespaces, with an empty /run/netns.

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
