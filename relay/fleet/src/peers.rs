//! Datagrams between relays: while etcd is away, a relay asks its monitors not to fence it. A datagram
//! is an HMAC-SHA256 under the fleet's secret, followed by the message.

use std::io;
use std::net::{self, SocketAddr};
use std::time::Duration;

use ring::hmac;
use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::time::sleep;

use crate::member::{Answer, Question};

/// Most bytes of a datagram.
const DATAGRAM_MAX: usize = 512;
/// Pause before a socket that failed is read again.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of the HMAC in front.
const TAG_LEN: usize = 32;
/// Authenticated before the message, so that no other use of the secret can be mistaken for this one.
const PURPOSE: &[u8] = b"mcr fleet peers 1";

/// A message from one relay to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// It asks for a promise.
    Question(Question),
    /// It promises.
    Answer(Answer),
}

/// The fleet's secret.
pub struct Secret(hmac::Key);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret in the fleet's settings.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    fn tag(&self, body: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(PURPOSE);
        context.update(body);
        context.sign()
    }

    /// Makes a datagram.
    #[must_use]
    pub fn seal(&self, message: &Message) -> Vec<u8> {
        self.sign(&postcard::to_stdvec(message).unwrap_or_default())
    }

    /// Makes a datagram of bytes that may be a message.
    #[must_use]
    pub fn sign(&self, body: &[u8]) -> Vec<u8> {
        [self.tag(body).as_ref(), body].concat()
    }

    /// Reads a datagram; `None` where it is not from a relay of this fleet.
    #[must_use]
    pub fn open(&self, datagram: &[u8]) -> Option<Message> {
        let (tag, body) = datagram.split_at_checked(TAG_LEN)?;
        let signed = [PURPOSE, body].concat();
        hmac::verify(&self.0, &signed, tag).ok()?;
        postcard::from_bytes(body).ok()
    }
}

/// The socket for datagrams of the other relays.
#[derive(Debug)]
pub struct Peers {
    socket: UdpSocket,
}

impl Peers {
    /// Binds the port.
    ///
    /// # Errors
    ///
    /// The kernel's, if the port is in use or the address is not this host's.
    pub fn bind(at: SocketAddr) -> io::Result<net::UdpSocket> {
        let socket = net::UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Registers the socket with the runtime of the caller.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new(socket: net::UdpSocket) -> io::Result<Self> {
        let socket = UdpSocket::from_std(socket)?;
        Ok(Self { socket })
    }

    /// Sends a datagram; one that does not arrive is no error.
    pub async fn send(&self, secret: &Secret, to: SocketAddr, message: &Message) {
        if let Err(error) = self.socket.send_to(&secret.seal(message), to).await {
            tracing::debug!(%to, %error, "a relay is not reached");
        }
    }

    /// Waits for the next datagram that is signed with this fleet's secret.
    pub async fn next(&self, secret: &Secret) -> (Message, SocketAddr) {
        let mut buffer = [0; DATAGRAM_MAX];
        loop {
            match self.socket.recv_from(&mut buffer).await {
                Ok((length, from)) => {
                    if let Some(message) = secret.open(&buffer[..length]) {
                        return (message, from);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "relays are not heard");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(from: &str, to: &str, number: u64) -> Message {
        Message::Question(Question {
            from: from.to_owned(),
            session: number,
            to: to.to_owned(),
            to_session: number,
            hold_ms: number,
            nonce: number,
        })
    }

    #[test]
    fn opens_its_own_datagrams_and_none_that_were_altered() {
        let secret = Secret::new(&[7; 32]);
        let message = message("relay-a", "relay-b", 17);
        let datagram = secret.seal(&message);
        assert_eq!(secret.open(&datagram), Some(message));
        assert_eq!(Secret::new(&[8; 32]).open(&datagram), None);
        for index in 0..datagram.len() {
            let mut altered = datagram.clone();
            altered[index] ^= 1;
            assert_eq!(secret.open(&altered), None, "byte {index}");
        }
    }

    #[test]
    fn the_longest_names_fit_a_datagram() {
        let name = "x".repeat(rules::rule::NAME_MAX);
        let message = message(&name, &name, u64::MAX);
        assert!(Secret::new(&[]).seal(&message).len() <= DATAGRAM_MAX);
    }

    proptest! {
        #[test]
        fn takes_nothing_from_strangers(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(Secret::new(&[7; 32]).open(&bytes), None);
        }
    }
}
