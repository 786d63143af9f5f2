//! What TLS needs, read of files.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::config::{ConfigError, Endpoint, Tls};

/// Reads the files.
///
/// # Errors
/// Which file cannot be used, and why.
pub(crate) fn load(tls: &Tls) -> Result<Arc<ClientConfig>, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(&tls.ca, error, "give certificates of CAs"))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&tls.ca, error, "report this"))?
        .with_root_certificates(roots);
    let mut config = match (&tls.certificate, &tls.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(_), None) => return Err(ConfigError::HalfCertificate("key")),
        (None, Some(_)) => return Err(ConfigError::HalfCertificate("certificate")),
        (Some(certificate), Some(key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| unusable(key, error, "give the key of the certificate"))?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// What the endpoint's certificate must name.
///
/// # Errors
/// The host is neither a name nor an address.
pub(crate) fn server_name(endpoint: &Endpoint) -> Result<ServerName<'static>, ConfigError> {
    ServerName::try_from(endpoint.host.clone())
        .map_err(|_| ConfigError::ServerName(endpoint.clone()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let remedy = "give a readable file in PEM with a certificate";
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, pem::Error>>)
        .map_err(|error| unusable(path, error, remedy))?;
    if certificates.is_empty() {
        return Err(unusable(path, "it has no certificate", remedy));
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    let remedy = "give a readable file in PEM with a private key";
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable(path, error, remedy))
}

fn unusable(path: &Path, reason: impl ToString, remedy: &'static str) -> ConfigError {
    ConfigError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
        remedy,
    }
}
