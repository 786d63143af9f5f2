//! Handshakes, which cost more than all else that a stranger can have done here: those of one address
//! take turns, so that a crowd delays nobody elsewhere. A turn is the server's own work alone: who says
//! nothing, or no more, keeps none.

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

use super::super::body_quota::Whose;

/// How long a handshake may take, with what it waits for others.
const LONGEST: Duration = Duration::from_secs(5);

/// The turns of all who have connected: no more than there are connections.
#[derive(Debug, Default)]
pub(super) struct Turns(HashMap<Whose, Weak<Semaphore>>);

impl Turns {
    /// The turns of an address, for one more who comes from there.
    pub(super) fn of(&mut self, whose: Whose) -> Turn {
        self.0.retain(|_, turns| turns.strong_count() > 0);
        let known = self.0.get(&whose).and_then(Weak::upgrade);
        let turns = known.unwrap_or_else(|| Arc::new(Semaphore::new(1)));
        self.0.insert(whose, Arc::downgrade(&turns));
        Turn(turns)
    }
}

/// Somebody's, among others of its address.
#[derive(Debug)]
pub(super) struct Turn(Arc<Semaphore>);

impl Turn {
    /// Agrees on keys with who has connected.
    ///
    /// # Errors
    /// It showed a certificate that is not believed, speaks no TLS, or took too long.
    pub(super) async fn shake_hands(
        &self,
        stream: TcpStream,
        config: &Arc<ServerConfig>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let handshake = async {
            let greeted = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let turn = tokio::select! {
                biased;
                () = is_gone(&greeted.io) => return Err(io::ErrorKind::ConnectionAborted.into()),
                turn = self.0.acquire() => turn,
            };
            // Answers the greeting, with keys and a signature, before it is polled.
            let answered = greeted.into_stream(Arc::clone(config));
            // Whoever else is ready goes before the next of this address.
            yield_now().await;
            drop(turn);
            answered.await
        };
        let late = |_| io::Error::other(format!("no handshake within {} s", LONGEST.as_secs()));
        timeout(LONGEST, handshake).await.map_err(late)?
    }
}

/// Waits until the other end has closed: whoever gave up costs the others of its address no turn.
async fn is_gone(stream: &TcpStream) {
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
    async fn who_gave_up_waits_for_no_turn() {
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
        client.write_all(&greeting()).await.unwrap();
        drop(client);
        let (stream, _) = listener.accept().await.unwrap();
        let _held = turns.0.acquire().await;
        let error = turns
            .shake_hands(stream, &Arc::new(config))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
    }

    /// What a client says first.
    fn greeting() -> Vec<u8> {
        let config = tls::client(RootCertStore::empty(), None).unwrap();
        let server = "relay.example".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), server).unwrap();
        let mut said = Vec::new();
        client.write_tls(&mut said).unwrap();
        said
    }

    #[tokio::test]
    async fn those_of_one_address_take_turns_and_who_is_gone_is_forgotten() {
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
