//! A line-based connection with limits on the length of a line and on the time until it is whole.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::Socket;
use thiserror::Error;

/// How long a read waits before other work gets its turn.
const TICK: Duration = Duration::from_millis(100);
/// How long the other side may take to read.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
const CHUNK: usize = 4096;

/// Why the conversation cannot go on.
#[derive(Debug, Error)]
pub enum Error {
    /// The other side closed it.
    #[error("the other side ended the connection")]
    Ended,
    /// No whole message arrived in time.
    #[error("no answer within {0:.0?}")]
    Late(Duration),
    /// A line is longer than allowed.
    #[error("a line of more than {0} bytes")]
    TooLong(usize),
    /// A line is not a message.
    #[error("not understood: {0}")]
    Unreadable(serde_json::Error),
    /// This side was asked to stop.
    #[error("interrupted")]
    Stopped,
    /// The kernel's error.
    #[error(transparent)]
    Socket(#[from] std::io::Error),
}

/// One end of the connection.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    buffer: Vec<u8>,
    line_bytes: usize,
}

impl Channel {
    /// Wraps a connected stream socket, on which lines of at most `line_bytes` are read.
    ///
    /// # Errors
    /// When its options cannot be set.
    pub fn new(socket: Socket, line_bytes: usize) -> Result<Self, Error> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(WRITE_LIMIT))?;
        Ok(Self {
            socket,
            buffer: Vec::new(),
            line_bytes,
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the other side does not take it.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(message).map_err(Error::Unreadable)?;
        line.push(b'\n');
        Ok(self.socket.write_all(&line)?)
    }

    /// Waits for a message for at most `limit`, however slowly its bytes arrive; calls `meanwhile`
    /// now and then, and stops waiting when that returns `false`.
    ///
    /// # Errors
    /// If no whole message arrives.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        mut meanwhile: impl FnMut() -> bool,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(Error::Unreadable);
            }
            if self.buffer.len() > self.line_bytes {
                return Err(Error::TooLong(self.line_bytes));
            }
            if start.elapsed() >= limit {
                return Err(Error::Late(limit));
            }
            if !meanwhile() {
                return Err(Error::Stopped);
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> Result<(), Error> {
        let mut chunk = [0; CHUNK];
        match self.socket.read(&mut chunk) {
            Ok(0) => Err(Error::Ended),
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(Error::Ended),
                _ => Err(error.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;
    use crate::wire::message::{REQUEST_BYTES, Request};

    const SOON: Duration = Duration::from_millis(300);

    fn pair() -> (Channel, Socket) {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        (Channel::new(one, REQUEST_BYTES).unwrap(), other)
    }

    fn received(channel: &mut Channel) -> Result<Request, Error> {
        channel.receive(SOON, || true)
    }

    #[test]
    fn lines_may_arrive_in_pieces_and_together() {
        let (mut channel, mut other) = pair();
        other.write_all(br#"{"clo"#).unwrap();
        assert!(matches!(received(&mut channel), Err(Error::Late(_))));
        other.write_all(b"ck\":{}}\n{\"clock\":{}}\n").unwrap();
        for _ in 0..2 {
            assert_eq!(received(&mut channel).unwrap(), Request::Clock {});
        }
        drop(other);
        assert!(matches!(received(&mut channel), Err(Error::Ended)));
    }

    #[test]
    fn a_line_without_end_is_not_buffered_for_ever() {
        let (mut channel, mut other) = pair();
        other.write_all(&[b'x'; 3 * REQUEST_BYTES]).unwrap();
        assert!(matches!(received(&mut channel), Err(Error::TooLong(_))));
        assert!(channel.buffer.len() <= REQUEST_BYTES + CHUNK);
    }
}
