//! Redirection of a pod's traffic to its sidecar proxy, step by step as Istio emits it for nftables.

mod dns;

use crate::config::{Cidr, HostFacts, Id, Mark, Mode, OwnerGroups, Port, Selection, Settings};
use crate::model::{Family, Net, Owner, Protocol};
use crate::plan::DnsCapture;
use crate::plan::native::Statement::{
    Accept, ConnectionMark, Counter, Drop, InInterface, Jump, NoneOfPorts, OutInterface, Redirect, RestoreMark, Return,
    SaveMark, SetMark, Tracked,
};
use crate::plan::native::{NativeRule, NativeTable, Place, Side, Spelling, Statement, TrackedAs, chain, owners};

/// Port of DNS.
pub(super) const DNS_PORT: u16 = 53;
/// Mark of packets from the proxy to the application by the pod's own address (TPROXY).
const OUTBOUND_MARK: u32 = 1338;
/// Source of connections that the proxy passes through to the application.
const PASSTHROUGH_V4: &str = "127.0.0.6";
/// The same for IPv6; the address is added to `lo`.
const PASSTHROUGH_V6: &str = "::6";
/// IPv6 loopback.
const LOOPBACK_V6: &str = "::1";

/// Builds the rules step by step.
struct Builder<'a> {
    settings: &'a Settings,
    facts: &'a HostFacts,
    dns: DnsCapture,
    rules: Vec<NativeRule>,
}

/// The rules of `settings`, in the order in which Istio emits them.
pub(super) fn rules(settings: &Settings, facts: &HostFacts) -> Vec<NativeRule> {
    let dns = DnsCapture::of(settings, facts);
    let mut builder = Builder { settings, facts, dns, rules: Vec::new() };
    builder.exclude_interfaces();
    builder.leave_virtual_interfaces_alone();
    builder.drop_invalid();
    builder.redirect_targets();
    match settings.mode {
        Mode::Redirect => builder.inbound(NativeTable::Nat),
        Mode::Tproxy => {
            builder.transparent_targets();
            builder.inbound(NativeTable::Mangle);
        }
    }
    builder.outbound_exceptions();
    builder.proxy_owners();
    builder.owner_groups();
    builder.dns();
    builder.outbound();
    if settings.mode == Mode::Tproxy {
        builder.transparent_marks();
    }
    builder.rules
}

impl Builder<'_> {
    fn push(&mut self, table: NativeTable, chain: &'static str, place: Place, statements: Vec<Statement>) {
        self.rules.push(NativeRule { table, chain, place, statements });
    }

    fn nat(&mut self, chain: &'static str, statements: Vec<Statement>) {
        self.push(NativeTable::Nat, chain, Place::Append, statements);
    }

    fn mangle(&mut self, chain: &'static str, statements: Vec<Statement>) {
        self.push(NativeTable::Mangle, chain, Place::Append, statements);
    }

    fn raw(&mut self, chain: &'static str, statements: Vec<Statement>) {
        self.push(NativeTable::Raw, chain, Place::Append, statements);
    }

    /// Families that get rules.
    fn families(&self) -> &'static [Family] {
        if self.facts.ipv6 { &Family::BOTH } else { &[Family::V4] }
    }

    /// "Does not go to loopback", of one family.
    fn not_to_loopback(&self, family: Family) -> Statement {
        Statement::Address { side: Side::Destination, family, negate: true, net: self.loopback(family) }
    }

    fn loopback(&self, family: Family) -> Net {
        match family {
            Family::V4 => self.settings.loopback_v4.into(),
            Family::V6 => Net::host(LOOPBACK_V6, family),
        }
    }

    /// S1: nothing on these interfaces is captured.
    fn exclude_interfaces(&mut self) {
        let tables: &[NativeTable] = match self.settings.mode {
            Mode::Redirect => &[NativeTable::Nat],
            Mode::Tproxy => &[NativeTable::Nat, NativeTable::Mangle],
        };
        for table in tables {
            for name in &self.settings.exclude_interfaces {
                let arriving = vec![InInterface(name.clone()), Counter, Return];
                self.push(*table, chain::PREROUTING, Place::Append, arriving);
                let leaving = vec![OutInterface(name.clone()), Counter, Return];
                self.push(*table, chain::HOOK_OUTPUT, Place::Append, leaving);
            }
        }
    }

    /// S2: what comes from a virtual machine's interface is not inbound traffic. S17 inserts the captures before it.
    fn leave_virtual_interfaces_alone(&mut self) {
        for name in &self.settings.virtual_interfaces {
            self.insert_first(vec![InInterface(name.clone()), Counter, Return]);
        }
    }

    fn insert_first(&mut self, statements: Vec<Statement>) {
        self.push(NativeTable::Nat, chain::PREROUTING, Place::Index(0), statements);
    }

    /// S3: of TCP only, unlike the iptables rules.
    fn drop_invalid(&mut self) {
        if self.settings.drop_invalid {
            self.mangle(chain::PREROUTING, vec![tcp(), Tracked(TrackedAs::Invalid), Counter, Jump(chain::DROP)]);
            self.mangle(chain::DROP, vec![Counter, Drop]);
        }
    }

    /// S4 and S5: tunnels pass; the two chains that send to the proxy.
    fn redirect_targets(&mut self) {
        let settings = self.settings;
        self.nat(chain::INBOUND, vec![tcp(), to_tcp(&settings.inbound_tunnel_port), Counter, Return]);
        self.nat(chain::REDIRECT, vec![tcp(), Counter, Redirect(settings.proxy_port.clone())]);
        self.nat(chain::IN_REDIRECT, vec![tcp(), Counter, Redirect(settings.inbound_capture_port.clone())]);
    }

    /// First part of S6 for TPROXY: the two chains that keep and that deliver packets.
    fn transparent_targets(&mut self) {
        if self.settings.inbound_ports == Selection::None {
            return;
        }
        let mark = || SetMark(self.settings.tproxy_mark.clone());
        let mut deliver = Vec::new();
        for family in self.families() {
            let port = self.settings.inbound_capture_port.clone();
            let socket = Statement::Tproxy(*family, port);
            deliver.push(vec![tcp(), self.not_to_loopback(*family), socket, mark(), Counter, Accept]);
        }
        let divert = [vec![Counter, mark()], vec![Counter, Accept]];
        divert.into_iter().for_each(|rule| self.mangle(chain::DIVERT, rule));
        deliver.into_iter().for_each(|rule| self.mangle(chain::TPROXY, rule));
    }

    /// S6: what arrives, decided in the table of the mode.
    fn inbound(&mut self, table: NativeTable) {
        let settings = self.settings;
        if settings.inbound_ports == Selection::None {
            return;
        }
        self.push(table, chain::PREROUTING, Place::Append, vec![tcp(), Counter, Jump(chain::INBOUND)]);
        if settings.inbound_ports == Selection::All {
            for port in &settings.inbound_ports_exclude {
                self.push(table, chain::INBOUND, Place::Append, vec![tcp(), to_tcp(port), Counter, Return]);
            }
            self.capture_inbound(table, None);
        }
        for port in settings.inbound_ports.listed() {
            self.capture_inbound(table, Some(port));
        }
    }

    fn capture_inbound(&mut self, table: NativeTable, port: Option<&Port>) {
        let port = port.map(to_tcp);
        let mut captured = vec![tcp()];
        captured.extend(port.clone());
        if table == NativeTable::Mangle {
            let mut known = vec![tcp(), Tracked(TrackedAs::Known)];
            known.extend(port);
            known.extend([Counter, Jump(chain::DIVERT)]);
            self.push(table, chain::INBOUND, Place::Append, known);
            captured.extend([Counter, Jump(chain::TPROXY)]);
        } else {
            captured.extend([Counter, Jump(chain::IN_REDIRECT)]);
        }
        self.push(table, chain::INBOUND, Place::Append, captured);
    }

    /// S7 to S9: into our chain; excluded ports; what the proxy passes through to the application.
    fn outbound_exceptions(&mut self) {
        self.nat(chain::HOOK_OUTPUT, vec![Counter, Jump(chain::OUTPUT)]);
        for excluded in &self.settings.outbound_ports_exclude {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                self.nat(chain::OUTPUT, vec![port(Side::Destination, protocol, excluded), Counter, Return]);
            }
        }
        for family in self.families() {
            self.nat(chain::OUTPUT, vec![on_lo(), passed_through(*family), Counter, Return]);
        }
    }

    /// S10 and S11: the proxy's own traffic is not captured again, except its calls to the pod's own address.
    fn proxy_owners(&mut self) {
        for owner in owners(&self.settings.proxy_uids, &self.settings.proxy_gids) {
            // Istio leaves DNS out of the group form of the first rule.
            let except_dns = self.dns != DnsCapture::Off && matches!(owner, Owner::User(_));
            self.proxy_owner(&owner, except_dns);
        }
    }

    fn proxy_owner(&mut self, owner: &Owner, except_dns: bool) {
        let tunnel = self.settings.inbound_tunnel_port.clone();
        let ports = if except_dns { NoneOfPorts(vec![DNS_PORT.into(), tunnel]) } else { not_to_tcp(tunnel) };
        for family in self.families() {
            let own = sent_by(false, owner, Spelling::Short);
            let address = self.not_to_loopback(*family);
            let rule = vec![on_lo(), tcp(), address, ports.clone(), own, Counter, Jump(chain::IN_REDIRECT)];
            self.nat(chain::OUTPUT, rule);
        }
        // A loopback range that is listed for capture, in either family, switches this off.
        if !self.settings.outbound_cidrs.listed().iter().any(Cidr::is_loopback) {
            let mut others = vec![on_lo()];
            if self.dns != DnsCapture::Off {
                others.extend([tcp(), not_to_tcp(DNS_PORT.into())]);
            }
            others.extend([sent_by(true, owner, Spelling::Short), Counter, Return]);
            self.nat(chain::OUTPUT, others);
        }
        self.nat(chain::OUTPUT, vec![sent_by(false, owner, Spelling::Short), Counter, Return]);
    }

    /// S12.
    fn owner_groups(&mut self) {
        let by_group = |negate, group: &Id| sent_by(negate, &Owner::Group(group.clone()), Spelling::Short);
        match &self.settings.owner_groups {
            OwnerGroups::AllExcept(groups) => {
                for group in groups {
                    self.nat(chain::OUTPUT, vec![by_group(false, group), Counter, Return]);
                }
            }
            OwnerGroups::Only(groups) => {
                let mut none_of_them: Vec<_> = groups.iter().map(|group| by_group(true, group)).collect();
                none_of_them.extend([Counter, Return]);
                self.nat(chain::OUTPUT, none_of_them);
            }
        }
    }

    /// S14 to S17: loopback and excluded ranges pass; listed ports and ranges go to the proxy.
    fn outbound(&mut self) {
        let settings = self.settings;
        for family in self.families() {
            let local = address_is(Side::Destination, *family, self.loopback(*family));
            self.nat(chain::OUTPUT, vec![local, Counter, Return]);
        }
        for range in self.ranges(&settings.outbound_cidrs_exclude) {
            self.nat(chain::OUTPUT, vec![range, Counter, Return]);
        }
        for port in &settings.outbound_ports {
            self.nat(chain::OUTPUT, vec![to_tcp(port), Counter, Jump(chain::REDIRECT)]);
        }
        if settings.outbound_cidrs == Selection::All {
            self.nat(chain::OUTPUT, vec![Counter, Jump(chain::REDIRECT)]);
            self.capture_virtual_interfaces(None);
        }
        for range in self.ranges(settings.outbound_cidrs.listed()) {
            self.capture_virtual_interfaces(Some(&range));
            self.nat(chain::OUTPUT, vec![range, Counter, Jump(chain::REDIRECT)]);
        }
    }

    fn capture_virtual_interfaces(&mut self, range: Option<&Statement>) {
        for name in &self.settings.virtual_interfaces {
            let mut rule = vec![InInterface(name.clone())];
            rule.extend(range.cloned());
            rule.extend([Counter, Jump(chain::REDIRECT)]);
            self.insert_first(rule);
        }
    }

    /// "Goes to this range" for each range, IPv4 first.
    fn ranges(&self, cidrs: &[Cidr]) -> Vec<Statement> {
        let of = |family| cidrs.iter().filter(move |cidr| cidr.address.is_ipv4() == (family == Family::V4));
        let all = self.families().iter().flat_map(|family| of(*family).map(|cidr| (*family, *cidr)));
        all.map(|(family, cidr)| address_is(Side::Destination, family, cidr.into())).collect()
    }

    /// S18: marks follow a connection, so that answers find the way back to the proxy.
    fn transparent_marks(&mut self) {
        let marked = || Statement::Mark { negate: false, mark: self.settings.tproxy_mark.clone() };
        let on_arrival = vec![tcp(), marked(), Counter, SaveMark];
        let kept = vec![on_lo(), tcp(), marked(), Counter, Return];
        let answered = vec![tcp(), ConnectionMark(self.settings.tproxy_mark.clone()), Counter, RestoreMark];
        let known = vec![tcp(), marked(), Counter, Return];
        self.mangle(chain::PREROUTING, on_arrival);
        self.mangle(chain::HOOK_OUTPUT, kept);
        for owner in owners(&self.settings.proxy_uids, &self.settings.proxy_gids) {
            for family in self.families() {
                let (address, own) = (self.not_to_loopback(*family), sent_by(false, &owner, Spelling::Short));
                let set = SetMark(OUTBOUND_MARK.into());
                self.mangle(chain::HOOK_OUTPUT, vec![on_lo(), tcp(), address, own, Counter, set]);
            }
        }
        self.mangle(chain::HOOK_OUTPUT, answered);
        self.insert_inbound(0, known);
        for family in self.families() {
            self.insert_inbound(1, vec![from_lo(), tcp(), passed_through(*family), Counter, Return]);
        }
        let not_from_proxy = Statement::Mark { negate: true, mark: Mark::from(OUTBOUND_MARK) };
        self.insert_inbound(2, vec![from_lo(), tcp(), not_from_proxy, Counter, Return]);
    }

    fn insert_inbound(&mut self, index: usize, statements: Vec<Statement>) {
        self.push(NativeTable::Mangle, chain::INBOUND, Place::Index(index), statements);
    }
}

fn tcp() -> Statement {
    Statement::Protocol(Protocol::Tcp)
}

fn on_lo() -> Statement {
    OutInterface("lo".to_owned())
}

fn from_lo() -> Statement {
    InInterface("lo".to_owned())
}

pub(super) fn port(side: Side, protocol: Protocol, port: &Port) -> Statement {
    Statement::Port { side, protocol, negate: false, port: port.clone() }
}

fn to_tcp(to: &Port) -> Statement {
    port(Side::Destination, Protocol::Tcp, to)
}

fn not_to_tcp(port: Port) -> Statement {
    Statement::Port { side: Side::Destination, protocol: Protocol::Tcp, negate: true, port }
}

fn address_is(side: Side, family: Family, net: Net) -> Statement {
    Statement::Address { side, family, negate: false, net }
}

/// "Comes from what the proxy passes through".
fn passed_through(family: Family) -> Statement {
    let address = match family {
        Family::V4 => PASSTHROUGH_V4,
        Family::V6 => PASSTHROUGH_V6,
    };
    address_is(Side::Source, family, Net::host(address, family))
}

fn sent_by(negate: bool, owner: &Owner, spelling: Spelling) -> Statement {
    Statement::Owner { negate, owner: owner.clone(), spelling }
}
