//! The pods of the story: one as Istio's injector leaves it, and plain ones.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use serde_json::json;
use testkit::envoy;

use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::images::{APP_IMAGE, APP_PROGRAM, ENVOY_IMAGE, ENVOY_PROGRAM};
use crate::pods::{Container, Pod, Volume};
use crate::traffic::{APP_CONTAINER, APP_PORT};

/// User and group of Istio's proxy: the rules let its connections out.
const PROXY_USER: u32 = 1337;
const APP_USER: u32 = 1000;
const LOG_IN_POD: &str = "/var/log/envoy/access.log";

/// A pod without anything of a mesh.
pub fn plain(namespace: &str, name: &str) -> Pod {
    Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: [("app".to_owned(), name.to_owned())].into(),
        containers: vec![app()],
        ..Pod::default()
    }
}

/// A pod as Istio's injector leaves it on a cluster with istio-cni, with a real Envoy as `istio-proxy`. Also gives the
/// place of Envoy's access log on the node.
///
/// # Errors
/// When Envoy's files cannot be written.
pub fn injected(cluster: &Cluster, namespace: &str, name: &str) -> Result<(Pod, PathBuf), Failure> {
    let files = cluster.work.path().join("node/envoy").join(name);
    let logs = cluster.work.logs().join("envoy").join(name);
    write_envoy_files(&files, &logs).map_err(Failure::system(format!("write Envoy's files for {namespace}/{name}")))?;
    let status = json!({
        "initContainers": ["istio-validation"],
        "containers": ["istio-proxy"],
        "volumes": ["workload-socket", "istio-envoy", "istio-data", "istio-podinfo", "istio-token", "istiod-ca-cert"],
        "imagePullSecrets": null,
        "revision": "default",
    });
    let annotations = [
        ("sidecar.istio.io/status", status.to_string()),
        ("sidecar.istio.io/interceptionMode", "REDIRECT".to_owned()),
        ("istio.io/rev", "default".to_owned()),
        ("traffic.sidecar.istio.io/includeInboundPorts", "*".to_owned()),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "15090,15021".to_owned()),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "*".to_owned()),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", String::new()),
    ];
    let labels = [
        ("app", name),
        ("security.istio.io/tlsMode", "istio"),
        ("service.istio.io/canonical-name", name),
        ("service.istio.io/canonical-revision", "latest"),
    ];
    let volume = |node: PathBuf, container: &str, readonly| Volume { node, container: container.to_owned(), readonly };
    let shown = ["proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--proxyLogLevel=warning"];
    let proxy = Container {
        name: "istio-proxy".to_owned(),
        image: ENVOY_IMAGE.to_owned(),
        command: envoy_command(),
        // In a cluster Istio's own program stands in front and starts Envoy with a configuration from istiod.
        shown_arguments: Some(shown.map(str::to_owned).into()),
        environment: environment(cluster.ipv6),
        user: PROXY_USER,
        volumes: vec![volume(files, "/etc/envoy", true), volume(logs.clone(), "/var/log/envoy", false)],
        ..Container::default()
    };
    let pod = Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        annotations: annotations.map(|(key, value)| (key.to_owned(), value)).into(),
        containers: vec![app(), proxy],
    };
    Ok((pod, logs.join("access.log")))
}

fn app() -> Container {
    Container {
        name: APP_CONTAINER.to_owned(),
        image: APP_IMAGE.to_owned(),
        command: vec![APP_PROGRAM.to_owned(), "serve".to_owned(), APP_PORT.to_string()],
        user: APP_USER,
        ..Container::default()
    }
}

/// The proxy's variables. Without the second one Istio leaves the IPv6 side of a pod with both families alone.
fn environment(ipv6: bool) -> Vec<(String, String)> {
    let variables =
        [("ISTIO_META_INTERCEPTION_MODE", "REDIRECT"), ("ISTIO_DUAL_STACK", if ipv6 { "true" } else { "false" })];
    variables.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn envoy_command() -> Vec<String> {
    let words = [ENVOY_PROGRAM, "-c", "/etc/envoy/envoy.json", "--concurrency", "1", "--disable-hot-restart"];
    words.map(str::to_owned).into()
}

fn write_envoy_files(files: &std::path::Path, logs: &std::path::Path) -> std::io::Result<()> {
    fs::create_dir_all(files)?;
    fs::create_dir_all(logs)?;
    let config = files.join("envoy.json");
    fs::write(&config, format!("{:#}\n", envoy::config(LOG_IN_POD)))?;
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644))?;
    chown(logs, Some(PROXY_USER), Some(PROXY_USER))
}
