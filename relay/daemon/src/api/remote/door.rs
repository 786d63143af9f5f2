//! The entry for clients of other hosts: the listening socket, and the files that a handshake needs.
//! Changed files are read again; if the new ones are wrong, the old ones stay in use.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use config::{ApiSettings, TlsVersion};
use rustls::server::danger::ClientCertVerifier;
use tls::{Identity, Server, Serving};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::super::listening;
use super::now;
use crate::config_files::{Stamp, stamp};

pub(super) type Verifier = Arc<dyn ClientCertVerifier>;
/// The current configuration of handshakes.
pub(super) type Current = watch::Receiver<Option<Serving>>;

#[derive(Debug, Default)]
pub(super) struct Door {
    listener: Option<(SocketAddr, TcpListener)>,
    serving: watch::Sender<Option<Serving>>,
    /// The settings and files it was read from.
    seen: Option<(ApiSettings, Vec<Stamp>)>,
    /// Why the current files are not in use.
    unused: Option<String>,
}

impl Door {
    pub(super) fn subscribe(&self) -> Current {
        self.serving.subscribe()
    }

    /// The identity in the certificate in use.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.serving
            .borrow()
            .as_ref()
            .map(|serving| serving.identity.clone())
    }

    /// Accepts the next connection; waits for ever while nobody is served.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match &self.listener {
            Some((_, listener)) => listener.accept().await,
            None => std::future::pending().await,
        }
    }

    /// Applies the current settings and their files; returns what cannot be applied.
    pub(super) fn follow(&mut self, settings: &ApiSettings) -> Option<String> {
        let lacks = settings.listen.and_then(|_| settings.lacks());
        let Some(listen) = settings.listen.filter(|_| lacks.is_none()) else {
            *self = Self::default();
            return lacks.map(str::to_owned);
        };
        self.read(settings);
        if self.serving.borrow().is_none() {
            return self.unused.clone();
        }
        if self.listener.as_ref().is_none_or(|(at, _)| *at != listen) {
            self.listener = None;
            match listening::listen(listen) {
                Ok(listener) => self.listener = Some((listen, listener)),
                Err(error) => {
                    return Some(format!(
                        "cannot listen on {listen}: {error}; give another [api] listen"
                    ));
                }
            }
        }
        let expired = self.identity().filter(|own| own.expires <= now());
        let trouble = expired.map(|_| "the certificate of [api] has ended; renew it".to_owned());
        self.unused.clone().or(trouble)
    }

    /// Reads the files if they or the settings have changed.
    fn read(&mut self, settings: &ApiSettings) {
        let files = ApiSettings {
            client: Default::default(),
            listen: None,
            ..settings.clone()
        };
        let paths = [
            &files.certificate,
            &files.key,
            &files.client_ca,
            &files.client_crl,
        ];
        let stamps = paths
            .iter()
            .map(|path| path.as_deref().and_then(stamp))
            .collect();
        let now = Some((files, stamps));
        if self.seen == now {
            return;
        }
        match load(settings) {
            Ok(serving) => {
                self.serving.send_replace(Some(serving));
                self.unused = None;
            }
            Err(error) => {
                let stays = if self.serving.borrow().is_some() {
                    "; what was read before stays in use"
                } else {
                    ""
                };
                self.unused = Some(format!("{error}{stays}"));
            }
        }
        self.seen = now;
    }
}

fn load(settings: &ApiSettings) -> Result<Serving, String> {
    let (certificate, key) = (settings.certificate.as_deref(), settings.key.as_deref());
    let serving = tls::server(Server {
        certificate: certificate.unwrap_or(Path::new("certificate")),
        key: key.unwrap_or(Path::new("key")),
        client_ca: settings.client_ca.as_deref(),
        client_crl: settings.client_crl.as_deref(),
        is_old: settings.tls == Some(TlsVersion::V12),
    });
    serving.map_err(|error| error.to_string())
}
