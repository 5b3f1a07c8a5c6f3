//! Values that no rule can hold, found before anything is touched and told with the flag they came by.
//!
//! A dry run prints such values as Istio does. This is for the way to the kernel, where they would otherwise come back as
//! a refused rule.

use std::fmt::Display;

use crate::cli::flags::FLAGS;
use crate::config::detect::{GROUP, PASSWD, id_of};
use crate::config::{HostFacts, Id, Mark, Mode, OwnerGroups, Port, Selection, Settings};
use crate::plan::DnsCapture;

/// Longest interface name, in bytes.
const INTERFACE_NAME_MAX: usize = 15;

/// Looks at every value that the rules of `settings` would hold. `read` gives the text of a file.
///
/// # Errors
/// A sentence about the first one that cannot be used.
pub fn check(settings: &Settings, facts: &HostFacts, read: &dyn Fn(&str) -> String) -> Result<(), String> {
    check_ports(settings)?;
    check_interfaces("istio-exclude-interfaces", &settings.exclude_interfaces)?;
    check_interfaces("kube-virt-interfaces", &settings.virtual_interfaces)?;
    check_ids(&flag("proxy-uid"), &settings.proxy_uids, "user", PASSWD, read)?;
    check_ids(&flag("proxy-gid"), &settings.proxy_gids, "group", GROUP, read)?;
    let (source, groups) = match &settings.owner_groups {
        OwnerGroups::AllExcept(groups) => ("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", groups),
        OwnerGroups::Only(groups) => ("ISTIO_OUTBOUND_OWNER_GROUPS", groups),
    };
    check_ids(source, groups, "group", GROUP, read)?;
    check_marks(settings)?;
    check_name_servers(settings, facts)
}

fn check_ports(settings: &Settings) -> Result<(), String> {
    single_port("envoy-port", &settings.proxy_port)?;
    single_port("inbound-capture-port", &settings.inbound_capture_port)?;
    ports("inbound-tunnel-port", std::slice::from_ref(&settings.inbound_tunnel_port))?;
    ports("istio-inbound-ports", settings.inbound_ports.listed())?;
    // Nothing is excluded from a list, so nobody looks at it there.
    if settings.inbound_ports == Selection::All {
        ports("istio-local-exclude-ports", &settings.inbound_ports_exclude)?;
    }
    ports("istio-outbound-ports", &settings.outbound_ports)?;
    ports("istio-local-outbound-ports-exclude", &settings.outbound_ports_exclude)
}

fn ports(name: &str, ports: &[Port]) -> Result<(), String> {
    match ports.iter().find(|port| port.range().is_none()) {
        Some(port) => {
            Err(refusal(&flag(name), port, "a port is a number from 0 to 65535, or a range such as 8000:8010"))
        }
        None => Ok(()),
    }
}

fn single_port(name: &str, port: &Port) -> Result<(), String> {
    match port.range() {
        Some((first, last)) if first == last => Ok(()),
        _ => Err(refusal(&flag(name), port, "traffic is sent to one port, a number from 0 to 65535")),
    }
}

fn check_interfaces(name: &str, interfaces: &[String]) -> Result<(), String> {
    let usable = |interface: &&String| {
        let interface = interface.trim();
        let inside = interface.contains(|character: char| character.is_whitespace() || character == '/');
        !interface.is_empty() && interface.len() <= INTERFACE_NAME_MAX && !inside
    };
    match interfaces.iter().find(|interface| !usable(interface)) {
        Some(interface) => {
            let right =
                "an interface name has 1 to 15 bytes, no blanks and no slash; a `+` at its end stands for any rest";
            Err(refusal(&flag(name), interface, right))
        }
        None => Ok(()),
    }
}

fn check_ids(source: &str, ids: &[Id], what: &str, file: &str, read: &dyn Fn(&str) -> String) -> Result<(), String> {
    let mut named = ids.iter().filter(|id| id.number().is_none()).peekable();
    if named.peek().is_none() {
        return Ok(());
    }
    let text = read(file);
    match named.find(|id| id_of(id.as_str(), &text).is_none()) {
        Some(id) => Err(refusal(source, id, &format!("it is neither a number nor a {what} named in {file}"))),
        None => Ok(()),
    }
}

fn check_marks(settings: &Settings) -> Result<(), String> {
    if settings.mode != Mode::Tproxy {
        return Ok(());
    }
    let (name, mark) = ("istio-inbound-tproxy-mark", &settings.tproxy_mark);
    if settings.inbound_ports != Selection::None {
        routable(name, mark)?;
        return routable("istio-inbound-tproxy-route-table", &settings.tproxy_route_table);
    }
    match mark.value() {
        Some(_) => Ok(()),
        None => Err(refusal(&flag(name), mark, "a mark is a number from 0 to 4294967295")),
    }
}

/// Policy rules and routes take decimal numbers only.
fn routable(name: &str, mark: &Mark) -> Result<(), String> {
    match mark.decimal() {
        Some(1..) => Ok(()),
        _ => Err(refusal(&flag(name), mark, "TPROXY mode needs a decimal number from 1 to 4294967295 for its routes")),
    }
}

fn check_name_servers(settings: &Settings, facts: &HostFacts) -> Result<(), String> {
    if DnsCapture::of(settings, facts) != DnsCapture::Servers || !facts.ipv6 {
        return Ok(());
    }
    match facts.dns_servers_v6.iter().find(|server| server.contains('%')) {
        Some(server) => Err(refusal(
            "/etc/resolv.conf",
            server,
            "no rule can name a server with a zone; pass --capture-all-dns to capture all DNS",
        )),
        None => Ok(()),
    }
}

fn refusal(source: &str, value: impl Display, right: &str) -> String {
    format!("{source}: `{value}` cannot be used: {right}; nothing was changed")
}

/// A flag with the variables that may have set it.
fn flag(name: &str) -> String {
    let env = FLAGS.iter().find(|flag| flag.name == name).map_or(&[][..], |flag| flag.env);
    if env.is_empty() { format!("--{name}") } else { format!("--{name} ({})", env.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::Options;

    fn verdict(options: &Options) -> Result<(), String> {
        let facts = HostFacts { ipv6: true, dns_servers_v6: vec!["fe80::1%eth0".to_owned()], ..HostFacts::default() };
        let read = |path: &str| match path {
            PASSWD => "root:x:0:0::/:/bin/sh\n".to_owned(),
            _ => "ftp:x:21:\n".to_owned(),
        };
        check(&options.settings().unwrap(), &facts, &read)
    }

    #[test]
    fn a_refusal_names_the_flag_the_value_and_what_would_be_right() {
        let tproxy = Options { mode: "TPROXY".to_owned(), inbound_ports: "*".to_owned(), ..Options::default() };
        let text = str::to_owned;
        for (options, flag, value) in [
            (Options { envoy_port: text("65536"), ..Options::default() }, "--envoy-port", "`65536`"),
            (Options { inbound_capture_port: text("1:2"), ..Options::default() }, "INBOUND_CAPTURE_PORT", "`1:2`"),
            (Options { inbound_ports: text("80,*"), ..Options::default() }, "--istio-inbound-ports", "`*`"),
            (Options { outbound_ports: text("-1"), ..Options::default() }, "--istio-outbound-ports", "`-1`"),
            (
                Options { exclude_interfaces: text("eth0,a-name-of-sixteen"), ..Options::default() },
                "--istio-exclude-interfaces",
                "`a-name-of-sixteen`",
            ),
            (Options { virtual_interfaces: text("a/b"), ..Options::default() }, "--kube-virt-interfaces", "`a/b`"),
            (Options { proxy_uid: text("bob"), ..Options::default() }, "--proxy-uid", "`bob`"),
            (Options { owner_groups: text("ftp,java"), ..Options::default() }, "ISTIO_OUTBOUND_OWNER_GROUPS", "`java`"),
            (Options { tproxy_mark: text("0x10"), ..tproxy.clone() }, "--istio-inbound-tproxy-mark", "`0x10`"),
            (Options { tproxy_route_table: text("main"), ..tproxy }, "ISTIO_INBOUND_TPROXY_ROUTE_TABLE", "`main`"),
            (Options { redirect_dns: true, ..Options::default() }, "/etc/resolv.conf", "`fe80::1%eth0`"),
        ] {
            let sentence = verdict(&options).unwrap_err();
            assert!(sentence.contains(flag) && sentence.contains(value), "{sentence}");
            assert!(sentence.contains("nothing was changed"), "{sentence}");
        }
    }

    #[test]
    fn what_the_rules_can_hold_passes() {
        for options in [
            Options::default(),
            Options { inbound_ports: "80, 443,8000:8010".to_owned(), ..Options::default() },
            Options { exclude_interfaces: "eth+, net1".to_owned(), ..Options::default() },
            Options { proxy_uid: "root".to_owned(), proxy_gid: "ftp".to_owned(), ..Options::default() },
            // Not looked at by any rule.
            Options { inbound_ports_exclude: "x".to_owned(), inbound_ports: "80".to_owned(), ..Options::default() },
            Options { tproxy_mark: "x".to_owned(), ..Options::default() },
            Options { mode: "TPROXY".to_owned(), tproxy_mark: "0x10".to_owned(), ..Options::default() },
        ] {
            assert_eq!(verdict(&options), Ok(()), "{options:?}");
        }
    }
}
