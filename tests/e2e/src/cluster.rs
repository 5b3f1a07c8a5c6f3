//! The cluster of the demo: one node, an API server, and a machine outside with a web server.
//!
//! The primary network is set up as a node has it before Istio comes: a CNI list with `bridge` and `portmap`, written by
//! somebody with habits of his own, so that "not one byte changed" means something.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use agent_api::paths;
use sys::netns::Netns;
use testkit::api::ApiServer;
use testkit::containerd::{API_ADDRESS, Containerd, OUTSIDE_ADDRESSES};
use testkit::cri::Cri;
use testkit::service_account::ServiceAccountVolume;
use testkit::work_dir::WorkDir;

use crate::failure::Failure;
use crate::pods::Kubelet;

/// Namespace of the agent.
pub const AGENT_NAMESPACE: &str = "istio-system";
/// Port of the API server.
pub const API_PORT: u16 = 443;
/// Port of the web server outside the cluster.
pub const OUTSIDE_PORT: u16 = 9090;
/// The token the agent starts with.
pub const FIRST_TOKEN: &str = "first.token.of-the-demo";
/// The token after the rotation.
pub const SECOND_TOKEN: &str = "second.token.of-the-demo";

/// What the demo runs on. Fields are dropped in this order: the node before the directory it lives in.
pub struct Cluster {
    /// The API server. It is never dropped: it would end by connecting to itself, and its network is the node's. It ends
    /// with the process.
    pub api: &'static ApiServer,
    /// The node.
    pub node: Containerd,
    /// The runtime's socket.
    pub cri: Cri,
    /// The agent's service account.
    pub service_account: RefCell<ServiceAccountVolume>,
    /// Whether pods have IPv6.
    pub ipv6: bool,
    /// Everything on disk.
    pub work: WorkDir,
}

impl Cluster {
    /// Starts the node, the API server and the machine outside in `work`. `started` is called with the node as soon as
    /// there is one to end.
    ///
    /// # Errors
    /// Says what did not start. The directory, with the logs, is given back.
    pub fn start(work: WorkDir, started: impl FnOnce(&Containerd)) -> Result<Self, (WorkDir, Failure)> {
        let ipv6 = Path::new("/proc/sys/net/ipv6").is_dir();
        match Self::parts(&work, ipv6, started) {
            Ok((api, node, cri, account)) => {
                Ok(Self { api, node, cri, service_account: RefCell::new(account), ipv6, work })
            }
            Err(failure) => Err((work, failure)),
        }
    }

    /// Starts and stops pods.
    pub fn kubelet(&self) -> Kubelet<'_> {
        Kubelet { cri: &self.cri, cgroup: self.work.name(), logs: self.work.logs().join("pods") }
    }

    /// The run directory that plugin and agent share.
    pub fn run_dir(&self) -> PathBuf {
        run_dir(&self.work)
    }

    /// Copies what helps to understand a failure to the logs, as far as it is there: the plugin's log and the CNI files.
    pub fn collect_evidence(&self) {
        let entries = fs::read_dir(self.node.cni_config()).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).chain([paths::plugin_log(&self.run_dir())]) {
            if let Some(name) = path.file_name() {
                // What is not there is told by its absence.
                let _ = fs::copy(&path, self.work.logs().join(name));
            }
        }
    }

    /// Gives the agent's service account another token; the API server refuses the old one from now on.
    ///
    /// # Errors
    /// When the volume cannot be written.
    pub fn rotate_token(&self, token: &str) -> Result<(), Failure> {
        self.service_account.borrow_mut().rotate(token).map_err(Failure::system("rotate the token"))?;
        self.api.set_tokens(&[token]);
        Ok(())
    }

    /// Addresses of the web server outside the cluster, one for each family that pods have.
    pub fn outside_servers(&self) -> Vec<SocketAddr> {
        outside_servers(self.ipv6)
    }

    fn parts(
        work: &WorkDir,
        ipv6: bool,
        started: impl FnOnce(&Containerd),
    ) -> Result<(&'static ApiServer, Containerd, Cri, ServiceAccountVolume), Failure> {
        let node = Containerd::start(work)?;
        started(&node);
        let cri = Cri::new(&node.socket())?;
        write_lists(&node.cni_config(), &work.path().join("node/ipam"), ipv6)?;
        fs::create_dir_all(run_dir(work)).map_err(Failure::system("create the run directory"))?;

        let Ok(api_address) = format!("{API_ADDRESS}:{API_PORT}").parse::<SocketAddr>() else {
            return Failure::unexpected("the API server's address is no address");
        };
        let api = node.network()?.run(|| ApiServer::start(api_address))?;
        let api = api.map_err(Failure::system(format!("start the API server on {api_address}")))?;
        let api: &'static ApiServer = Box::leak(Box::new(api));
        api.set_tokens(&[FIRST_TOKEN]);
        let directory = work.path().join("node/service-account");
        let volume = ServiceAccountVolume::create(&directory, FIRST_TOKEN, api.ca_pem(), AGENT_NAMESPACE);
        let service_account = volume.map_err(Failure::system("write the service account volume"))?;

        serve_outside(&node.outside()?)?;
        Ok((api, node, cri, service_account))
    }
}

/// Gives a node its primary network as it is before Istio comes: a list, and a file that is none of our business.
///
/// # Errors
/// When they cannot be written.
pub fn write_lists(cni_config: &Path, data: &Path, ipv6: bool) -> Result<(), Failure> {
    let list = cni_config.join("10-demo.conflist");
    fs::write(&list, primary_list(data, ipv6)).map_err(Failure::system("write the CNI list"))?;
    fs::set_permissions(&list, fs::Permissions::from_mode(0o640)).map_err(Failure::system("write the CNI list"))?;
    let foreign = cni_config.join("99-other.conflist.disabled");
    fs::write(&foreign, "not JSON, and none of our business\n").map_err(Failure::system("write a foreign file"))
}

/// Starts the web server on the machine outside. It ends with the process: nothing of it is left on the machine.
///
/// # Errors
/// When its port is taken.
pub fn serve_outside(outside: &Netns) -> Result<(), Failure> {
    let listener = outside.run(|| e2e_guest::listen(OUTSIDE_PORT))?;
    let listener = listener.map_err(Failure::system("listen outside the cluster"))?;
    std::thread::spawn(move || drop(e2e_guest::serve(&listener)));
    Ok(())
}

/// Addresses of the web server outside, one for each family that pods have.
pub fn outside_servers(ipv6: bool) -> Vec<SocketAddr> {
    let addresses = OUTSIDE_ADDRESSES.iter().filter_map(|address| address.parse::<IpAddr>().ok());
    addresses.filter(|ip| ip.is_ipv4() || ipv6).map(|ip| SocketAddr::new(ip, OUTSIDE_PORT)).collect()
}

fn run_dir(work: &WorkDir) -> PathBuf {
    work.path().join("node/var/run/istio-cni")
}

/// A valid list that no JSON printer would write: tabs, blanks before colons, a number beyond 64 bits, escapes, letters
/// beyond ASCII, an unknown key in every place, and no line break at the end. `data` is where addresses are remembered.
fn primary_list(data: &Path, ipv6: bool) -> String {
    let ipv6_range = if ipv6 { ",\n\t\t\t\t\t[ {\"subnet\":\"fd00:244:7::/64\"} ]" } else { "" };
    let ipv6_route = if ipv6 { ", { \"dst\" : \"::/0\" }" } else { "" };
    format!(
        "{{\t\"name\" : \"demo\",\r\n\t\"cniVersion\":\"1.0.0\" ,\n\t\"x-owner\": \"caf\\u00e9 \u{2615}\",\n\
         \t\"x-serial\": 123456789012345678901234567890.50e0,\n\n\t\"plugins\": [\n\t\t{{ \"type\" : \"bridge\",\n\
         \t\t  \"bridge\":\"cni0\", \"isGateway\": true,   \"ipMasq\":false, \"hairpinMode\":true,\n\t\t  \"ipam\": {{\n\
         \t\t\t\t\"type\":\"host-local\", \"dataDir\":\"{data}\",\n\
         \t\t\t\t\"ranges\": [ [ {{\"subnet\":\"10.244.7.0/24\"}} ]{ipv6_range} ],\n\
         \t\t\t\t\"routes\": [ {{ \"dst\" : \"0.0.0.0/0\" }}{ipv6_route} ] }} }}\n\
         \t,\t{{\"type\":\"portmap\",\"capabilities\":{{\"portMappings\":true}},\"x-a\\/b\":[1E3,-0.0,null ]}}\n\t]\n}}",
        data = data.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_odd_list_is_a_valid_list() {
        for ipv6 in [false, true] {
            let list: Value = serde_json::from_str(&primary_list(Path::new("/work"), ipv6)).unwrap();
            assert_eq!(list["plugins"][0]["type"], "bridge");
            assert_eq!(list["plugins"][0]["ipam"]["ranges"].as_array().unwrap().len(), if ipv6 { 2 } else { 1 });
            assert_eq!(list["plugins"][1]["type"], "portmap");
        }
    }
}
