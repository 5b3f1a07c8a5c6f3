//! One form for all spellings of a rule.
//!
//! `iptables-save` does not print what it was given: it moves addresses and interfaces to the front, names matches that
//! the protocol implies, writes marks in hexadecimal, and adds or drops defaults. Here both texts become the same list of
//! options. The order of conditions is given up, since all of them must hold; what is not known here stays as it is.

use std::net::IpAddr;

use crate::config::Cidr;

/// A rule without its chain: its options, sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Normal(Vec<String>);

impl Normal {
    /// Whether the rule has this option with this value, such as `-j` and `RETURN`.
    pub fn has(&self, name: &str, value: &str) -> bool {
        self.0.iter().any(|option| option.split_once(' ') == Some((name, value)))
    }

    /// Where the rule jumps or goes to, if it does.
    pub fn target(&self) -> Option<&str> {
        self.0.iter().find_map(|option| option.strip_prefix("-j ").or_else(|| option.strip_prefix("-g ")))
    }

    /// Names of its options in order, `!` in front of those that are negated.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|option| {
            let end = option.strip_prefix("! ").unwrap_or(option).find(' ');
            let skipped = if option.starts_with("! ") { 2 } else { 0 };
            option.get(..end.map_or(option.len(), |end| end + skipped)).unwrap_or_default()
        })
    }
}

/// Brings a rule line into its normal form. The chain and the place in it are left out.
pub fn normal(line: &str) -> Normal {
    let words = words(line);
    let mut words = words.iter().map(String::as_str).peekable();
    if words.next_if(|word| matches!(*word, "-A" | "--append")).is_some() {
        words.next();
    } else if words.next_if(|word| matches!(*word, "-I" | "--insert")).is_some() {
        words.next();
        words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    }
    let mut options = Vec::new();
    while let Some(word) = words.next() {
        let negated = word == "!";
        let name = if negated { words.next().unwrap_or_default() } else { word };
        let mut values = Vec::new();
        while let Some(value) = words.next_if(|word| *word != "!" && !word.starts_with('-')) {
            values.push(value);
        }
        options.extend(option(negated, name, &values.join(" ")));
    }
    options.sort();
    Normal(options)
}

/// One option in its normal form; `None` when it says nothing.
fn option(negated: bool, name: &str, value: &str) -> Option<String> {
    let name = short_name(name);
    let (name, value) = match name {
        "--syn" => ("--tcp-flags", "FIN,SYN,RST,ACK SYN".to_owned()),
        "-m" if matches!(value, "tcp" | "udp") => return None,
        "-p" => (name, protocol(value)?),
        "-s" | "-d" => (name, range(value, negated)?),
        "--dport" | "--sport" => (name, port_range(value, negated)?),
        "--dports" | "--sports" | "--ports" => (name, value.split(',').map(number).collect::<Vec<_>>().join(",")),
        "--to-ports" | "--on-port" | "--zone" | "--uid-owner" | "--gid-owner" => (name, number(value)),
        "--mark" | "--tproxy-mark" => (name, mark(value)),
        "--set-mark" => ("--set-xmark", set_mark(value)),
        "--set-xmark" => (name, mark(value)),
        "--nfmask" | "--ctmask" | "--mask" if parse_number(value) == Some(u32::MAX) => return None,
        "--on-ip" if matches!(value, "0.0.0.0" | "::") => return None,
        "--ctstate" => {
            let mut states: Vec<&str> = value.split(',').collect();
            states.sort_unstable();
            (name, states.join(","))
        }
        _ => (name, value.to_owned()),
    };
    let not = if negated { "! " } else { "" };
    Some(if value.is_empty() { format!("{not}{name}") } else { format!("{not}{name} {value}") })
}

fn short_name(name: &str) -> &str {
    match name {
        "--protocol" | "--proto" => "-p",
        "--source" | "--src" => "-s",
        "--destination" | "--dst" => "-d",
        "--in-interface" => "-i",
        "--out-interface" => "-o",
        "--jump" => "-j",
        "--goto" => "-g",
        "--match" => "-m",
        "--destination-port" => "--dport",
        "--source-port" => "--sport",
        "--destination-ports" => "--dports",
        "--source-ports" => "--sports",
        "--to-port" => "--to-ports",
        name => name,
    }
}

fn protocol(value: &str) -> Option<String> {
    match value {
        "all" | "0" => None,
        "6" => Some("tcp".to_owned()),
        "17" => Some("udp".to_owned()),
        other => Some(other.to_ascii_lowercase()),
    }
}

/// The range without host bits; `None` for "everything".
fn range(value: &str, negated: bool) -> Option<String> {
    let Ok(Cidr { address, prefix }) = value.parse::<Cidr>().or_else(|error| match value.parse::<IpAddr>() {
        Ok(address) => Ok(Cidr { address, prefix: if address.is_ipv4() { 32 } else { 128 } }),
        Err(_) => Err(error),
    }) else {
        return Some(value.to_owned());
    };
    if prefix == 0 && !negated {
        return None;
    }
    let address = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    };
    Some(format!("{address}/{prefix}"))
}

/// A port, or a range that is not just one and not all of them.
fn port_range(value: &str, negated: bool) -> Option<String> {
    let Some((low, high)) = value.split_once(':') else { return Some(number(value)) };
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { number(text) };
    let (low, high) = (or(low, "0"), or(high, "65535"));
    if low == high {
        return Some(low);
    }
    (negated || low != "0" || high != "65535").then(|| format!("{low}:{high}"))
}

/// `value/mask`; without a mask, all bits.
fn mark(value: &str) -> String {
    match parse_mark(value) {
        Some((value, mask)) => format!("{value:#x}/{mask:#x}"),
        None => value.to_owned(),
    }
}

/// "Set" clears the bits of the mask and those of the value; "xset" only those it is told to clear.
fn set_mark(value: &str) -> String {
    match parse_mark(value) {
        Some((value, mask)) => format!("{value:#x}/{:#x}", value | mask),
        None => value.to_owned(),
    }
}

fn parse_mark(text: &str) -> Option<(u32, u32)> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Some((parse_number(value)?, parse_number(mask)?))
}

/// Decimal or, after `0x`, hexadecimal; as the tools read it, a leading zero means octal.
fn parse_number(text: &str) -> Option<u32> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u32::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

fn number(text: &str) -> String {
    parse_number(text.trim()).map_or_else(|| text.to_owned(), |number| number.to_string())
}

/// Splits at blanks, but not inside quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut quoted = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(letters.next()),
            letter if letter.is_whitespace() && !quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was loaded, and what iptables-save 1.8.9 (legacy) printed then.
    const PRINTED: &[(&str, &str)] = &[
        ("-A OUTPUT -j ISTIO_OUTPUT", "-A OUTPUT -j ISTIO_OUTPUT"),
        ("-I PREROUTING 1 -i tap0 -j RETURN", "-A PREROUTING -i tap0 -j RETURN"),
        (
            "-A O -o lo ! -d 127.0.0.1/8 -p tcp -m multiport ! --dports 53,15008 -m owner --uid-owner 1337 -j R",
            "-A O ! -d 127.0.0.0/8 -o lo -p tcp -m multiport ! --dports 53,15008 -m owner --uid-owner 1337 -j R",
        ),
        (
            "-A O -p udp --dport 53 -j REDIRECT --to-port 15053",
            "-A O -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053",
        ),
        (
            "-A T ! -d ::1/128 -p tcp -j TPROXY --tproxy-mark 1337/0xffffffff --on-port 15006",
            "-A T ! -d ::1/128 -p tcp -j TPROXY --on-port 15006 --on-ip :: --tproxy-mark 0x539/0xffffffff",
        ),
        (
            "-A P -p tcp -m mark --mark 1337 -j CONNMARK --save-mark",
            "-A P -p tcp -m mark --mark 0x539 -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        ),
        ("-A D -j MARK --set-mark 1337", "-A D -j MARK --set-xmark 0x539/0xffffffff"),
        ("-I I 3 -p tcp -i lo -m mark ! --mark 1338 -j RETURN", "-A I -i lo -p tcp -m mark ! --mark 0x53a -j RETURN"),
        ("-A O -d 0.0.0.0/0 -j R", "-A O -j R"),
        ("-I INPUT 1 -p tcp --syn -j R", "-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j R"),
        ("-A R -p tcp -j REJECT --reject-with tcp-reset", "-A R -p tcp -j REJECT --reject-with tcp-reset"),
        ("-A O -d FD00:0::1/64 -j R", "-A O -d fd00::/64 -j R"),
        ("-A I -p tcp --dport  443 -j R", "-A I -p tcp -m tcp --dport 443 -j R"),
        ("-A I -p tcp --dport 80:80 -j R", "-A I -p tcp -m tcp --dport 80 -j R"),
        (
            "-A I -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j D",
            "-A I -p tcp -m conntrack --ctstate ESTABLISHED,RELATED -j D",
        ),
    ];

    #[test]
    fn the_text_given_and_the_text_printed_are_equal() {
        for (given, printed) in PRINTED {
            assert_eq!(normal(given), normal(printed), "{given}");
        }
    }

    #[test]
    fn rules_that_differ_stay_different() {
        for (one, other) in [
            ("-A O -d 10.0.0.0/8 -j R", "-A O -d 10.0.0.0/9 -j R"),
            ("-A O -d 10.0.0.0/8 -j R", "-A O ! -d 10.0.0.0/8 -j R"),
            ("-A O -p tcp --dport 80 -j R", "-A O -p udp --dport 80 -j R"),
            ("-A O -j RETURN", "-A O -j ACCEPT"),
            ("-A O -m mark --mark 1 -j R", "-A O -m mark --mark 1/1 -j R"),
            ("-A O -m owner --uid-owner 1 -j R", "-A O -m owner --gid-owner 1 -j R"),
            ("-A O -i lo -j R", "-A O -o lo -j R"),
            ("-A O -m comment --comment \"a b\" -j R", "-A O -m comment --comment \"a c\" -j R"),
        ] {
            assert_ne!(normal(one), normal(other), "{one}");
        }
    }

    #[test]
    fn a_rule_is_known_by_its_options() {
        let rule = normal("-A OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1 -j MARK --set-mark 2");
        assert!(rule.has("-o", "lo") && rule.has("--set-xmark", "0x2/0xffffffff") && !rule.has("-o", "l"));
        assert_eq!(rule.target(), Some("MARK"));
        assert_eq!(rule.names().collect::<Vec<_>>(), ["! -d", "--set-xmark", "--uid-owner", "-j", "-m", "-o", "-p"]);
    }

    #[test]
    fn broken_lines_are_taken_without_complaint() {
        for line in ["", "!", "-A", "-A X !", "-I X 1", "\"", "-A X --comment \"a\\", "-A X -d 1.2.3.4/99 -s /"] {
            normal(line);
        }
    }
}
