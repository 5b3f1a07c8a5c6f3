//! Names for the numbers in expressions: what is loaded or set, from where, and how values compare.

use crate::model::Family;

/// Field of a packet's metadata, `NFT_META_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Meta {
    /// The packet's mark.
    Mark = 3,
    /// Name of the interface it arrived on.
    InInterfaceName = 6,
    /// Name of the interface it leaves on.
    OutInterfaceName = 7,
    /// User of the sending socket, in host byte order.
    SocketUser = 10,
    /// Group of the sending socket, in host byte order.
    SocketGroup = 11,
    /// Network protocol, `NFPROTO_*`.
    NetworkProtocol = 15,
    /// Transport protocol.
    L4Protocol = 16,
}

/// What connection tracking knows of a packet, `NFT_CT_*`. Values are in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Conntrack {
    /// State, as bits of 1, 2 and 4 for invalid, established and related.
    State = 0,
    /// Mark of the connection.
    Mark = 3,
    /// Zone of the connection, 16 bits.
    Zone = 17,
}

/// Header that a payload offset counts from, `NFT_PAYLOAD_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Header {
    /// IP header.
    Network = 1,
    /// TCP or UDP header.
    Transport = 2,
}

/// Comparison, `NFT_CMP_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Compare {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
    /// Less or equal.
    Le = 3,
    /// Greater or equal.
    Ge = 5,
}

/// Number of a network protocol, `NFPROTO_*`.
pub fn network_protocol(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

impl Meta {
    const ALL: [Self; 7] = [
        Self::Mark,
        Self::InInterfaceName,
        Self::OutInterfaceName,
        Self::SocketUser,
        Self::SocketGroup,
        Self::NetworkProtocol,
        Self::L4Protocol,
    ];

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u32 == number)
    }
}

impl Conntrack {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::State, Self::Mark, Self::Zone].into_iter().find(|it| *it as u32 == number)
    }
}

impl Header {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Network, Self::Transport].into_iter().find(|it| *it as u32 == number)
    }
}

impl Compare {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Eq, Self::Ne, Self::Le, Self::Ge].into_iter().find(|it| *it as u32 == number)
    }
}
