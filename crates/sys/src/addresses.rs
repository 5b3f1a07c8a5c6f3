//! Addresses of the interfaces in the calling thread's network namespace.

use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// All IPv4 addresses, then all IPv6 addresses, each in the kernel's order.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for storage in getifaddrs()?.filter_map(|entry| entry.address) {
        if let Some(address) = storage.as_sockaddr_in() {
            v4.push(IpAddr::V4(address.ip()));
        } else if let Some(address) = storage.as_sockaddr_in6() {
            v6.push(IpAddr::V6(address.ip()));
        }
    }
    v4.append(&mut v6);
    Ok(v4)
}
