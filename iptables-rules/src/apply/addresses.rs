//! Addresses of the interfaces in the calling thread's network namespace.
//!
//! One netlink dump. The C library's `getifaddrs` lists all links as well, which costs several times as much.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sys::netlink::{NetlinkError, Protocol, Socket};

use crate::nft::wire::{DUMP, REQUEST, Writer, find};

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Size of `struct ifaddrmsg`.
const HEADER: usize = 8;

/// All IPv4 addresses, then all IPv6 addresses, each in the kernel's order.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn local_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let mut query = Writer::new();
    query.message(RTM_GETADDR, REQUEST | DUMP, &[0; HEADER], |_| {});
    let mut addresses = Vec::new();
    let dumped = Socket::open(Protocol::Route)?.dump(query.bytes(), |kind, payload| {
        if kind == RTM_NEWADDR {
            addresses.extend(payload.get(HEADER..).and_then(read));
        }
    });
    match dumped {
        // An address came or went meanwhile: the list is still one of those that were true.
        Ok(()) | Err(NetlinkError::Interrupted) => {}
        Err(error) => return Err(error),
    }
    addresses.sort_by_key(IpAddr::is_ipv6);
    Ok(addresses)
}

/// On a point-to-point link `IFA_ADDRESS` is the other side's.
fn read(attributes: &[u8]) -> Option<IpAddr> {
    let bytes = find(attributes, IFA_LOCAL).or_else(|| find(attributes, IFA_ADDRESS))?;
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        16 => bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}
