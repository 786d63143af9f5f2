//! A reply that is streamed in pieces, of any length, and ends with its outcome in a trailer.

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

use super::{Client, Connection, Error, PATIENCE};
use crate::reply::ErrorReply;

/// The trailer with the outcome: an [`ErrorReply`], whose code is empty on success.
pub const OUTCOME_HEADER: &str = "x-mcr-outcome";

/// A reply that is read as it arrives. Dropping it ends the connection.
#[derive(Debug)]
pub struct Pieces {
    body: Incoming,
    connection: Connection,
    client: Client,
    /// The message of its outcome.
    pub said: String,
}

impl Client {
    /// Requests a streamed reply, as by [`TapQuery::path`](crate::query::TapQuery::path).
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn pieces(&self, path: &str) -> Result<Pieces, Error> {
        let reply = timeout(PATIENCE, self.send(Method::GET, path, None::<&()>)).await;
        let (reply, connection) = reply.unwrap_or_else(|_| Err(self.timed_out()))?;
        Ok(Pieces {
            body: reply.into_body(),
            connection,
            client: self.clone(),
            said: String::new(),
        })
    }
}

impl Pieces {
    /// Waits for the next piece; `None` at the end.
    ///
    /// # Errors
    /// The connection broke off, or the request failed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(frame) = self.body.frame().await else {
            return Err(self.client.broken("it ends in the middle"));
        };
        let frame = frame.map_err(|error| self.client.broken(error))?;
        let trailers = match frame.into_data() {
            Ok(piece) => return Ok(Some(piece)),
            Err(frame) => frame.into_trailers().unwrap_or_default(),
        };
        let trailer = trailers.get(OUTCOME_HEADER).map(|value| value.as_bytes());
        let outcome: ErrorReply = serde_json::from_slice(trailer.unwrap_or_default())
            .map_err(|error| self.client.broken(error))?;
        self.said.clone_from(&outcome.message);
        if outcome.code.is_empty() {
            Ok(None)
        } else {
            Err(self.client.refused(outcome))
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
