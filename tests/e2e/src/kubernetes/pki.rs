//! Certificates and kubeconfigs of the cluster: one authority, one certificate for each component.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::failure::Failure;

/// Address of the node, at which all components find each other.
pub const NODE_ADDRESS: &str = "198.51.100.1";

/// A component or person that shows a certificate.
struct Member {
    /// Name of its files.
    file: &'static str,
    /// What Kubernetes knows it by.
    user: &'static str,
    /// Its group, which carries the rights of administrators and nodes.
    group: Option<&'static str>,
    /// Names and addresses it serves under.
    serves: &'static [&'static str],
    /// Whether it calls the API server and so needs a kubeconfig.
    calls: bool,
}

const MEMBERS: [Member; 5] = [
    Member {
        file: "apiserver",
        user: "kube-apiserver",
        group: None,
        serves: &[NODE_ADDRESS, "10.96.0.1", "127.0.0.1", "localhost", "kubernetes.default.svc"],
        calls: false,
    },
    Member { file: "admin", user: "admin", group: Some("system:masters"), serves: &[], calls: true },
    Member {
        file: "kube-controller-manager",
        user: "system:kube-controller-manager",
        group: None,
        serves: &[],
        calls: true,
    },
    Member { file: "kube-scheduler", user: "system:kube-scheduler", group: None, serves: &[], calls: true },
    Member {
        file: "kubelet",
        user: "system:node:node-1",
        group: Some("system:nodes"),
        serves: &["node-1", NODE_ADDRESS],
        calls: true,
    },
];

/// Writes keys, certificates and kubeconfigs to `directory`, and certificates to `pki` in it.
///
/// # Errors
/// When a key cannot be made or a file cannot be written.
pub fn write(directory: &Path) -> Result<(), Failure> {
    let pki = directory.join("pki");
    fs::create_dir_all(&pki).map_err(Failure::system(format!("create {}", pki.display())))?;
    let failed = |error: rcgen::Error| Failure::Unexpected(format!("make the cluster's certificates: {error}"));
    let ca_key = KeyPair::generate().map_err(failed)?;
    let mut ca = CertificateParams::new(Vec::new()).map_err(failed)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.distinguished_name.push(DnType::CommonName, "cluster authority");
    let ca_pem = ca.self_signed(&ca_key).map_err(failed)?.pem();
    private(&pki.join("ca.crt"), &ca_pem)?;
    let service_accounts = KeyPair::generate().map_err(failed)?;
    private(&pki.join("service-accounts.key"), &service_accounts.serialize_pem())?;
    private(&pki.join("service-accounts.pub"), &service_accounts.public_key_pem())?;
    let issuer = Issuer::new(ca, ca_key);
    for member in &MEMBERS {
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = member.params().and_then(|params| params.signed_by(&key, &issuer)).map_err(failed)?;
        private(&pki.join(format!("{}.crt", member.file)), &certificate.pem())?;
        private(&pki.join(format!("{}.key", member.file)), &key.serialize_pem())?;
        if member.calls {
            private(&directory.join(format!("{}.kubeconfig", member.file)), &kubeconfig(member.file))?;
        }
    }
    Ok(())
}

impl Member {
    fn params(&self) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(self.serves.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, self.user);
        if let Some(group) = self.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        Ok(params)
    }
}

/// Relative paths in a kubeconfig are looked for beside it: this one works on the node and on the machine.
fn kubeconfig(member: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: cluster\n\
         clusters: [{{name: cluster, cluster: {{server: 'https://{NODE_ADDRESS}', certificate-authority: pki/ca.crt}}}}]\n\
         users: [{{name: user, user: {{client-certificate: pki/{member}.crt, client-key: pki/{member}.key}}}}]\n\
         contexts: [{{name: cluster, context: {{cluster: cluster, user: user}}}}]\n"
    )
}

fn private(path: &Path, text: &str) -> Result<(), Failure> {
    let options = || fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = options().and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(Failure::system(format!("write {}", path.display())))
}
