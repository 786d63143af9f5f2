//! TLS as MCR speaks it: certificates and keys read of files in PEM, made into rustls' settings, and
//! what a certificate says of itself. It opens no socket.

mod alert;
mod certificate;
pub mod token;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

pub use alert::{Alert, Heeding, of_tls};
pub use certificate::{Identity, expires};

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}: {remedy}", path.display())]
pub struct Unusable {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Unusable {
    fn new(path: &Path, reason: impl ToString, remedy: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            reason: reason.to_string(),
            remedy,
        }
    }
}

/// What a server is made of.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Its certificate and what signed it.
    pub certificate: &'a Path,
    /// The certificate's key.
    pub key: &'a Path,
    /// What certificates of clients are signed by; without it none are asked for.
    pub client_ca: Option<&'a Path>,
    /// Which of these are revoked.
    pub client_crl: Option<&'a Path>,
    /// Whether TLS 1.2 is spoken besides 1.3.
    pub is_old: bool,
}

/// A server as rustls has it, and what judges the certificates of its clients.
#[derive(Clone, Debug)]
pub struct Serving {
    /// For a handshake.
    pub config: Arc<ServerConfig>,
    /// Judges a certificate again that was good once.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// What the server's own certificate says of itself.
    pub identity: Identity,
}

/// The cryptography.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Those who are trusted by the certificates in a file.
///
/// # Errors
/// The file cannot be used.
pub fn roots(path: &Path) -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| Unusable::new(path, error, "give certificates of CAs"))?;
    }
    Ok(roots)
}

/// Those whom this host trusts.
pub fn native_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// A client, with a certificate and its key where it has them.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn client(roots: RootCertStore, own: Option<(&Path, &Path)>) -> Result<ClientConfig, Unusable> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions(true))
        .expect("the cryptography knows both versions")
        .with_root_certificates(roots);
    let Some((certificate, key)) = own else {
        return Ok(builder.with_no_client_auth());
    };
    builder
        .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
        .map_err(|error| mismatched(certificate, key, error))
}

/// A server that keeps no sessions: each connection shows its certificate anew.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn server(of: Server<'_>) -> Result<Serving, Unusable> {
    let verifier = of
        .client_ca
        .map(|ca| verifier(ca, of.client_crl))
        .transpose()?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions(of.is_old))
        .expect("the cryptography knows both versions");
    let builder = match &verifier {
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        None => builder.with_no_client_auth(),
    };
    let chain = certificates(of.certificate)?;
    let identity = Identity::read(&chain[0]);
    let identity =
        identity.ok_or_else(|| Unusable::new(of.certificate, "it is none", NO_CERTIFICATE))?;
    let mut config = builder
        .with_single_cert(chain, private_key(of.key)?)
        .map_err(|error| mismatched(of.certificate, of.key, error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Serving {
        config: Arc::new(config),
        verifier,
        identity,
    })
}

/// What judges certificates of clients, who may have a token instead, but no certificate that is wrong.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn verifier(ca: &Path, crl: Option<&Path>) -> Result<Arc<dyn ClientCertVerifier>, Unusable> {
    let remedy = "give lists of revoked certificates in PEM that the CA signed";
    let revoked = match crl {
        None => Vec::new(),
        Some(path) => CertificateRevocationListDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, pem::Error>>)
            .map_err(|error| Unusable::new(path, error, remedy))?,
    };
    if let Some(path) = crl.filter(|_| revoked.is_empty()) {
        return Err(Unusable::new(path, "it has no list", remedy));
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider())
        .with_crls(revoked)
        .only_check_end_entity_revocation()
        .allow_unauthenticated()
        .build()
        .map_err(|error| Unusable::new(crl.unwrap_or(ca), error, remedy))
}

fn versions(is_old: bool) -> &'static [&'static SupportedProtocolVersion] {
    static NEW: &[&SupportedProtocolVersion] = &[&TLS13];
    if is_old { rustls::ALL_VERSIONS } else { NEW }
}

/// What is wrong with a certificate and a key together.
fn mismatched(certificate: &Path, key: &Path, error: rustls::Error) -> Unusable {
    match error {
        rustls::Error::InvalidCertificate(_) => Unusable::new(
            certificate,
            error,
            "give a certificate of X.509 version 3, which it is with an extension, as \
             extendedKeyUsage = clientAuth",
        ),
        _ => Unusable::new(key, error, "give the key of the certificate"),
    }
}

const NO_CERTIFICATE: &str = "give a readable file in PEM with a certificate";

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, pem::Error>>)
        .map_err(|error| Unusable::new(path, error, NO_CERTIFICATE))?;
    if certificates.is_empty() {
        return Err(Unusable::new(path, "it has no certificate", NO_CERTIFICATE));
    }
    Ok(certificates)
}

/// Reads a key. One that others can read is told of and taken: a mounted secret often is so by default.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Unusable> {
    let remedy = "give a readable file in PEM with a private key";
    let key = PrivateKeyDer::from_pem_file(path);
    if fs::metadata(path).is_ok_and(|there| there.mode() & 0o007 != 0) {
        let path = path.display();
        tracing::warn!("{path}: every user of this host can read the key: chmod 600 {path}");
    }
    key.map_err(|error| Unusable::new(path, error, remedy))
}
