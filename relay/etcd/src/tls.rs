//! What TLS needs, read from files, and what its failures mean.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};

use crate::alert::of_tls;
use crate::config::{ConfigError, Endpoint, Tls};
use crate::unmade::{Unmade, chain};

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
            .map_err(|error| mismatched(certificate, key, error))?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// What is wrong with the client's certificate and key together.
fn mismatched(certificate: &Path, key: &Path, error: rustls::Error) -> ConfigError {
    match error {
        rustls::Error::InvalidCertificate(_) => unusable(
            certificate,
            error,
            "give a certificate of X.509 version 3, which it is with an extension, as \
             extendedKeyUsage = clientAuth",
        ),
        _ => unusable(key, error, "give the key of the certificate"),
    }
}

/// Why a handshake failed; whether it will again.
pub(crate) fn unmade(endpoint: &Endpoint, files: &Tls, error: &io::Error) -> Unmade {
    use rustls::CertificateError as Wrong;
    let theirs = |what: &str| Unmade::Refused(format!("etcd's certificate {what}"));
    match of_tls(error) {
        Some(rustls::Error::InvalidCertificate(wrong)) => match wrong {
            Wrong::UnknownIssuer => theirs(&format!(
                "is not signed by a CA in {} (UnknownIssuer): give the file of the CA that signed it",
                files.ca.display()
            )),
            Wrong::Expired | Wrong::ExpiredContext { .. } => theirs(&format!(
                "is used after its time ({wrong}): renew it, or set this host's clock"
            )),
            Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => theirs(&format!(
                "is used before its time ({wrong}): set the clocks of this host and of the one that \
                 made it"
            )),
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => theirs(&format!(
                "does not name {}: give it a subjectAltName that does, or an endpoint that it names",
                endpoint.host
            )),
            wrong => theirs(&format!("is of no use: {wrong}: have another made")),
        },
        Some(rustls::Error::AlertReceived(alert)) => Unmade::Refused(disliked(files, *alert)),
        _ => Unmade::Failed(format!("TLS failed: {}", chain(error))),
    }
}

/// What it means that etcd ended a connection with a word of TLS.
pub(crate) fn disliked(files: &Tls, alert: AlertDescription) -> String {
    match &files.certificate {
        Some(certificate) => format!(
            "etcd refuses the certificate {} ({alert:?}): see that it has not expired, is one for \
             clients, and is signed by what etcd has as --trusted-ca-file",
            certificate.display()
        ),
        None => format!(
            "etcd wants a client certificate ({alert:?}): give one and its key, or start etcd without \
             --trusted-ca-file and --client-cert-auth"
        ),
    }
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
