//! What the old kernel interface of iptables ("legacy") holds in the calling thread's network namespace.
//!
//! It only reads: a list of tables from `/proc`, then each table through a socket option. No program is started and no
//! table comes into being, which asking for a table that is not listed would cause.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Address family of a set of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A table that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyTable {
    /// `nat`, `filter`, …
    pub name: String,
    /// Number of rules; policies and the ends of chains do not count.
    pub rules: usize,
    /// Chains that someone made.
    pub chains: Vec<String>,
}

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: i32 = 64;
/// `IPT_SO_GET_ENTRIES` and `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: i32 = 65;
/// Bytes of a table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: name, hooks, 5 entry points, 5 ends, number of entries, bytes of entries.
const INFO: usize = NAME + 4 * (1 + 5 + 5 + 2);
const HOOKS_AT: usize = NAME;
const SIZE_AT: usize = INFO - 4;
/// `struct ipt_get_entries`: name, bytes of entries, padding.
const ENTRIES_HEADER: usize = NAME + 4 + 4;
/// `struct xt_entry_target`: size, name, revision; what follows belongs to the target.
const TARGET_NAME_AT: usize = 2;
const TARGET_NAME: usize = 29;
const TARGET_DATA_AT: usize = 32;
/// Pseudo target of the entry that opens a chain, and of the last entry.
const ERROR_TARGET: &str = "ERROR";
/// Name that the last entry has in place of a chain's.
const LAST_ENTRY: &str = "ERROR";
/// How often a table may change while we read it.
const ATTEMPTS: usize = 10;

impl Family {
    fn list(self) -> &'static str {
        // Not `/proc/net`: that is the namespace of the process's first thread.
        match self {
            Self::V4 => "/proc/thread-self/net/ip_tables_names",
            Self::V6 => "/proc/thread-self/net/ip6_tables_names",
        }
    }

    fn level(self) -> i32 {
        match self {
            Self::V4 => libc::SOL_IP,
            Self::V6 => libc::SOL_IPV6,
        }
    }

    /// Bytes before the offsets in `struct ipt_entry` and `struct ip6t_entry`: addresses, interfaces, flags, cache.
    fn offsets_at(self) -> usize {
        match self {
            Self::V4 => 84 + 4,
            Self::V6 => 136 + 4,
        }
    }
}

/// The tables of one family, in the order in which the kernel lists them. Empty on a kernel without the old interface.
///
/// # Errors
/// When a table is listed and cannot be read; the capability NET_ADMIN in the namespace is needed for that.
pub fn tables(family: Family) -> io::Result<Vec<LegacyTable>> {
    let names = match fs::read_to_string(family.list()) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if names.trim().is_empty() {
        return Ok(Vec::new());
    }
    let address_family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let socket = socket(address_family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    names.lines().map(|name| read(&socket, family, name)).collect()
}

fn read(socket: &OwnedFd, family: Family, name: &str) -> io::Result<LegacyTable> {
    let mut error = io::ErrorKind::InvalidData.into();
    for _ in 0..ATTEMPTS {
        let mut info = [0; INFO];
        put_name(&mut info, name)?;
        get(socket, family, GET_INFO, &mut info)?;
        let size = number(&info, SIZE_AT).unwrap_or_default();
        let mut entries = vec![0; ENTRIES_HEADER.saturating_add(size)];
        put_name(&mut entries, name)?;
        if let Some(place) = entries.get_mut(NAME..NAME + 4) {
            place.copy_from_slice(info.get(SIZE_AT..).unwrap_or_default());
        }
        match get(socket, family, GET_ENTRIES, &mut entries) {
            Ok(()) => {
                let hooks = number(&info, HOOKS_AT).unwrap_or_default().count_ones();
                return Ok(count(name, family, entries.get(ENTRIES_HEADER..).unwrap_or_default(), hooks));
            }
            // Its size is no longer the one we were told.
            Err(changed) if changed.raw_os_error() == Some(libc::EAGAIN) => error = changed,
            Err(other) => return Err(other),
        }
    }
    Err(error)
}

/// Counts the rules: all entries but one policy per hook, opening and end of every chain, and the last entry.
fn count(name: &str, family: Family, mut entries: &[u8], hooks: u32) -> LegacyTable {
    let mut all = 0_usize;
    let mut chains = Vec::new();
    let at = family.offsets_at();
    while let (Some(target), Some(next)) = (short(entries, at), short(entries, at + 2)) {
        all += 1;
        if text(entries, target + TARGET_NAME_AT, TARGET_NAME) == ERROR_TARGET {
            chains.push(text(entries, target + TARGET_DATA_AT, TARGET_NAME));
        }
        // An entry that leads nowhere would be read for ever.
        match entries.get(next..) {
            Some(rest) if next > 0 => entries = rest,
            _ => break,
        }
    }
    if chains.last().is_some_and(|last| last == LAST_ENTRY) {
        chains.pop();
    }
    let overhead = usize::try_from(hooks).unwrap_or_default() + 2 * chains.len() + 1;
    LegacyTable { name: name.to_owned(), rules: all.saturating_sub(overhead), chains }
}

fn put_name(request: &mut [u8], name: &str) -> io::Result<()> {
    let place = request.get_mut(..name.len()).filter(|place| place.len() < NAME);
    place.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(name.as_bytes());
    Ok(())
}

fn get(socket: &OwnedFd, family: Family, option: i32, buffer: &mut [u8]) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidData);
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(too_long)?;
    // SAFETY: pointer and length describe `buffer`, which the kernel fills at most to that length.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), family.level(), option, buffer.as_mut_ptr().cast(), &raw mut length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(bytes)).ok()
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn text(bytes: &[u8], at: usize, length: usize) -> String {
    let bytes = bytes.get(at..at + length).unwrap_or_default();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 entry with a target of this name and, for chains, this label.
    fn entry(target: &str, label: &str) -> Vec<u8> {
        let mut bytes = vec![0; 112 + 64];
        bytes[88..90].copy_from_slice(&112_u16.to_ne_bytes());
        bytes[90..92].copy_from_slice(&176_u16.to_ne_bytes());
        bytes[114..114 + target.len()].copy_from_slice(target.as_bytes());
        bytes[144..144 + label.len()].copy_from_slice(label.as_bytes());
        bytes
    }

    #[test]
    fn policies_and_chain_ends_are_no_rules() {
        let bare = [entry("", ""), entry("", ""), entry("ERROR", "ERROR")].concat();
        assert_eq!(count("raw", Family::V4, &bare, 2).rules, 0);
        let chain = [entry("", ""), entry("", ""), entry("ERROR", "MINE"), entry("", ""), entry("ERROR", "ERROR")];
        let table = count("raw", Family::V4, &chain.concat(), 2);
        assert_eq!((table.rules, table.chains), (0, vec!["MINE".to_owned()]));
        let rule = [entry("REDIRECT", ""), chain.concat()].concat();
        assert_eq!(count("raw", Family::V4, &rule, 2).rules, 1);
    }

    #[test]
    fn a_broken_answer_ends() {
        for bytes in [vec![0; 500], vec![255; 500], entry("ERROR", "ERROR")[..100].to_vec()] {
            let _ = count("nat", Family::V4, &bytes, 4);
        }
    }
}
