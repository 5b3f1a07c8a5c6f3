//! Reasons of native rules: each is seen as the iptables rule that it stands for.

use crate::model::{Match, Position, RedirectOption, Rule, Table, Target, builtin, chain as compatible};
use crate::plan::native::{NativeRule, NativeTable, Place, Side, Statement, chain};
use crate::render::explain::{UNKNOWN, explain};

/// The reason of `rule`.
pub fn explain_native(rule: &NativeRule) -> &'static str {
    as_compatible(rule).as_ref().map_or(UNKNOWN, explain)
}

fn as_compatible(rule: &NativeRule) -> Option<Rule> {
    let table = match rule.table {
        NativeTable::Nat => Table::Nat,
        NativeTable::Mangle => Table::Mangle,
        NativeTable::Raw => Table::Raw,
        NativeTable::Filter => Table::Filter,
    };
    let position = match rule.place {
        Place::Append => Position::Append,
        Place::Index(index) => Position::Insert(index.saturating_add(1)),
    };
    // What comes first is the point of the rule: marks are set before a packet is accepted.
    let target = rule.statements.iter().find_map(target)?;
    let matches = rule.statements.iter().filter_map(condition).collect();
    Some(Rule { table, chain: compatible_chain(rule.chain)?, position, matches, target })
}

fn compatible_chain(name: &str) -> Option<&'static str> {
    let names = [
        (chain::PREROUTING, builtin::PREROUTING),
        (chain::HOOK_OUTPUT, builtin::OUTPUT),
        (chain::INBOUND, compatible::INBOUND),
        (chain::DIVERT, compatible::DIVERT),
        (chain::TPROXY, compatible::TPROXY),
        (chain::OUTPUT, compatible::OUTPUT),
        (chain::OUTPUT_DNS, compatible::OUTPUT_DNS),
        (chain::REDIRECT, compatible::REDIRECT),
        (chain::IN_REDIRECT, compatible::IN_REDIRECT),
        (chain::DROP, compatible::DROP),
    ];
    names.into_iter().find_map(|(native, compatible)| (native == name).then_some(compatible))
}

fn condition(statement: &Statement) -> Option<Match> {
    Some(match statement {
        Statement::InInterface(name) => Match::InInterface(name.clone()),
        Statement::OutInterface(name) => Match::OutInterface(name.clone()),
        Statement::Address { side: Side::Source, net, .. } => Match::Source(net.clone()),
        Statement::Address { side: Side::Destination, negate, net, .. } => {
            Match::Destination { negate: *negate, net: net.clone() }
        }
        Statement::Port { side: Side::Source, port, .. } => Match::SourcePort(port.clone()),
        Statement::Port { side: Side::Destination, negate, port, .. } => {
            Match::DestinationPort { negate: *negate, port: port.clone() }
        }
        Statement::Owner { negate, owner, .. } => Match::Owner { negate: *negate, owner: owner.clone() },
        Statement::Mark { negate, mark } => Match::Mark { negate: *negate, mark: mark.clone() },
        _ => return None,
    })
}

fn target(statement: &Statement) -> Option<Target> {
    Some(match statement {
        Statement::SetMark(mark) => Target::SetMark(mark.clone()),
        Statement::SaveMark => Target::SaveMark,
        Statement::RestoreMark => Target::RestoreMark,
        Statement::Zone(zone) => Target::ConntrackZone(*zone),
        Statement::Tproxy(_, port) => Target::Tproxy { port: port.clone(), mark: 0.into() },
        Statement::Redirect(port) => Target::Redirect { port: port.clone(), option: RedirectOption::ToPorts },
        Statement::Jump(name) => Target::Jump(compatible_chain(name)?),
        Statement::Return => Target::Return,
        Statement::Accept => Target::Accept,
        Statement::Drop => Target::Drop,
        Statement::Reject(refusal) => Target::Reject(*refusal),
        _ => return None,
    })
}
