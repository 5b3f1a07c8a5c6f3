//! What a rule does that we did not make, in words a person understands. For messages only: it need not be complete, and
//! what is not known is told by its name.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::nft::expr::{Compare, Expr, Header, Meta, Verdict};

/// The conditions and the outcome of a rule, separated by commas.
pub fn describe(exprs: &[Expr]) -> String {
    let mut words = Vec::new();
    let mut loaded = String::new();
    for expr in exprs {
        match expr {
            Expr::LoadMeta(field) => loaded = field_name(*field).to_owned(),
            Expr::LoadPayload { header, offset, .. } => loaded = part_name(*header, *offset),
            Expr::Compare(operator, value) => {
                words.push(format!("{loaded}{}{}", operator_name(*operator), value_text(&loaded, value)));
            }
            Expr::Verdict(verdict) => words.push(outcome(verdict)),
            Expr::XtMatch(xt) => words.push(format!("match {}", xt.name)),
            Expr::XtTarget(xt) => words.push(format!("target {}", xt.name)),
            Expr::Foreign(name) => words.push(name.clone()),
            Expr::Counter | Expr::Mask(_) | Expr::LoadConntrack(_) | Expr::Immediate(_) => {}
            Expr::Range { .. } => words.push(format!("{loaded} in a range")),
            Expr::Lookup { .. } => words.push(format!("{loaded} in a set")),
            Expr::SetMeta(_) => words.push("set a mark".to_owned()),
            Expr::SetConntrack(_) => words.push("set a mark or zone of the connection".to_owned()),
            Expr::Redirect => words.push("redirect".to_owned()),
            Expr::Reject(_) => words.push("refuse".to_owned()),
            Expr::Tproxy(_) => words.push("deliver to a transparent socket".to_owned()),
        }
    }
    if words.is_empty() { "it only counts".to_owned() } else { words.join(", ") }
}

fn field_name(field: Meta) -> &'static str {
    match field {
        Meta::Mark => "mark",
        Meta::InInterfaceName => "arriving on",
        Meta::OutInterfaceName => "leaving on",
        Meta::SocketUser => "user",
        Meta::SocketGroup => "group",
        Meta::NetworkProtocol => "IP version",
        Meta::L4Protocol => "protocol",
    }
}

fn part_name(header: Header, offset: u32) -> String {
    match (header, offset) {
        (Header::Network, 12 | 8) => "source".to_owned(),
        (Header::Network, 16 | 24) => "destination".to_owned(),
        (Header::Transport, 0) => "source port".to_owned(),
        (Header::Transport, 2) => "port".to_owned(),
        (Header::Network, offset) => format!("byte {offset} of the IP header"),
        (Header::Transport, offset) => format!("byte {offset} of the TCP or UDP header"),
    }
}

fn operator_name(operator: Compare) -> &'static str {
    match operator {
        Compare::Eq => " ",
        Compare::Ne => " not ",
        Compare::Le => " at most ",
        Compare::Ge => " at least ",
    }
}

fn value_text(field: &str, value: &[u8]) -> String {
    let text = || String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
    match (field, value) {
        ("arriving on" | "leaving on", _) => text(),
        ("protocol", [6]) => "tcp".to_owned(),
        ("protocol", [17]) => "udp".to_owned(),
        ("port" | "source port", [high, low]) => u16::from_be_bytes([*high, *low]).to_string(),
        ("mark", _) => value.first_chunk().map_or_else(text, |mark| format!("{:#x}", u32::from_ne_bytes(*mark))),
        (_, [a, b, c, d]) => Ipv4Addr::new(*a, *b, *c, *d).to_string(),
        (_, value) => match <[u8; 16]>::try_from(value) {
            Ok(octets) => Ipv6Addr::from(octets).to_string(),
            Err(_) => value.iter().map(|byte| format!("{byte:02x}")).collect(),
        },
    }
}

fn outcome(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Jump(chain) => format!("go to {chain}"),
        Verdict::Other(code, chain) => format!("verdict {code} {}", chain.as_deref().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_reads_like_a_sentence() {
        let rule = [
            Expr::LoadMeta(Meta::OutInterfaceName),
            Expr::Compare(Compare::Eq, b"lo\0".to_vec()),
            Expr::LoadPayload { header: Header::Network, offset: 16, length: 4 },
            Expr::Compare(Compare::Ne, vec![127, 0, 0, 1]),
            Expr::LoadPayload { header: Header::Transport, offset: 2, length: 2 },
            Expr::Compare(Compare::Eq, vec![0, 80]),
            Expr::Counter,
            Expr::Verdict(Verdict::Jump("ISTIO_OUTPUT".to_owned())),
        ];
        assert_eq!(describe(&rule), "leaving on lo, destination not 127.0.0.1, port 80, go to ISTIO_OUTPUT");
        assert_eq!(describe(&[Expr::Counter]), "it only counts");
    }
}
