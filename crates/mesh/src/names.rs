//! Names that Istio gave to annotations, labels, containers and variables.

/// Name of the proxy's container.
pub const PROXY_CONTAINER: &str = "istio-proxy";
/// Name of the init container that sets rules up by itself.
pub const INIT_CONTAINER: &str = "istio-init";

/// Label and annotation: whether a pod is to be injected.
pub const INJECT: &str = "sidecar.istio.io/inject";
/// Annotation: the injector was here.
pub const STATUS: &str = "sidecar.istio.io/status";

/// Annotation: REDIRECT, TPROXY or NONE.
pub const INTERCEPTION_MODE: &str = "sidecar.istio.io/interceptionMode";
/// Annotation: outbound destinations to capture.
pub const INCLUDE_OUTBOUND_IP_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
/// Annotation: outbound destinations never captured.
pub const EXCLUDE_OUTBOUND_IP_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
/// Annotation: inbound ports to capture.
pub const INCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";
/// Annotation: inbound ports never captured.
pub const EXCLUDE_INBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
/// Annotation: outbound ports captured whatever the destination.
pub const INCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
/// Annotation: outbound ports never captured.
pub const EXCLUDE_OUTBOUND_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
/// Annotation: interfaces never captured.
pub const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
/// Annotation: interfaces whose incoming traffic counts as outbound.
pub const REROUTE_VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
/// Annotation: the older name of [`REROUTE_VIRTUAL_INTERFACES`].
pub const KUBEVIRT_INTERFACES: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";

/// Annotation of our own: what becomes of a family that has addresses but is not captured, `pass` or `refuse`.
pub const UNCAPTURED_TRAFFIC: &str = "cni.istio.io/uncaptured-traffic";

/// Variable of the proxy: there is no Envoy to redirect to.
pub const DISABLE_ENVOY: &str = "DISABLE_ENVOY";
/// Variable of the proxy: capture DNS.
pub const DNS_CAPTURE: &str = "ISTIO_META_DNS_CAPTURE";
/// Variable of the proxy: IPv6 rules even if the first address is an IPv4 one.
pub const DUAL_STACK: &str = "ISTIO_DUAL_STACK";
/// Variable of the proxy: drop packets that connection tracking calls invalid.
pub const INVALID_DROP: &str = "INVALID_DROP";
