//! Redirection of a pod's traffic to its sidecar proxy.
//!
//! The steps stand in the order in which Istio emits them, because the order decides and the text is compared. A rule
//! about "loopback" or "passthrough" names the address of its family.

use crate::config::{Cidr, HostFacts, Id, Mark, Mode, Selection, Settings};
use crate::model::{
    ConntrackState, Family, Match, Net, Owner, Position, Protocol, RedirectOption, Rule, Table, Target, builtin, chain,
};
use crate::plan::{DnsCapture, Plan};

/// Port on which the proxy's agent answers DNS.
const AGENT_DNS_PORT: u16 = 15053;
/// Port of DNS.
pub(super) const DNS_PORT: u16 = 53;
/// Conntrack zone of DNS between agent and upstream resolver.
const ZONE_RESOLVER: u16 = 1;
/// Conntrack zone of DNS between application and agent. Apart from the other one, or the two would clash.
const ZONE_APPLICATION: u16 = 2;
/// Source of connections that the proxy passes through to the application.
const PASSTHROUGH_V4: &str = "127.0.0.6";
/// The same for IPv6; the address is added to `lo`.
const PASSTHROUGH_V6: &str = "::6";
/// Mark of connections of the proxy to the pod's own address in TPROXY mode.
const OUTBOUND_MARK: u32 = 1338;
/// IPv6 loopback.
const LOOPBACK_V6: &str = "::1";

/// Builds the plan step by step.
struct Builder<'a> {
    settings: &'a Settings,
    facts: &'a HostFacts,
    dns: DnsCapture,
    plan: Plan,
}

/// The sidecar rule set of `settings`.
pub(super) fn plan(settings: &Settings, facts: &HostFacts) -> Plan {
    let dns = DnsCapture::of(settings, facts);
    let mut builder = Builder { settings, facts, dns, plan: Plan::default() };
    builder.exclude_interfaces();
    builder.leave_virtual_interfaces_alone();
    builder.drop_invalid();
    builder.redirect_targets();
    builder.inbound();
    builder.outbound_exceptions();
    builder.proxy_owners();
    builder.owner_groups();
    builder.dns();
    builder.outbound();
    builder.tproxy_marks();
    builder.plan
}

impl Builder<'_> {
    fn push(&mut self, family: Family, rule: Rule) {
        match family {
            Family::V4 => self.plan.v4.push(rule),
            Family::V6 if self.facts.ipv6 => self.plan.v6.push(rule),
            Family::V6 => {}
        }
    }

    /// One rule in both families; `rule` gets the family, for addresses that differ.
    fn each(&mut self, rule: impl Fn(&Self, Family) -> Rule) {
        for family in Family::BOTH {
            let rule = rule(self, family);
            self.push(family, rule);
        }
    }

    fn both(&mut self, rule: &Rule) {
        self.each(|_, _| rule.clone());
    }

    fn is_tproxy(&self) -> bool {
        self.settings.mode == Mode::Tproxy
    }

    fn passthrough(family: Family) -> Net {
        Net::host(if family == Family::V4 { PASSTHROUGH_V4 } else { PASSTHROUGH_V6 }, family)
    }

    fn loopback(&self, family: Family) -> Net {
        match family {
            Family::V4 => self.settings.loopback_v4.into(),
            Family::V6 => Net::host(LOOPBACK_V6, family),
        }
    }

    /// S1: nothing on these interfaces is captured.
    fn exclude_interfaces(&mut self) {
        let tables: &[Table] = if self.is_tproxy() { &[Table::Nat, Table::Mangle] } else { &[Table::Nat] };
        for table in tables {
            for interface in &self.settings.exclude_interfaces {
                let arriving = Match::InInterface(interface.clone());
                self.both(&append(*table, builtin::PREROUTING, vec![arriving], Target::Return));
                let leaving = Match::OutInterface(interface.clone());
                self.both(&append(*table, builtin::OUTPUT, vec![leaving], Target::Return));
            }
        }
    }

    /// S2: what comes from a virtual machine's interface is not inbound traffic. S17 inserts the captures before it.
    fn leave_virtual_interfaces_alone(&mut self) {
        for interface in &self.settings.virtual_interfaces {
            self.both(&insert_first(vec![Match::InInterface(interface.clone())], Target::Return));
        }
    }

    /// S3.
    fn drop_invalid(&mut self) {
        if self.settings.drop_invalid {
            let invalid = vec![Match::State(ConntrackState::Invalid)];
            self.both(&append(Table::Mangle, builtin::PREROUTING, invalid, Target::Jump(chain::DROP)));
            self.both(&append(Table::Mangle, chain::DROP, vec![], Target::Drop));
        }
    }

    /// S4 and S5: tunnels pass; the two chains that send to the proxy.
    fn redirect_targets(&mut self) {
        let tunnel = to_port(Protocol::Tcp, &self.settings.inbound_tunnel_port);
        self.both(&append(Table::Nat, chain::INBOUND, tunnel, Target::Return));
        let targets =
            [(chain::REDIRECT, &self.settings.proxy_port), (chain::IN_REDIRECT, &self.settings.inbound_capture_port)];
        for (chain, port) in targets {
            let target = Target::Redirect { port: port.clone(), option: RedirectOption::ToPorts };
            self.both(&append(Table::Nat, chain, vec![Match::Protocol(Protocol::Tcp)], target));
        }
    }

    /// S6: what arrives.
    fn inbound(&mut self) {
        if self.settings.inbound_ports == Selection::None {
            return;
        }
        let table = if self.is_tproxy() { Table::Mangle } else { Table::Nat };
        if self.is_tproxy() {
            self.tproxy_chains();
        }
        let tcp = || vec![Match::Protocol(Protocol::Tcp)];
        self.both(&append(table, builtin::PREROUTING, tcp(), Target::Jump(chain::INBOUND)));
        match &self.settings.inbound_ports {
            Selection::None => {}
            Selection::All => {
                for port in &self.settings.inbound_ports_exclude {
                    self.both(&append(table, chain::INBOUND, to_port(Protocol::Tcp, port), Target::Return));
                }
                self.capture_inbound(tcp());
            }
            Selection::Only(ports) => {
                for port in ports {
                    self.capture_inbound(to_port(Protocol::Tcp, port));
                }
            }
        }
    }

    /// What `matches` goes to the proxy.
    fn capture_inbound(&mut self, matches: Vec<Match>) {
        if !self.is_tproxy() {
            self.both(&append(Table::Nat, chain::INBOUND, matches, Target::Jump(chain::IN_REDIRECT)));
            return;
        }
        let mut known = matches.clone();
        known.push(Match::State(ConntrackState::RelatedOrEstablished));
        self.both(&append(Table::Mangle, chain::INBOUND, known, Target::Jump(chain::DIVERT)));
        self.both(&append(Table::Mangle, chain::INBOUND, matches, Target::Jump(chain::TPROXY)));
    }

    /// S6 in TPROXY mode: known connections are marked, so that the route table delivers them locally; new ones are
    /// handed to the proxy's transparent socket.
    fn tproxy_chains(&mut self) {
        let mark = self.settings.tproxy_mark.clone();
        self.both(&append(Table::Mangle, chain::DIVERT, vec![], Target::SetMark(mark.clone())));
        self.both(&append(Table::Mangle, chain::DIVERT, vec![], Target::Accept));
        let port = self.settings.inbound_capture_port.clone();
        self.each(|builder, family| {
            let not_local = Match::Destination { negate: true, net: builder.loopback(family) };
            let target = Target::Tproxy { port: port.clone(), mark: mark.clone() };
            append(Table::Mangle, chain::TPROXY, vec![not_local, Match::Protocol(Protocol::Tcp)], target)
        });
    }

    /// S18: the mark of an inbound connection follows its answers, and the proxy's own calls to the pod's address carry
    /// another one.
    fn tproxy_marks(&mut self) {
        if !self.is_tproxy() {
            return;
        }
        let mark = self.settings.tproxy_mark.clone();
        let tcp = || Match::Protocol(Protocol::Tcp);
        let marked = |mark: &Mark| Match::Mark { negate: false, mark: mark.clone() };
        let from_lo = || Match::InInterface("lo".to_owned());
        self.both(&append(Table::Mangle, builtin::PREROUTING, vec![tcp(), marked(&mark)], Target::SaveMark));
        self.both(&append(Table::Mangle, builtin::OUTPUT, vec![tcp(), on_lo(), marked(&mark)], Target::Return));
        let users = self.settings.proxy_uids.iter().cloned().map(Owner::User);
        let owners: Vec<Owner> = users.chain(self.settings.proxy_gids.iter().cloned().map(Owner::Group)).collect();
        for owner in owners {
            self.each(|builder, family| {
                let not_local = Match::Destination { negate: true, net: builder.loopback(family) };
                let owned = Match::Owner { negate: false, owner: owner.clone() };
                let target = Target::SetMark(OUTBOUND_MARK.into());
                append(Table::Mangle, builtin::OUTPUT, vec![not_local, tcp(), on_lo(), owned], target)
            });
        }
        let known = vec![tcp(), Match::ConnectionMark(mark.clone())];
        self.both(&append(Table::Mangle, builtin::OUTPUT, known, Target::RestoreMark));
        self.both(&insert(1, vec![tcp(), marked(&mark)]));
        self.each(|_, family| insert(2, vec![tcp(), Match::Source(Self::passthrough(family)), from_lo()]));
        let not_the_proxy = Match::Mark { negate: true, mark: OUTBOUND_MARK.into() };
        self.both(&insert(3, vec![tcp(), from_lo(), not_the_proxy]));
    }

    /// S7 to S9: into our chain; excluded ports; what the proxy passes through to the application.
    fn outbound_exceptions(&mut self) {
        self.both(&append(Table::Nat, builtin::OUTPUT, vec![], Target::Jump(chain::OUTPUT)));
        for port in &self.settings.outbound_ports_exclude {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                self.both(&output(to_port(protocol, port), Target::Return));
            }
        }
        self.each(|_, family| output(vec![on_lo(), Match::Source(Self::passthrough(family))], Target::Return));
    }

    /// S10 and S11: the proxy's own traffic is not captured again, except its calls to the pod's own address.
    fn proxy_owners(&mut self) {
        for uid in &self.settings.proxy_uids {
            self.proxy_owner(&Owner::User(uid.clone()), self.dns != DnsCapture::Off);
        }
        for gid in &self.settings.proxy_gids {
            // Istio leaves DNS out of the group form of the first rule.
            self.proxy_owner(&Owner::Group(gid.clone()), false);
        }
    }

    fn proxy_owner(&mut self, owner: &Owner, except_dns: bool) {
        let owned = |negate| Match::Owner { negate, owner: owner.clone() };
        self.each(|builder, family| {
            let tunnel = builder.settings.inbound_tunnel_port.clone();
            let not_local = Match::Destination { negate: true, net: builder.loopback(family) };
            let ports = if except_dns {
                Match::NoneOfDestinationPorts(vec![DNS_PORT.into(), tunnel])
            } else {
                Match::DestinationPort { negate: true, port: tunnel }
            };
            let matches = vec![on_lo(), not_local, Match::Protocol(Protocol::Tcp), ports, owned(false)];
            output(matches, Target::Jump(chain::IN_REDIRECT))
        });
        if !self.captures_loopback() {
            let mut matches = vec![on_lo()];
            if self.dns != DnsCapture::Off {
                matches.push(Match::Protocol(Protocol::Tcp));
                matches.push(Match::DestinationPort { negate: true, port: DNS_PORT.into() });
            }
            matches.push(owned(true));
            self.both(&output(matches, Target::Return));
        }
        self.both(&output(vec![owned(false)], Target::Return));
    }

    /// Whether a loopback range is listed for capture, in either family.
    fn captures_loopback(&self) -> bool {
        self.settings.outbound_cidrs.listed().iter().any(Cidr::is_loopback)
    }

    /// S12.
    fn owner_groups(&mut self) {
        use crate::config::OwnerGroups::{AllExcept, Only};
        let sent_by = |negate, group: &Id| Match::Owner { negate, owner: Owner::Group(group.clone()) };
        match &self.settings.owner_groups {
            AllExcept(groups) => {
                for group in groups {
                    self.both(&output(vec![sent_by(false, group)], Target::Return));
                }
            }
            Only(groups) => {
                let none_of_them = groups.iter().map(|group| sent_by(true, group)).collect();
                self.both(&output(none_of_them, Target::Return));
            }
        }
    }

    /// S13: DNS to the proxy's agent, and zones that keep its two conversations apart.
    fn dns(&mut self) {
        if self.dns == DnsCapture::Off {
            return;
        }
        self.both(&append(Table::Raw, builtin::OUTPUT, vec![], Target::Jump(chain::OUTPUT_DNS)));
        for family in Family::BOTH {
            if self.captures_dns(family) {
                self.push(family, output(vec![], Target::Jump(chain::OUTPUT_DNS)));
            }
        }
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            self.redirect_dns(protocol);
        }
        let owners: Vec<Owner> = (self.settings.proxy_uids.iter().cloned().map(Owner::User))
            .chain(self.settings.proxy_gids.iter().cloned().map(Owner::Group))
            .collect();
        for owner in owners {
            let owned = Match::Owner { negate: false, owner };
            let udp = Match::Protocol(Protocol::Udp);
            let to_resolver = vec![udp.clone(), to(DNS_PORT), owned.clone()];
            self.both(&append(Table::Raw, chain::OUTPUT_DNS, to_resolver, Target::ConntrackZone(ZONE_RESOLVER)));
            let to_application = vec![udp, Match::SourcePort(AGENT_DNS_PORT.into()), owned];
            self.both(&append(Table::Raw, chain::OUTPUT_DNS, to_application, Target::ConntrackZone(ZONE_APPLICATION)));
        }
        self.dns_zones();
    }

    /// The servers of a family; `None` stands for "any" when everything is captured.
    fn dns_servers(&self, family: Family) -> Vec<Option<Net>> {
        let servers = match family {
            Family::V4 => &self.facts.dns_servers_v4,
            Family::V6 => &self.facts.dns_servers_v6,
        };
        match self.dns {
            DnsCapture::Off => Vec::new(),
            DnsCapture::All => vec![None],
            DnsCapture::Servers => servers.iter().map(|server| Some(Net::host(server, family))).collect(),
        }
    }

    fn captures_dns(&self, family: Family) -> bool {
        !self.dns_servers(family).is_empty()
    }

    fn redirect_dns(&mut self, protocol: Protocol) {
        let option = match protocol {
            Protocol::Tcp => RedirectOption::ToPorts,
            Protocol::Udp => RedirectOption::ToPort,
        };
        for family in Family::BOTH {
            for server in self.dns_servers(family) {
                let mut matches = to_port(protocol, &DNS_PORT.into());
                matches.extend(server.map(|net| Match::Destination { negate: false, net }));
                let target = Target::Redirect { port: AGENT_DNS_PORT.into(), option };
                self.push(family, append(Table::Nat, chain::OUTPUT_DNS, matches, target));
            }
        }
    }

    fn dns_zones(&mut self) {
        for family in Family::BOTH {
            let servers = self.dns_servers(family);
            if servers.is_empty() {
                continue;
            }
            let jump = append(Table::Raw, builtin::PREROUTING, vec![], Target::Jump(chain::INBOUND));
            self.push(family, jump);
            for server in servers {
                let mut asked = to_port(Protocol::Udp, &DNS_PORT.into());
                asked.extend(server.clone().map(|net| Match::Destination { negate: false, net }));
                let zone = Target::ConntrackZone(ZONE_APPLICATION);
                self.push(family, append(Table::Raw, chain::OUTPUT_DNS, asked, zone));
                let mut answered = vec![Match::Protocol(Protocol::Udp), Match::SourcePort(DNS_PORT.into())];
                answered.extend(server.map(Match::Source));
                let zone = Target::ConntrackZone(ZONE_RESOLVER);
                self.push(family, append(Table::Raw, chain::INBOUND, answered, zone));
            }
        }
    }

    /// S14 to S17: loopback and excluded ranges pass; listed ports and ranges go to the proxy.
    fn outbound(&mut self) {
        self.each(|builder, family| output(vec![to_net(builder.loopback(family))], Target::Return));
        for family in Family::BOTH {
            for cidr in of_family(&self.settings.outbound_cidrs_exclude, family) {
                self.push(family, output(vec![to_net(cidr.into())], Target::Return));
            }
        }
        let capture = Target::Jump(chain::REDIRECT);
        for port in &self.settings.outbound_ports {
            self.both(&output(to_port(Protocol::Tcp, port), capture.clone()));
        }
        for family in Family::BOTH {
            if self.settings.outbound_cidrs == Selection::All {
                self.push(family, output(vec![], capture.clone()));
                self.capture_virtual_interfaces(family, None);
            }
            for cidr in of_family(self.settings.outbound_cidrs.listed(), family) {
                self.capture_virtual_interfaces(family, Some(cidr));
                self.push(family, output(vec![to_net(cidr.into())], capture.clone()));
            }
        }
    }

    fn capture_virtual_interfaces(&mut self, family: Family, cidr: Option<Cidr>) {
        for interface in &self.settings.virtual_interfaces {
            let mut matches = vec![Match::InInterface(interface.clone())];
            matches.extend(cidr.map(|cidr| to_net(cidr.into())));
            self.push(family, insert_first(matches, Target::Jump(chain::REDIRECT)));
        }
    }
}

fn append(table: Table, chain: &'static str, matches: Vec<Match>, target: Target) -> Rule {
    Rule { table, chain, position: Position::Append, matches, target }
}

fn output(matches: Vec<Match>, target: Target) -> Rule {
    append(Table::Nat, chain::OUTPUT, matches, target)
}

fn insert_first(matches: Vec<Match>, target: Target) -> Rule {
    Rule { position: Position::Insert(1), ..append(Table::Nat, builtin::PREROUTING, matches, target) }
}

/// Leaves the inbound chain of TPROXY mode, at this place in it.
fn insert(place: usize, matches: Vec<Match>) -> Rule {
    let rule = append(Table::Mangle, chain::INBOUND, matches, Target::Return);
    Rule { position: Position::Insert(place), ..rule }
}

fn on_lo() -> Match {
    Match::OutInterface("lo".to_owned())
}

fn to(port: u16) -> Match {
    Match::DestinationPort { negate: false, port: port.into() }
}

fn to_port(protocol: Protocol, port: &crate::config::Port) -> Vec<Match> {
    vec![Match::Protocol(protocol), Match::DestinationPort { negate: false, port: port.clone() }]
}

fn to_net(net: Net) -> Match {
    Match::Destination { negate: false, net }
}

fn of_family(cidrs: &[Cidr], family: Family) -> impl Iterator<Item = Cidr> + '_ {
    cidrs.iter().copied().filter(move |cidr| cidr.address.is_ipv4() == (family == Family::V4))
}
