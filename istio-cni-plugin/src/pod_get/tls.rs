//! Trust in the API server's certificate, as the kubeconfig states it.

use std::sync::Arc;

use agent_api::kubeconfig::ServerTrust;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms, ring,
    verify_tls12_signature, verify_tls13_signature,
};
use rustls::sign::SigningKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;
use webpki::ring as signatures;

/// Trust that cannot be established.
#[derive(Debug, Error)]
pub enum TrustError {
    /// Not base64.
    #[error("certificate-authority-data is not base64: {0}")]
    Base64(base64::DecodeError),
    /// Not certificates.
    #[error("certificate-authority-data does not hold PEM certificates: {0}")]
    Pem(String),
    /// No set-up for TLS.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// The client's side of TLS.
pub(super) fn client_config(trust: &ServerTrust) -> Result<Arc<ClientConfig>, TrustError> {
    let provider = Arc::new(provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TrustError::Setup)?;
    let config = match trust {
        ServerTrust::CaData(data) => builder.with_root_certificates(roots(data)?).with_no_client_auth(),
        ServerTrust::Insecure => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider))).with_no_client_auth()
        }
    };
    Ok(Arc::new(config))
}

/// What is needed to talk to an API server, and no more: the ready-made provider would bring cipher suites that every API
/// server can do without, and the client's own keys, which we have none of. Together they make up an eighth of the binary.
fn provider() -> CryptoProvider {
    use ring::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS13_AES_128_GCM_SHA256,
        TLS13_AES_256_GCM_SHA384,
    };
    CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ],
        kx_groups: vec![ring::kx_group::X25519, ring::kx_group::SECP256R1, ring::kx_group::SECP384R1],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &Random,
        key_provider: &NoKeys,
    }
}

/// Signatures that a server's certificate and handshake may carry.
static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        signatures::ECDSA_P256_SHA256,
        signatures::ECDSA_P256_SHA384,
        signatures::ECDSA_P384_SHA256,
        signatures::ECDSA_P384_SHA384,
        signatures::ED25519,
        signatures::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        signatures::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        signatures::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        signatures::RSA_PKCS1_2048_8192_SHA256,
        signatures::RSA_PKCS1_2048_8192_SHA384,
        signatures::RSA_PKCS1_2048_8192_SHA512,
    ],
    // TLS 1.2 leaves the curve open, so that each of its names stands for both.
    mapping: &[
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[signatures::ECDSA_P384_SHA384, signatures::ECDSA_P256_SHA384]),
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[signatures::ECDSA_P256_SHA256, signatures::ECDSA_P384_SHA256]),
        (SignatureScheme::ED25519, &[signatures::ED25519]),
        (SignatureScheme::RSA_PSS_SHA512, &[signatures::RSA_PSS_2048_8192_SHA512_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA384, &[signatures::RSA_PSS_2048_8192_SHA384_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA256, &[signatures::RSA_PSS_2048_8192_SHA256_LEGACY_KEY]),
        (SignatureScheme::RSA_PKCS1_SHA512, &[signatures::RSA_PKCS1_2048_8192_SHA512]),
        (SignatureScheme::RSA_PKCS1_SHA384, &[signatures::RSA_PKCS1_2048_8192_SHA384]),
        (SignatureScheme::RSA_PKCS1_SHA256, &[signatures::RSA_PKCS1_2048_8192_SHA256]),
    ],
};

/// The kernel's random numbers.
#[derive(Debug)]
struct Random;

impl SecureRandom for Random {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        use ::ring::rand::{SecureRandom as _, SystemRandom};

        SystemRandom::new().fill(bytes).map_err(|_| GetRandomFailed)
    }
}

/// The client logs in with a token, never with a certificate.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(&self, _key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("client certificates are not supported".to_owned()))
    }
}

fn roots(data: &str) -> Result<RootCertStore, TrustError> {
    let pem = STANDARD.decode(data).map_err(TrustError::Base64)?;
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| TrustError::Pem(error.to_string()))?;
        store.add(certificate).map_err(|error| TrustError::Pem(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(TrustError::Pem("there is none".to_owned()));
    }
    Ok(store)
}

/// `insecure-skip-tls-verify`: any certificate will do, but the server must own it.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_is_none_is_refused() {
        for data in
            ["%%%", "", "bm8gUEVN", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="]
        {
            assert!(client_config(&ServerTrust::CaData(data.to_owned())).is_err(), "{data}");
        }
    }
}
