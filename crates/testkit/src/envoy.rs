//! A static Envoy configuration that behaves as the proxy of an injected pod.
//!
//! Two listeners stand where Istio's do: one for captured outbound connections, one for captured inbound ones. Both
//! pass the bytes on to where the client wanted to go. Each connection leaves one line of JSON in the access log, which
//! is the proof that Envoy served it. There are no services, no mutual TLS and no telemetry.

mod sidecar;

use serde::Deserialize;
use serde_json::{Value, json};

/// Port of the admin interface, on the pod's loopback.
pub const ADMIN_PORT: u16 = 15000;
/// Port that captured outbound connections arrive at.
pub const OUTBOUND_PORT: u16 = 15001;
/// Port that captured inbound connections arrive at.
pub const INBOUND_PORT: u16 = 15006;
/// Source addresses of connections Envoy hands on to the application: the rules let these through.
pub const INBOUND_SOURCES: [&str; 2] = ["127.0.0.6", "::6"];

pub use sidecar::{Sidecar, program};

/// Mark of connections that Envoy hands on to the application in TPROXY mode; the rules know it.
pub const TPROXY_MARK: u32 = 1337;

/// How captured inbound connections reach Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interception {
    /// With a rewritten destination. The application sees Envoy as client.
    Redirect,
    /// At a transparent socket. The application sees the true client.
    Tproxy,
}

/// One connection in the access log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Served {
    /// `inbound` or `outbound`.
    pub direction: String,
    /// Who connected.
    pub client: String,
    /// Where the client wanted to go.
    pub destination: String,
    /// Our own end of the connection to there. `None` when there was none.
    pub source: Option<String>,
}

/// The access log's lines. A last line that is still being written is left out.
pub fn served(log: &str) -> Vec<Served> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The configuration for REDIRECT mode, with the access log at `log` as the container sees it.
pub fn config(log: &str) -> Value {
    config_for(Interception::Redirect, log)
}

/// The configuration for either mode, with the access log at `log` as Envoy sees it.
pub fn config_for(interception: Interception, log: &str) -> Value {
    let filter = |name: &str, more: Value| {
        let kind = name.split('_').map(capitalised).collect::<String>();
        let mut config = json!({"@type": extension(&format!("listener.{name}.v3.{kind}"))});
        merge(&mut config, more);
        json!({"name": format!("envoy.filters.listener.{name}"), "typed_config": config})
    };
    let source = |address: &str| json!({"address": address, "port_value": 0});
    let [inbound_v4, inbound_v6] = INBOUND_SOURCES;
    let (inbound, inbound_cluster) = match interception {
        Interception::Redirect => (
            json!({"listener_filters": [filter("original_dst", json!({}))]}),
            json!({"upstream_bind_config": {
                "source_address": source(inbound_v4),
                "extra_source_addresses": [{"address": source(inbound_v6)}],
            }}),
        ),
        Interception::Tproxy => (
            json!({
                "transparent": true,
                "listener_filters": [
                    filter("original_dst", json!({})),
                    filter("original_src", json!({"mark": TPROXY_MARK})),
                ],
            }),
            json!({}),
        ),
    };
    json!({
        "node": {"id": "sidecar", "cluster": "demo"},
        "admin": {"address": socket("127.0.0.1", ADMIN_PORT)},
        "static_resources": {
            "listeners": [
                listener("inbound", INBOUND_PORT, log, json!({"traffic_direction": "INBOUND"}), inbound),
                listener("outbound", OUTBOUND_PORT, log, json!({
                    "traffic_direction": "OUTBOUND",
                    "use_original_dst": true,
                }), json!({})),
            ],
            "clusters": [
                original_destination("outbound", json!({})),
                original_destination("inbound", inbound_cluster),
                {"name": "nowhere", "type": "STATIC", "connect_timeout": "1s"},
            ],
        },
    })
}

/// A listener on `port` for both families. A connection made to the port itself was not captured: it goes nowhere,
/// since handing it on would make it come back for ever.
fn listener(direction: &str, port: u16, log: &str, traits: Value, more: Value) -> Value {
    let mut listener = json!({
        "name": direction,
        "address": socket("0.0.0.0", port),
        "additional_addresses": [{"address": socket("::", port)}],
        "filter_chains": [
            {
                "name": "not-captured",
                "filter_chain_match": {"destination_port": port},
                "filters": [proxy("not-captured", "nowhere", log)],
            },
            {"name": "captured", "filters": [proxy(direction, direction, log)]},
        ],
    });
    merge(&mut listener, traits);
    merge(&mut listener, more);
    listener
}

fn proxy(direction: &str, cluster: &str, log: &str) -> Value {
    json!({
        "name": "envoy.filters.network.tcp_proxy",
        "typed_config": {
            "@type": extension("network.tcp_proxy.v3.TcpProxy"),
            "stat_prefix": direction,
            "cluster": cluster,
            "access_log": [{
                "name": "envoy.access_loggers.file",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                    "path": log,
                    "log_format": {"json_format": {
                        "direction": direction,
                        "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
                        "destination": "%DOWNSTREAM_LOCAL_ADDRESS%",
                        "source": "%UPSTREAM_LOCAL_ADDRESS%",
                    }},
                },
            }],
        },
    })
}

fn original_destination(name: &str, more: Value) -> Value {
    let mut cluster = json!({
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "2s",
    });
    merge(&mut cluster, more);
    cluster
}

fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address": {"address": address, "port_value": port}})
}

fn extension(name: &str) -> String {
    format!("type.googleapis.com/envoy.extensions.filters.{name}")
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

fn merge(into: &mut Value, more: Value) {
    if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
        into.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_still_being_written_is_left_out() {
        let whole = r#"{"direction":"inbound","client":"10.0.0.9:1","destination":"10.0.0.2:80","source":null}"#;
        let log = format!("{whole}\n{{\"direction\":\"outb");
        let lines = served(&log);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].destination, "10.0.0.2:80");
        assert_eq!(lines[0].source, None);
    }

    #[test]
    fn captured_inbound_connections_leave_from_the_address_the_rules_let_through() {
        let config = config("/log");
        let clusters = config["static_resources"]["clusters"].as_array().unwrap();
        let inbound = clusters.iter().find(|cluster| cluster["name"] == "inbound").unwrap();
        assert_eq!(inbound["upstream_bind_config"]["source_address"]["address"], "127.0.0.6");
    }

    #[test]
    fn in_tproxy_mode_the_application_sees_the_true_client() {
        let config = config_for(Interception::Tproxy, "/log");
        let listener = &config["static_resources"]["listeners"][0];
        assert_eq!(listener["transparent"], true);
        let source = &listener["listener_filters"][1]["typed_config"];
        assert_eq!(source["mark"], TPROXY_MARK);
        assert!(source["@type"].as_str().unwrap().ends_with("listener.original_src.v3.OriginalSrc"), "{source}");
    }
}
