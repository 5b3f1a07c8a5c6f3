//! Rules as single commands of iptables, without the program's name: what removes them, and what looks for them.
//!
//! These are the commands that Istio would run. Ours changes rules in one transaction; the lists serve dry runs and the
//! hosts whose kernel has only the old interface.

use crate::model::{Rule, Table, Target, chain, is_builtin};

/// Commands that look for each of `rules`, in order.
pub fn check_list(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(|rule| command("-C", rule)).collect()
}

/// Commands that remove `rules` and their chains, the last rule first. Rules that go with their chain are not named.
/// A chain without a rule of its own stays.
pub fn cleanup_list(rules: &[Rule]) -> Vec<String> {
    let leads_to_us = |rule: &Rule| matches!(rule.target, Target::Jump(target) if target.starts_with(chain::PREFIX));
    let singly = rules.iter().rev().filter(|rule| !rule.chain.starts_with(chain::PREFIX) || leads_to_us(rule));
    let mut commands: Vec<String> = singly.map(|rule| command("-D", rule)).collect();
    let mut seen: Vec<(Table, &str)> = Vec::new();
    for rule in rules.iter().rev().filter(|rule| !is_builtin(rule.chain)) {
        if !seen.contains(&(rule.table, rule.chain)) {
            seen.push((rule.table, rule.chain));
            commands.push(format!("-t {} -F {}", rule.table.as_str(), rule.chain));
            commands.push(format!("-t {} -X {}", rule.table.as_str(), rule.chain));
        }
    }
    commands
}

fn command(action: &str, rule: &Rule) -> String {
    let conditions: String = rule.matches.iter().map(|condition| format!(" {condition}")).collect();
    format!("-t {} {action} {}{conditions} -j {}", rule.table.as_str(), rule.chain, rule.target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostFacts, Selection, Settings};
    use crate::plan::sidecar;

    #[test]
    fn clean_up_removes_jumps_first_and_chains_in_the_order_of_last_use() {
        let plan = sidecar(&Settings::default(), &HostFacts::default());
        let expected = "\
-t nat -D ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-t nat -D ISTIO_OUTPUT -o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-t nat -D OUTPUT -j ISTIO_OUTPUT
-t nat -F ISTIO_OUTPUT
-t nat -X ISTIO_OUTPUT
-t nat -F ISTIO_IN_REDIRECT
-t nat -X ISTIO_IN_REDIRECT
-t nat -F ISTIO_REDIRECT
-t nat -X ISTIO_REDIRECT
-t nat -F ISTIO_INBOUND
-t nat -X ISTIO_INBOUND";
        assert_eq!(cleanup_list(&plan.v4).join("\n"), expected);
    }

    #[test]
    fn the_place_of_an_insert_is_not_part_of_a_check() {
        let settings = Settings {
            virtual_interfaces: vec!["net1".to_owned()],
            outbound_cidrs: Selection::All,
            ..Settings::default()
        };
        let plan = sidecar(&settings, &HostFacts::default());
        let checks = check_list(&plan.v4);
        assert!(checks.contains(&"-t nat -C PREROUTING -i net1 -j RETURN".to_owned()), "{checks:#?}");
        assert!(checks.contains(&"-t nat -C PREROUTING -i net1 -j ISTIO_REDIRECT".to_owned()), "{checks:#?}");
        assert_eq!(checks.len(), plan.v4.len());
    }
}
