//! S13: DNS to the proxy's agent, and conntrack zones that keep its two conversations apart.

use crate::model::{Family, Net, Protocol};
use crate::plan::DnsCapture;
use crate::plan::native::Statement::{Counter, Jump, Redirect, Zone};
use crate::plan::native::sidecar::{Builder, DNS_PORT, address_is, port, sent_by, tcp};
use crate::plan::native::{Side, Spelling, chain, owners};

/// Port on which the proxy's agent answers DNS.
const AGENT_DNS_PORT: u16 = 15053;
/// Conntrack zone of DNS between agent and upstream resolver.
const ZONE_RESOLVER: u16 = 1;
/// Conntrack zone of DNS between application and agent.
const ZONE_APPLICATION: u16 = 2;

impl Builder<'_> {
    /// The whole step.
    pub(super) fn dns(&mut self) {
        if self.dns == DnsCapture::Off {
            return;
        }
        // Istio jumps for servers of either family, also when the rules of their family are left out. Without a rule
        // there is no chain to jump to, and the kernel cannot be given such a set.
        let servers = self.dns_servers();
        self.raw(chain::HOOK_OUTPUT, vec![Counter, Jump(chain::OUTPUT_DNS)]);
        self.nat(chain::OUTPUT, vec![Counter, Jump(chain::OUTPUT_DNS)]);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for server in &servers {
                let mut rule = Vec::new();
                match server {
                    Some((family, net)) => rule.push(address_is(Side::Destination, *family, net.clone())),
                    // Istio names TCP twice here, UDP once.
                    None if protocol == Protocol::Tcp => rule.push(tcp()),
                    None => {}
                }
                let to_dns = port(Side::Destination, protocol, &DNS_PORT.into());
                rule.extend([to_dns, Counter, Redirect(AGENT_DNS_PORT.into())]);
                self.nat(chain::OUTPUT_DNS, rule);
            }
        }
        self.dns_zones(&servers);
    }

    fn dns_zones(&mut self, servers: &[Option<(Family, Net)>]) {
        let asks = || port(Side::Destination, Protocol::Udp, &DNS_PORT.into());
        for owner in owners(&self.settings.proxy_uids, &self.settings.proxy_gids) {
            let own = || sent_by(false, &owner, Spelling::Meta);
            self.raw(chain::OUTPUT_DNS, vec![asks(), own(), Counter, Zone(ZONE_RESOLVER)]);
            let answers = port(Side::Source, Protocol::Udp, &AGENT_DNS_PORT.into());
            self.raw(chain::OUTPUT_DNS, vec![answers, own(), Counter, Zone(ZONE_APPLICATION)]);
        }
        self.raw(chain::PREROUTING, vec![Counter, Jump(chain::INBOUND)]);
        for server in servers {
            let with = |side| server.clone().map(|(family, net)| address_is(side, family, net));
            let mut asked = vec![asks()];
            asked.extend(with(Side::Destination));
            asked.extend([Counter, Zone(ZONE_APPLICATION)]);
            self.raw(chain::OUTPUT_DNS, asked);
            let mut answered = vec![port(Side::Source, Protocol::Udp, &DNS_PORT.into())];
            answered.extend(with(Side::Source));
            answered.extend([Counter, Zone(ZONE_RESOLVER)]);
            self.raw(chain::INBOUND, answered);
        }
    }

    /// The name servers whose traffic is captured; a single `None` stands for "any" when everything is.
    fn dns_servers(&self) -> Vec<Option<(Family, Net)>> {
        if self.dns == DnsCapture::All {
            return vec![None];
        }
        let of = |family| match family {
            Family::V4 => &self.facts.dns_servers_v4,
            Family::V6 => &self.facts.dns_servers_v6,
        };
        let all = self.families().iter().flat_map(|family| of(*family).iter().map(|server| (*family, server)));
        all.map(|(family, server)| Some((family, Net::host(server, family)))).collect()
    }
}
