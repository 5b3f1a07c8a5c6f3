//! Addresses that the rules rely on.

use sys::netlink::{NetlinkError, Protocol, Socket};

use crate::nft::wire::{CREATE, EXCL, REQUEST, Writer};

const RTM_NEWADDR: u16 = 20;
const AF_INET6: u8 = 10;
/// `lo` has this index in every network namespace.
const LO: u32 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const EEXIST: i32 = 17;
/// `::6`, the source of inbound connections that the proxy passes on.
const PASSTHROUGH: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6];

/// Adds `::6/128` to `lo`. Returns false when it was there.
pub fn add_passthrough() -> Result<bool, NetlinkError> {
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut header = [AF_INET6, 128, 0, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&LO.to_ne_bytes());
    let mut writer = Writer::new();
    writer.message(RTM_NEWADDR, REQUEST | CREATE | EXCL, &header, |message| {
        message.attribute(IFA_LOCAL, &PASSTHROUGH);
        message.attribute(IFA_ADDRESS, &PASSTHROUGH);
    });
    let last = writer.acknowledge_last();
    match Socket::open(Protocol::Route)?.transact(writer.bytes(), last) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}
