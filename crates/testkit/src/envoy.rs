//! A static Envoy configuration that behaves as the proxy of an injected pod.
//!
//! Two listeners stand where Istio's do: one for captured outbound connections, one for captured inbound ones. Both
//! pass the bytes on to where the client wanted to go. Each connection leaves one line of JSON in the access log, which
//! is the proof that Envoy served it. For REDIRECT mode; there are no services, no mutual TLS and no telemetry.

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

/// The configuration, with the access log at `log` as the container sees it.
pub fn config(log: &str) -> Value {
    let inbound_source = |address: &str| json!({"address": address, "port_value": 0});
    let [inbound_v4, inbound_v6] = INBOUND_SOURCES;
    json!({
        "node": {"id": "sidecar", "cluster": "demo"},
        "admin": {"address": socket("127.0.0.1", ADMIN_PORT)},
        "static_resources": {
            "listeners": [
                listener("inbound", INBOUND_PORT, log, json!({
                    "traffic_direction": "INBOUND",
                    "listener_filters": [{
                        "name": "envoy.filters.listener.original_dst",
                        "typed_config": {"@type": extension("listener.original_dst.v3.OriginalDst")},
                    }],
                })),
                listener("outbound", OUTBOUND_PORT, log, json!({
                    "traffic_direction": "OUTBOUND",
                    "use_original_dst": true,
                })),
            ],
            "clusters": [
                original_destination("outbound", json!({})),
                original_destination("inbound", json!({
                    "upstream_bind_config": {
                        "source_address": inbound_source(inbound_v4),
                        "extra_source_addresses": [{"address": inbound_source(inbound_v6)}],
                    },
                })),
                {"name": "nowhere", "type": "STATIC", "connect_timeout": "1s"},
            ],
        },
    })
}

/// A listener on `port` for both families. A connection made to the port itself was not captured: it goes nowhere,
/// since handing it on would make it come back for ever.
fn listener(direction: &str, port: u16, log: &str, more: Value) -> Value {
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
}
