//! The framing of gRPC: length-prefixed messages, and the status.

use hyper::HeaderMap;
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of the compression flag and the length before each message.
const PREFIX: usize = 5;

/// What is wrong with a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a reply of {length} bytes, of which {max} are taken at most: read less at once")]
    TooLong { length: usize, max: usize },
    #[error("a reply that is compressed, though nobody asked for that")]
    Compressed,
    #[error("a reply that is no message of etcd's: {0}")]
    Message(String),
    #[error("a reply that ends too early")]
    Short,
}

/// A message as sent over the wire.
pub(crate) fn frame(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let mut framed = BytesMut::with_capacity(PREFIX + encoded.len());
    framed.put_u8(0);
    // Far below 4 GiB: etcd accepts 1.5 MiB.
    framed.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    framed.put_slice(&encoded);
    framed.freeze()
}

/// A message from its bytes.
pub(crate) fn decode<R: Message + Default>(message: Bytes) -> Result<R, Malformed> {
    R::decode(message).map_err(|error| Malformed::Message(error.to_string()))
}

/// Reassembles messages from pieces. It holds no more than one message and one piece.
pub(crate) struct Frames {
    buffer: BytesMut,
    max: usize,
}

impl Frames {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            max,
        }
    }

    /// Adds a piece. [`Frames::next`] must have returned that there is no whole message.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole message.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Malformed> {
        let [flag, a, b, c, d, ..] = *self.buffer else {
            return Ok(None);
        };
        if flag != 0 {
            return Err(Malformed::Compressed);
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > self.max {
            return Err(Malformed::TooLong {
                length,
                max: self.max,
            });
        }
        if self.buffer.len() - PREFIX < length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Whether no bytes remain.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// The status of a call in its headers or trailers, if they have one.
pub(crate) fn status(headers: &HeaderMap) -> Option<(u32, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers
        .get("grpc-message")
        .map(|message| unescaped(message.as_bytes()))
        .unwrap_or_default();
    Some((code, message))
}

/// A status text without percent encoding and control characters, of limited length.
fn unescaped(text: &[u8]) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                plain.push(byte);
                rest = &tail[2..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    readable(&String::from_utf8_lossy(&plain))
}

/// A text of the other side as it may be logged.
pub(crate) fn readable(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(300)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{AuthenticateResponse, RangeResponse, TxnResponse, WatchResponse};
    use proptest::prelude::*;

    #[test]
    fn takes_messages_in_pieces() {
        let message = AuthenticateResponse {
            token: "abc".to_owned(),
        };
        let framed = frame(&message);
        let mut frames = Frames::new(100);
        for byte in &framed[..framed.len() - 1] {
            frames.push(&[*byte]);
            assert_eq!(frames.next(), Ok(None));
        }
        frames.push(&framed[framed.len() - 1..]);
        frames.push(&framed);
        for _ in 0..2 {
            let whole = frames.next().unwrap().unwrap();
            assert_eq!(decode::<AuthenticateResponse>(whole).unwrap(), message);
        }
        assert!(frames.is_empty());
    }

    #[test]
    fn refuses_a_length_above_the_limit_before_it_comes() {
        let mut frames = Frames::new(100);
        frames.push(&[0, 0, 0, 0, 101]);
        let refused = Malformed::TooLong {
            length: 101,
            max: 100,
        };
        assert_eq!(frames.next(), Err(refused));
    }

    #[test]
    fn refuses_compression() {
        let mut frames = Frames::new(100);
        frames.push(&[1, 0, 0, 0, 0]);
        assert_eq!(frames.next(), Err(Malformed::Compressed));
    }

    #[test]
    fn reads_escaped_texts() {
        assert_eq!(unescaped(b"a%20b%0A%zz%2"), "a b%zz%2");
        assert_eq!(unescaped(&[b'x'; 5000]).len(), 300);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = RangeResponse::decode(bytes.as_slice());
            let _ = WatchResponse::decode(bytes.as_slice());
            if let Ok(reply) = TxnResponse::decode(bytes.as_slice()) {
                let _ = crate::TxnReply::from(reply);
            }
            let _ = unescaped(&bytes);
            let mut frames = Frames::new(64);
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next() {}
        }
    }
}
