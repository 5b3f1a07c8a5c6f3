//! Rules of others, in the tables and chains that ours use, each with counts of its own.
//!
//! They are loaded with the tools, as whoever made them did. A look at them shows their counts: a rule that was taken
//! out and put back, however equal, has none.

use proptest::prelude::*;
use testkit::netns::Sandbox;

/// The word by which [`seen`] finds canaries.
const COMMENT: &str = "canary";

/// One rule.
#[derive(Debug, Clone)]
pub struct Canary {
    ipv6: bool,
    table: &'static str,
    chain: &'static str,
    /// What it matches and does.
    rule: &'static str,
}

/// Chains that are there in a table.
const CHAINS: [(&str, &[&str]); 4] = [
    ("filter", &["INPUT", "OUTPUT", "FORWARD", "KUBE-LIKE"]),
    ("mangle", &["PREROUTING", "OUTPUT", "POSTROUTING"]),
    ("nat", &["PREROUTING", "OUTPUT", "POSTROUTING", "KUBE-LIKE"]),
    ("raw", &["PREROUTING", "OUTPUT"]),
];
const RULES: [&str; 5] = [
    "-p tcp -m tcp --dport 4711 -j RETURN",
    "-p udp -j ACCEPT",
    "-m mark --mark 0x4000/0x4000 -j RETURN",
    "-p tcp -m multiport --dports 80,443",
    "-m limit --limit 5/sec -j ACCEPT",
];

/// A rule anywhere.
pub fn canary() -> BoxedStrategy<Canary> {
    let place = prop::sample::select(CHAINS.to_vec())
        .prop_flat_map(|(table, chains)| (Just(table), prop::sample::select(chains.to_vec())));
    (any::<bool>(), place, prop::sample::select(RULES.to_vec()))
        .prop_map(|(ipv6, (table, chain), rule)| Canary { ipv6, table, chain, rule })
        .boxed()
}

/// Adds `canaries` at the ends of their chains.
pub fn append(sandbox: &Sandbox, canaries: &[Canary]) {
    load(sandbox, canaries, |chain| format!("-A {chain}"));
}

/// Inserts `canaries` as first rules of their chains.
pub fn insert(sandbox: &Sandbox, canaries: &[Canary]) {
    load(sandbox, canaries, |chain| format!("-I {chain} 1"));
}

/// Inserts `canaries` as second rules of their chains, behind whatever is first; at the end where there is nothing.
pub fn insert_second(sandbox: &Sandbox, canaries: &[Canary]) {
    for canary in canaries {
        let (program, table, chain) = (canary.program(), canary.table, canary.chain);
        let rules = sandbox.sh(&format!("{program} -t {table} -S {chain} 2>/dev/null || true"));
        let filled = rules.lines().any(|line| line.starts_with("-A"));
        load(sandbox, std::slice::from_ref(canary), |chain| {
            if filled { format!("-I {chain} 2") } else { format!("-A {chain}") }
        });
    }
}

/// All canaries with their counts, chain by chain, in order.
pub fn seen(sandbox: &Sandbox) -> Vec<String> {
    let text = sandbox.sh("iptables-nft-save -c; echo '# ipv6'; ip6tables-nft-save -c");
    text.lines().filter(|line| line.contains(COMMENT) || *line == "# ipv6").map(str::to_owned).collect()
}

impl Canary {
    fn program(&self) -> &'static str {
        if self.ipv6 { "ip6tables-nft" } else { "iptables-nft" }
    }
}

/// One call of the tool for each, since each goes into another table or family.
fn load(sandbox: &Sandbox, canaries: &[Canary], place: impl Fn(&str) -> String) {
    for (index, canary) in canaries.iter().enumerate() {
        let Canary { table, chain, rule, .. } = canary;
        let own = !["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"].contains(chain);
        let program = canary.program();
        if own {
            sandbox.sh(&format!("{program} -t {table} -N {chain} 2>/dev/null || true"));
        }
        let (place, packets) = (place(chain), 100 + index);
        let text = format!("*{table}\n[{packets}:77] {place} -m comment --comment {COMMENT} {rule}\nCOMMIT\n");
        let loaded = sandbox.feed(&format!("{program}-restore --noflush --counters"), &text);
        loaded.unwrap_or_else(|error| panic!("{text}{error}"));
    }
}
