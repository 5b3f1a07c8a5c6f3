//! Ports, ids, address ranges and lists of them, with the text they were written as.
//!
//! `istio-iptables` puts ports and ids into rules verbatim, so a value keeps its text beside its number. A value that
//! has no number (a service name, a stray `*`) still prints; only the kernel encoder refuses it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use thiserror::Error;

/// A port or a range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    text: String,
    range: Option<(u16, u16)>,
}

impl Port {
    /// Takes the text as it is; it never fails, see [`Port::range`].
    pub fn new(text: &str) -> Self {
        let trimmed = text.trim();
        let range = match trimmed.split_once(':') {
            Some((low, high)) => number(low).zip(number(high)).filter(|(low, high)| low <= high),
            None => number(trimmed).map(|port| (port, port)),
        };
        Self { text: text.to_owned(), range }
    }

    /// First and last port, or `None` when the text is not a number or a range of numbers.
    pub fn range(&self) -> Option<(u16, u16)> {
        self.range
    }

    /// The text as given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Plain decimal, no sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl From<u16> for Port {
    fn from(port: u16) -> Self {
        Self { text: port.to_string(), range: Some((port, port)) }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A user or group, by number or by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    text: String,
    number: Option<u32>,
}

impl Id {
    /// Takes the text as it is; it never fails, see [`Id::number`].
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), number: number(text.trim()) }
    }

    /// The numeric id, or `None` while a name has not been looked up.
    pub fn number(&self) -> Option<u32> {
        self.number
    }

    /// The same id with the number that a look-up of its name gave.
    pub fn resolved(self, number: u32) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The text as given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<u32> for Id {
    fn from(id: u32) -> Self {
        Self { text: id.to_string(), number: Some(id) }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A packet mark or the number of a route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    text: String,
    value: Option<u32>,
}

impl Mark {
    /// Takes the text as it is; it never fails, see [`Mark::value`].
    pub fn new(text: &str) -> Self {
        let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => number(text),
        };
        Self { text: text.to_owned(), value }
    }

    /// The number, decimal or with `0x` in front, or `None` when the text is none.
    pub fn value(&self) -> Option<u32> {
        self.value
    }

    /// The number, if it is written in decimal: routes take no other.
    pub fn decimal(&self) -> Option<u32> {
        number(&self.text)
    }

    /// The text as given.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<u32> for Mark {
    fn from(value: u32) -> Self {
        Self { text: value.to_string(), value: Some(value) }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An address range. Host bits are kept: `10.1.2.3/8` stays `10.1.2.3/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address as written.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
}

/// A text that is not an address range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not an address range such as 10.0.0.0/8 or fd00::/8")]
pub struct InvalidCidr(pub String);

impl Cidr {
    /// `127.0.0.1/32`.
    pub const LOOPBACK_V4: Self = Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), prefix: 32 };

    /// Whether the address itself (host bits included, length ignored) is a loopback one.
    pub fn is_loopback(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => address.is_loopback(),
            IpAddr::V6(address) => {
                address.is_loopback() || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
            }
        }
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidCidr(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(invalid)?;
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let leading_zero = length.len() > 1 && length.starts_with('0');
        let prefix: u8 = number(length).filter(|_| !leading_zero).ok_or_else(invalid)?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        if prefix > longest {
            return Err(invalid());
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A list option that also knows "everything".
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Selection<T> {
    /// The option is empty: nothing is selected.
    #[default]
    None,
    /// The option is exactly `*`.
    All,
    /// The items, in order. Empty for an option that holds separators only, which still counts as used.
    Only(Vec<T>),
}

impl<T> Selection<T> {
    /// Reads the text of an option; `item` turns one item into a value.
    ///
    /// # Errors
    /// The first error of `item`.
    pub fn parse<E>(text: &str, item: impl FnMut(&str) -> Result<T, E>) -> Result<Self, E> {
        match text {
            "" => Ok(Self::None),
            "*" => Ok(Self::All),
            list => items(list).map(item).collect::<Result<_, _>>().map(Self::Only),
        }
    }

    /// The listed items; none for `None` and `All`.
    pub fn listed(&self) -> &[T] {
        match self {
            Self::Only(items) => items,
            Self::None | Self::All => &[],
        }
    }
}

impl<T: fmt::Display> fmt::Display for Selection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::All => f.write_str("*"),
            Self::Only(items) => f.write_str(&join(items)),
        }
    }
}

/// Items of a comma list, untrimmed; empty items are dropped.
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|item| !item.is_empty())
}

/// The comma list of `items`.
pub fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_keeps_its_text_and_knows_its_numbers() {
        assert_eq!(Port::new(" 443").range(), Some((443, 443)));
        assert_eq!(Port::new(" 443").to_string(), " 443");
        assert_eq!(Port::new("80:90").range(), Some((80, 90)));
        for text in ["*", "http", "65536", "90:80", "-1", "+1", ""] {
            assert_eq!(Port::new(text).range(), None, "{text}");
        }
    }

    #[test]
    fn ranges_are_strict_and_keep_host_bits() {
        for text in ["10.1.2.3/8", "fd00::/8", "::ffff:10.0.0.0/104", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Cidr>().map(|cidr| cidr.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("FD00:0:0::1/64".parse::<Cidr>().map(|cidr| cidr.to_string()), Ok("fd00::1/64".to_owned()));
        for text in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            " 10.0.0.0/8",
            "fe80::1%eth0/64",
            "/8",
            "010.0.0.0/8",
            "",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn loopback_is_judged_by_the_address_alone() {
        for text in ["127.0.0.0/8", "127.1.2.3/32", "::1/128", "::ffff:127.0.0.1/128"] {
            assert!(text.parse::<Cidr>().unwrap().is_loopback(), "{text}");
        }
        for text in ["126.0.0.0/7", "0.0.0.0/0", "::/0"] {
            assert!(!text.parse::<Cidr>().unwrap().is_loopback(), "{text}");
        }
    }

    #[test]
    fn a_wildcard_is_the_whole_text_only() {
        let parse = |text| Selection::parse(text, |item| Ok::<_, ()>(Port::new(item))).unwrap();
        assert_eq!(parse("*"), Selection::All);
        assert_eq!(parse(""), Selection::None);
        assert_eq!(parse(","), Selection::Only(Vec::new()));
        assert_eq!(parse("*,80").to_string(), "*,80");
        assert_eq!(parse("6000,7000,").to_string(), "6000,7000");
    }
}
