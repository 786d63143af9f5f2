//! A TLS stream that remembers the alert with which the other side ended it.
//!
//! With TLS 1.3 a server verifies the client's certificate after the client has begun to send: the
//! alert arrives while the client writes, and a write that fails for that reason hides it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read at once from a stream that can no longer be written to.
const PIECE: usize = 4096;

/// The alert with which the other side ended a connection, if it sent one.
#[derive(Clone, Debug, Default)]
pub struct Alert(Arc<OnceLock<AlertDescription>>);

impl Alert {
    /// The description of the alert.
    pub fn description(&self) -> Option<AlertDescription> {
        self.0.get().copied()
    }
}

/// The TLS error in an error of a stream.
pub fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A stream whose final alert is remembered.
#[derive(Debug)]
pub struct Heeding<S> {
    stream: S,
    alert: Alert,
    /// Why nothing can be written any more, while the rest of the input is read.
    failed: Option<io::Error>,
}

impl<S: AsyncRead + Unpin> Heeding<S> {
    /// Stores the alert that ends the stream in `alert`.
    pub fn new(stream: S, alert: Alert) -> Self {
        Self {
            stream,
            alert,
            failed: None,
        }
    }

    fn note(&self, error: io::Error) -> io::Error {
        if let Some(rustls::Error::AlertReceived(alert)) = of_tls(&error) {
            // Only the first is stored.
            let _ = self.alert.0.set(*alert);
        }
        error
    }

    /// The cause of a failed write: the alert, or `failed` if there is none. A connection that was closed can
    /// still be read to its end, if not at once.
    fn cause<T>(&mut self, context: &mut Context<'_>, failed: io::Error) -> Poll<io::Result<T>> {
        let mut piece = [0; PIECE];
        loop {
            let mut buffer = ReadBuf::new(&mut piece);
            return match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => continue,
                Poll::Ready(Err(error)) if of_tls(&error).is_some() => {
                    Poll::Ready(Err(self.note(error)))
                }
                Poll::Ready(_) => Poll::Ready(Err(failed)),
                Poll::Pending => {
                    self.failed = Some(failed);
                    Poll::Pending
                }
            };
        }
    }

    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Some(failed) = self.failed.take() {
            return self.cause(context, failed);
        }
        match write(Pin::new(&mut self.stream), context) {
            Poll::Ready(Err(error)) => self.cause(context, error),
            poll => poll,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heeding<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        poll.map_err(|error| self.note(error))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Heeding<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
