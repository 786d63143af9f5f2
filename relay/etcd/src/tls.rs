//! The TLS configuration, read from files, and the meaning of TLS failures.

use std::io;
use std::sync::Arc;

use ::tls::Unusable;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};

use crate::config::{ConfigError, Endpoint, Tls};
use crate::connect_error::{ConnectError, chain};
use ::tls::of_tls;

/// Reads the files.
///
/// # Errors
/// Which file cannot be used, and why.
pub(crate) fn load(tls: &Tls) -> Result<Arc<ClientConfig>, ConfigError> {
    let own = match (&tls.certificate, &tls.key) {
        (None, None) => None,
        (Some(_), None) => return Err(ConfigError::HalfCertificate("key")),
        (None, Some(_)) => return Err(ConfigError::HalfCertificate("certificate")),
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
    };
    let mut config = ::tls::client(::tls::roots(&tls.ca)?, own)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Why a handshake failed, and whether it would fail again.
pub(crate) fn handshake_error(endpoint: &Endpoint, files: &Tls, error: &io::Error) -> ConnectError {
    use rustls::CertificateError as Wrong;
    let theirs = |what: &str| ConnectError::Refused(format!("etcd's certificate {what}"));
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
        Some(rustls::Error::AlertReceived(alert)) => {
            ConnectError::Refused(certificate_refused(files, *alert))
        }
        _ => ConnectError::Failed(format!("TLS failed: {}", chain(error))),
    }
}

/// The reason for which etcd ended a connection with a TLS alert, and the remedy.
pub(crate) fn certificate_refused(files: &Tls, alert: AlertDescription) -> String {
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

/// The name that the endpoint's certificate must have.
///
/// # Errors
/// The host is neither a DNS name nor an address.
pub(crate) fn server_name(endpoint: &Endpoint) -> Result<ServerName<'static>, ConfigError> {
    ServerName::try_from(endpoint.host.clone())
        .map_err(|_| ConfigError::ServerName(endpoint.clone()))
}

impl From<Unusable> for ConfigError {
    fn from(
        Unusable {
            path,
            reason,
            remedy,
        }: Unusable,
    ) -> Self {
        Self::File {
            path,
            reason,
            remedy,
        }
    }
}
