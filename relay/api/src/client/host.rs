//! A daemon on another host, reached by TLS with a certificate or a token.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tls::{Alert, Heeding, Unusable};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A connection to a daemon.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A daemon on another host.
#[derive(Clone)]
pub struct Host {
    name: String,
    address: String,
    server: ServerName<'static>,
    config: Arc<ClientConfig>,
    token: Option<String>,
}

/// Why a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file is not usable.
    #[error(transparent)]
    File(#[from] Unusable),
    /// An address without a host name for its certificate.
    #[error("{0:?} is no HOST:PORT, as relay1.example:9471 or 10.0.0.1:9471")]
    Address(String),
}

impl Host {
    /// A host at `address`, whose certificate is signed by `ca`, or by a CA that this host trusts.
    ///
    /// # Errors
    /// The part that is not usable.
    pub fn new(
        (name, address, server): (&str, &str, Option<&str>),
        ca: Option<&Path>,
        own: Option<(&Path, &Path)>,
        token: Option<String>,
    ) -> Result<Self, HostError> {
        let invalid = || HostError::Address(address.to_owned());
        let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
        if port.parse::<u16>().is_err() {
            return Err(invalid());
        }
        let server = server
            .unwrap_or_else(|| host.trim_matches(['[', ']']))
            .to_owned();
        let roots = ca.map_or_else(|| Ok(tls::native_roots()), tls::roots)?;
        Ok(Self {
            name: name.to_owned(),
            address: address.to_owned(),
            server: ServerName::try_from(server).map_err(|_| invalid())?,
            config: Arc::new(tls::client(roots, own)?),
            token,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn authorization(&self) -> Option<String> {
        Some(format!("Bearer {}", self.token.as_ref()?))
    }

    pub(super) async fn connect(&self, alert: &Alert) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(&self.address).await?;
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(self.server.clone(), stream).await?;
        Ok(Box::new(Heeding::new(stream, alert.clone())))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.address)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({self})")
    }
}
