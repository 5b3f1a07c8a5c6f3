//! Addresses, policy rules and routes that the packet rules rely on.
//!
//! `::6` on `lo` is the source of what the proxy passes on over IPv6. In TPROXY mode a mark selects a route table in
//! which everything is local, so that marked packets are delivered here whatever their destination. What is there
//! already is not added again: the kernel would take a second policy rule without a word.

use std::net::IpAddr;

use sys::netlink::{NetlinkError, Protocol, Socket};

use crate::apply::addresses::local_addresses;
use crate::model::Family;
use crate::nft::wire::{CREATE, DUMP, EXCL, REQUEST, Writer, find};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
/// Look the packet up in a table.
const FR_ACT_TO_TBL: u8 = 1;
/// Delivered locally.
const RTN_LOCAL: u8 = 2;
/// Set up while a system starts, as `ip` does.
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_HOST: u8 = 254;
/// In the one-byte field of a header: the table is in the attribute.
const RT_TABLE_COMPAT: u8 = 252;
/// Size of `struct fib_rule_hdr`.
const RULE_HEADER: usize = 12;
/// Size of `struct rtmsg`.
const ROUTE_HEADER: usize = 12;
/// Place of the type in it.
const ROUTE_TYPE: usize = 7;
/// `lo` has this index in every network namespace.
const LO: u32 = 1;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EEXIST: i32 = 17;
const EADDRNOTAVAIL: i32 = 99;
/// A family that is switched off has no routing to change.
const EAFNOSUPPORT: i32 = 97;
const EOPNOTSUPP: i32 = 95;
/// `::6`.
const PASSTHROUGH: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6];

/// Local delivery of marked packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalDelivery {
    /// The packets' mark.
    pub mark: u32,
    /// The route table.
    pub table: u32,
}

/// One thing of routing that the packet rules rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// `::6/128` on `lo`.
    Passthrough,
    /// Policy rule and route of marked packets.
    Delivery(Family, LocalDelivery),
}

impl Routing {
    /// Its name in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "address ::6/128 on lo",
            Self::Delivery(Family::V4, _) => "the IPv4 route of marked packets",
            Self::Delivery(Family::V6, _) => "the IPv6 route of marked packets",
        }
    }

    /// Whether all of it is there.
    pub fn is_there(self) -> Result<bool, NetlinkError> {
        match self {
            Self::Passthrough => Ok(local_addresses()?.contains(&IpAddr::from(PASSTHROUGH))),
            Self::Delivery(family, delivery) => Ok(has_rule(family, delivery)? && has_route(family, delivery.table)?),
        }
    }

    /// Adds what is missing of it. Returns false when nothing was.
    pub fn add(self) -> Result<bool, NetlinkError> {
        let (rule, rest) = match self {
            Self::Passthrough => (false, passthrough(RTM_NEWADDR, CREATE | EXCL)),
            Self::Delivery(family, delivery) => {
                let missing = !has_rule(family, delivery)?;
                if missing {
                    send(policy_rule(RTM_NEWRULE, CREATE | EXCL, family, delivery))?;
                }
                (missing, local_route(RTM_NEWROUTE, CREATE | EXCL, family, delivery.table))
            }
        };
        Ok(done_unless(send(rest), &[EEXIST])? || rule)
    }

    /// Removes it, a policy rule as often as it is there. Returns false when nothing was there.
    pub fn remove(self) -> Result<bool, NetlinkError> {
        let Self::Delivery(family, delivery) = self else {
            return done_unless(send(passthrough(RTM_DELADDR, 0)), &[EADDRNOTAVAIL, EAFNOSUPPORT, EOPNOTSUPP]);
        };
        let mut removed = false;
        while has_rule(family, delivery)? {
            removed |= done_unless(send(policy_rule(RTM_DELRULE, 0, family, delivery)), &[ENOENT])?;
        }
        let route = send(local_route(RTM_DELROUTE, 0, family, delivery.table));
        Ok(done_unless(route, &[ESRCH, ENOENT, EAFNOSUPPORT, EOPNOTSUPP])? || removed)
    }
}

fn passthrough(kind: u16, flags: u16) -> Writer {
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut header = vec![number(Family::V6), 128, 0, 0];
    header.extend(LO.to_ne_bytes());
    let mut writer = Writer::new();
    writer.message(kind, REQUEST | flags, &header, |message| {
        message.attribute(IFA_LOCAL, &PASSTHROUGH);
        message.attribute(IFA_ADDRESS, &PASSTHROUGH);
    });
    writer
}

fn policy_rule(kind: u16, flags: u16, family: Family, delivery: LocalDelivery) -> Writer {
    // struct fib_rule_hdr: family, two lengths, tos, table, two reserved, action, flags.
    let header = [number(family), 0, 0, 0, RT_TABLE_COMPAT, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
    let mut writer = Writer::new();
    writer.message(kind, REQUEST | flags, &header, |message| {
        message.attribute(FRA_FWMARK, &delivery.mark.to_ne_bytes());
        message.attribute(FRA_TABLE, &delivery.table.to_ne_bytes());
        message.attribute(FRA_PROTOCOL, &[RTPROT_BOOT]);
    });
    writer
}

fn local_route(kind: u16, flags: u16, family: Family, table: u32) -> Writer {
    // struct rtmsg: family, two lengths, tos, table, protocol, scope, type, flags.
    let header = [number(family), 0, 0, 0, RT_TABLE_COMPAT, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL, 0, 0, 0, 0];
    let mut writer = Writer::new();
    writer.message(kind, REQUEST | flags, &header, |message| {
        message.attribute(RTA_OIF, &LO.to_ne_bytes());
        message.attribute(RTA_TABLE, &table.to_ne_bytes());
    });
    writer
}

fn has_rule(family: Family, delivery: LocalDelivery) -> Result<bool, NetlinkError> {
    let mut header = [0; RULE_HEADER];
    if let Some(first) = header.first_mut() {
        *first = number(family);
    }
    let mut writer = Writer::new();
    writer.message(RTM_GETRULE, REQUEST | DUMP, &header, |_| {});
    let mut found = false;
    Socket::open(Protocol::Route)?.dump(writer.bytes(), |kind, payload| {
        let attributes = payload.get(RULE_HEADER..).unwrap_or_default();
        let value =
            |kind| find(attributes, kind).and_then(|value| value.first_chunk()).map(|it| u32::from_ne_bytes(*it));
        let same_family = payload.first() == Some(&number(family));
        found |= kind == RTM_NEWRULE
            && same_family
            && value(FRA_FWMARK) == Some(delivery.mark)
            && value(FRA_TABLE) == Some(delivery.table);
    })?;
    Ok(found)
}

fn has_route(family: Family, table: u32) -> Result<bool, NetlinkError> {
    let mut header = [0; ROUTE_HEADER];
    if let Some(first) = header.first_mut() {
        *first = number(family);
    }
    let mut writer = Writer::new();
    writer.message(RTM_GETROUTE, REQUEST | DUMP, &header, |_| {});
    let mut found = false;
    Socket::open(Protocol::Route)?.dump(writer.bytes(), |kind, payload| {
        let attributes = payload.get(ROUTE_HEADER..).unwrap_or_default();
        let value =
            |kind| find(attributes, kind).and_then(|value| value.first_chunk()).map(|it| u32::from_ne_bytes(*it));
        // struct rtmsg: family, length of the destination's prefix, …, type.
        let is_local_default = payload.first() == Some(&number(family))
            && payload.get(1) == Some(&0)
            && payload.get(ROUTE_TYPE) == Some(&RTN_LOCAL);
        found |=
            kind == RTM_NEWROUTE && is_local_default && value(RTA_TABLE) == Some(table) && value(RTA_OIF) == Some(LO);
    })?;
    Ok(found)
}

fn send(mut writer: Writer) -> Result<(), NetlinkError> {
    let last = writer.acknowledge_last();
    Socket::open(Protocol::Route)?.transact(writer.bytes(), last)
}

/// True when it was done, false when one of `harmless` came back.
fn done_unless(result: Result<(), NetlinkError>, harmless: &[i32]) -> Result<bool, NetlinkError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.errno().is_some_and(|errno| harmless.contains(&errno)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `AF_INET` or `AF_INET6`.
fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}
