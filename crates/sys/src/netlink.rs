//! Netlink sockets.
