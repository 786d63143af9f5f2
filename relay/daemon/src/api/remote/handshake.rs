//! Handshakes, the most expensive work that a stranger can cause here: those of one address take turns,
//! so that many from there delay no other address. A turn covers only the server's own work: a silent
//! client holds none.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::body_quota::ClientId;

/// How long a handshake may take, including its wait for others.
const LONGEST: Duration = Duration::from_secs(5);

/// The turns of all connected addresses: no more than there are connections.
#[derive(Debug, Default)]
pub(super) struct Turns(HashMap<ClientId, Weak<Semaphore>>);

impl Turns {
    /// The turns of an address, for one more connection from there.
    pub(super) fn of(&mut self, client: ClientId) -> Turn {
        self.0.retain(|_, turns| turns.strong_count() > 0);
        let existing = self.0.get(&client).and_then(Weak::upgrade);
        let turns = existing.unwrap_or_else(|| Arc::new(Semaphore::new(1)));
        self.0.insert(client, Arc::downgrade(&turns));
        Turn(turns)
    }
}

/// A connection's access to the turns of its address.
#[derive(Debug)]
pub(super) struct Turn(Arc<Semaphore>);

impl Turn {
    /// Performs the handshake with the client.
    ///
    /// # Errors
    /// It showed a certificate that is not trusted, speaks no TLS, or took too long.
    pub(super) async fn shake_hands(
        &self,
        stream: TcpStream,
        config: &Arc<ServerConfig>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let handshake = async {
            let greeted = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let turn = tokio::select! {
                biased;
                () = closed(&greeted.io) => return Err(io::ErrorKind::ConnectionAborted.into()),
                turn = self.0.acquire() => turn,
            };
            // Answers the ClientHello, with keys and a signature, before it is polled.
            let answered = greeted.into_stream(Arc::clone(config));
            // Other ready tasks run before the next handshake of this address.
            yield_now().await;
            drop(turn);
            answered.await
        };
        let late = |_| io::Error::other(format!("no handshake within {} s", LONGEST.as_secs()));
        timeout(LONGEST, handshake).await.map_err(late)?
    }
}

/// Waits until the client has closed: one that gave up takes no turn from others of its address.
async fn closed(stream: &TcpStream) {
    if matches!(stream.peek(&mut [0]).await, Ok(1..)) {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use rustls::server::ResolvesServerCertUsingSni;
    use rustls::version::TLS13;
    use rustls::{ClientConnection, RootCertStore};
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_client_that_gave_up_waits_for_no_turn() {
        let turns = Turns::default().of(1);
        let config = ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client.write_all(&client_hello()).await.unwrap();
        drop(client);
        let (stream, _) = listener.accept().await.unwrap();
        let _held = turns.0.acquire().await;
        let error = turns
            .shake_hands(stream, &Arc::new(config))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
    }

    /// A client's ClientHello.
    fn client_hello() -> Vec<u8> {
        let config = tls::client(RootCertStore::empty(), None).unwrap();
        let server = "relay.example".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), server).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn connections_of_one_address_take_turns_and_closed_ones_are_dropped() {
        let mut turns = Turns::default();
        let (one, same, other) = (turns.of(1), turns.of(1), turns.of(2));
        let held = one.0.acquire().await;
        assert!(same.0.try_acquire().is_err());
        assert!(other.0.try_acquire().is_ok());
        drop(held);
        assert!(same.0.try_acquire().is_ok());
        for whose in 3..5000 {
            turns.of(whose);
        }
        assert!(turns.0.len() <= 3, "{}", turns.0.len());
    }
}
