//! What is done with hostile input: bytes that claim to come from the kernel, text that claims to come from
//! `iptables-save`. Shared by the fuzz targets and by the test that every run of the tests includes.

use iptables_rules::model::Table;
use iptables_rules::nft::expr::{Expr, read_list};
use iptables_rules::nft::message::{
    read_chain, read_generation, read_inet_chain, read_inet_table, read_rule, read_values,
};
use iptables_rules::nft::wire::{Writer, attributes, messages};
use iptables_rules::render::describe::describe;
use iptables_rules::state::save_text::{normal, parse};

/// Types of the messages that the readers know: table, chain, rule, set element and generation of nf_tables.
pub const KINDS: [u16; 5] = [0x0a00, 0x0a03, 0x0a06, 0x0a0c, 0x0a0f];

/// Reads `bytes` as netlink messages and as the payload of every message that we ask for.
pub fn netlink(bytes: &[u8]) {
    for (kind, payload) in messages(bytes) {
        read(kind, payload);
    }
    for kind in KINDS {
        read(kind, bytes);
    }
    let list = read_list(bytes);
    assert_eq!(list.len(), attributes(bytes).count());
    let _ = describe(&list);
}

fn read(kind: u16, payload: &[u8]) {
    let _ = (read_generation(kind, payload), read_chain(kind, payload));
    let _ = (read_inet_table(kind, payload), read_inet_chain(kind, payload), read_values(kind, payload));
    if let Some(rule) = read_rule(kind, payload) {
        let _ = describe(&rule.exprs);
        write_again(&rule.exprs);
    }
}

/// What was understood can be written, and is then understood as the same.
fn write_again(exprs: &[Expr]) {
    // Only what we write ourselves: sets have numbers of their own, and foreign expressions have no content.
    let plain = |expr: &&Expr| !format!("{expr:?}").starts_with("LookUp") && !matches!(expr, Expr::Foreign(_));
    for expr in exprs.iter().filter(plain) {
        let mut writer = Writer::new();
        expr.write(&mut writer, &mut std::iter::empty());
        // A message holds attributes of at most 64 KiB; longer ones cannot come from the kernel either.
        if writer.bytes().len() < usize::from(u16::MAX) / 2 {
            assert_eq!(read_list(writer.bytes()), std::slice::from_ref(expr));
        }
    }
}

/// Reads `bytes` as the text of `iptables-save`.
pub fn save_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let parsed = parse(&text);
    let mut rules = 0;
    for (_, lines) in Table::ALL.iter().flat_map(|table| parsed.chains(*table)) {
        for line in lines {
            assert!(text.contains(line.as_str()), "a rule that nobody wrote: {line}");
            let normal = normal(line);
            let _ = (normal.target(), normal.names().count(), normal.has("-j", "RETURN"));
            rules += 1;
        }
    }
    assert!(rules <= text.lines().count());
}
