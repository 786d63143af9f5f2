//! TLS as MCR uses it: rustls configurations from certificates and keys in PEM files, and the identity in
//! a certificate. It opens no socket.

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

/// The parameters of a server.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Its certificate and the chain.
    pub certificate: &'a Path,
    /// The certificate's key.
    pub key: &'a Path,
    /// The CA of clients' certificates; without it none are requested.
    pub client_ca: Option<&'a Path>,
    /// The CA's list of revoked certificates.
    pub client_crl: Option<&'a Path>,
    /// Whether TLS 1.2 is accepted besides 1.3.
    pub is_old: bool,
}

/// The rustls configuration of a server, and the verifier of its clients' certificates.
#[derive(Clone, Debug)]
pub struct Serving {
    /// For a handshake.
    pub config: Arc<ServerConfig>,
    /// Verifies again a certificate that was valid at the handshake.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// The identity in the server's own certificate.
    pub identity: Identity,
}

/// The provider of cryptography.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The trusted CAs in a file.
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

/// The CAs that this host trusts.
pub fn native_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// The configuration of a client, with a certificate and its key if it has them.
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

/// The configuration of a server without session resumption: each connection sends its certificate.
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
    let identity = Identity::read(&chain[0])
        .ok_or_else(|| Unusable::new(of.certificate, "it is none", NO_CERTIFICATE))?;
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

/// A verifier of clients' certificates. A client may have none, and use a token instead; an invalid one
/// is refused.
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

/// What is wrong with a certificate and a key that rustls does not accept together.
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

/// Reads a key. It warns of one that others can read, but accepts it: mounted secrets often are by default.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Unusable> {
    let remedy = "give a readable file in PEM with a private key";
    let key = PrivateKeyDer::from_pem_file(path);
    if fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o007 != 0) {
        let path = path.display();
        tracing::warn!("{path}: every user of this host can read the key: chmod 600 {path}");
    }
    key.map_err(|error| Unusable::new(path, error, remedy))
}
