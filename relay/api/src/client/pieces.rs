//! An answer that comes piece by piece, of any length, and says at its end how it ended.

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Client, Error, PATIENCE};
use crate::reply::ErrorReply;

/// In which trailer it says so: an [`ErrorReply`], whose code is empty where all is well.
pub const OUTCOME_HEADER: &str = "x-mcr-outcome";

/// An answer that is read as it comes. Dropping it ends the connection.
#[derive(Debug)]
pub struct Pieces {
    body: Incoming,
    connection: JoinHandle<hyper::Result<()>>,
    client: Client,
    /// What was said about it at its end.
    pub said: String,
}

impl Client {
    /// Asks for what is told piece by piece, as [`TapQuery::path`](crate::query::TapQuery::path) does.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn pieces(&self, path: &str) -> Result<Pieces, Error> {
        let sent = timeout(PATIENCE, self.send(Method::GET, path, None::<&()>)).await;
        let (reply, connection) = sent.unwrap_or_else(|_| Err(self.late()))?;
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
    /// The connection broke off, or what was asked for ended otherwise than it should.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(frame) = self.body.frame().await else {
            return Err(self.client.broken("it ends in the middle"));
        };
        let frame = frame.map_err(|error| self.client.broken(error))?;
        let trailers = match frame.into_data() {
            Ok(piece) => return Ok(Some(piece)),
            Err(frame) => frame.into_trailers().unwrap_or_default(),
        };
        let outcome = trailers.get(OUTCOME_HEADER).map(|said| said.as_bytes());
        let outcome: ErrorReply = serde_json::from_slice(outcome.unwrap_or_default())
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
