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
        if self.listener.as_ref().is_none_or(|(at, _)| *at != listen)
            && let Err(error) = self.move_to(listen)
        {
            let previous = self.listener.as_ref();
            let stays = previous.map(|(at, _)| format!("; until then {at} stays in use"));
            let stays = stays.unwrap_or_default();
            return Some(format!(
                "cannot listen on {listen}: {error}; give another [api] listen{stays}"
            ));
        }
        let expired = self.identity().filter(|own| own.expires <= now());
        let trouble = expired.map(|_| "the certificate of [api] has ended; renew it".to_owned());
        self.unused.clone().or(trouble)
    }

    /// Listens on another address; if that cannot be, the present listener stays.
    fn move_to(&mut self, listen: SocketAddr) -> io::Result<()> {
        let mut bound = listening::listen(listen);
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        // One on all addresses is in the way of one on a single address with its port.
        if bound.as_ref().is_err_and(is_taken)
            && let Some((present, closed)) =
                self.listener.take_if(|(at, _)| at.port() == listen.port())
        {
            drop(closed);
            bound = listening::listen(listen);
            if bound.is_err() {
                let again = listening::listen(present).ok();
                self.listener = again.map(|listener| (present, listener));
            }
        }
        self.listener = Some((listen, bound?));
        Ok(())
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

/// Reads the files as the listener will; returns which cannot be used, and why.
pub(crate) fn try_files(settings: &ApiSettings) -> Result<(), String> {
    load(settings).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_present_listener_stays_where_another_cannot_be() {
        let mut door = Door::default();
        door.move_to("127.0.0.1:0".parse().unwrap()).unwrap();
        let (_, listener) = door.listener.take().unwrap();
        let own = listener.local_addr().unwrap();
        door.listener = Some((own, listener));
        let at = |door: &Door| door.listener.as_ref().map(|(at, _)| *at);
        // No host has an address that is reserved for documentation.
        assert!(door.move_to("192.0.2.1:9471".parse().unwrap()).is_err());
        assert_eq!(at(&door), Some(own));
        TcpStream::connect(own).await.unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = other.local_addr().unwrap();
        assert!(door.move_to(taken).is_err());
        assert_eq!(at(&door), Some(own));
        let all = SocketAddr::new("0.0.0.0".parse().unwrap(), own.port());
        door.move_to(all).unwrap();
        door.move_to(own).unwrap();
        assert_eq!(at(&door), Some(own));
        TcpStream::connect(own).await.unwrap();
    }
}
