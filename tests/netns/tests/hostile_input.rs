//! Answers of a kernel that lies, and save text from nowhere: nothing panics and nothing takes for ever. Needs no
//! namespace. `tests/fuzz` throws far more at the same code.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../../fuzz/targets.rs"]
mod targets;

use iptables_rules::model::Family;
use iptables_rules::nft::message::Transaction;
use iptables_rules::plan::sidecar;
use iptables_rules::render::compat::{OwnerForm, encode};
use iptables_rules::render::iptables::restore;
use netns_tests::random::{check, facts, settings};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Places to change, and what to write there.
type Changes = Vec<(Index, u8)>;

fn changes() -> impl Strategy<Value = Changes> {
    let byte = prop_oneof![any::<u8>(), Just(0), Just(4), Just(0xff), Just(b'-'), Just(b'\n')];
    vec((any::<Index>(), byte), 0..12)
}

fn changed(mut bytes: Vec<u8>, changes: &Changes, end: Index) -> Vec<u8> {
    if !bytes.is_empty() {
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = *value;
        }
        bytes.truncate(end.index(bytes.len() + 1));
    }
    bytes
}

#[test]
fn random_bytes_are_no_answer() {
    check(file!(), 3000, vec(any::<u8>(), 0..512), |bytes| {
        targets::netlink(&bytes);
        targets::save_text(&bytes);
        Ok(())
    });
}

#[test]
fn damaged_rules_are_read_or_left() {
    check(file!(), 1500, (settings(), facts(), changes(), any::<Index>()), |(settings, facts, changes, end)| {
        let plan = sidecar(&settings, &facts);
        let mut transaction = Transaction::begin(1);
        for rule in &plan.v4 {
            for owners in [OwnerForm::Extension, OwnerForm::Metadata] {
                let exprs = encode(rule, Family::V4, owners).unwrap();
                transaction.append_rule(Family::V4, rule.table, rule.chain, &exprs);
            }
        }
        let (bytes, _) = transaction.finish();
        targets::netlink(&bytes);
        targets::netlink(&changed(bytes, &changes, end));
        Ok(())
    });
}

#[test]
fn damaged_save_text_is_read_or_left() {
    check(file!(), 1500, (settings(), facts(), changes(), any::<Index>()), |(settings, facts, changes, end)| {
        let text = restore(&sidecar(&settings, &facts).v4).join("\n").into_bytes();
        targets::save_text(&text);
        targets::save_text(&changed(text, &changes, end));
        Ok(())
    });
}
