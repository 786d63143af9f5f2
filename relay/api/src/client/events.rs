//! The daemon's events as they happen: server-sent events, parsed as far as MCR writes them.

use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{Client, Connection, Error};
use crate::reply::Event;

/// Longest line that is assembled; the daemon's are below 10 kB.
const LINE_MAX: usize = 1 << 20;

/// An item of a stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// Something happened.
    Event(Event),
    /// The number of events that were lost because this client read too slowly.
    Missed(u64),
}

/// A stream of events. Dropping it ends the connection.
#[derive(Debug)]
pub struct Events {
    client: Client,
    path: String,
    body: Incoming,
    connection: Connection,
    lines: Lines,
}

impl Events {
    pub(super) async fn begin(client: Client, path: String) -> Result<Self, Error> {
        let (body, connection) = client.event_stream(&path, None).await?;
        Ok(Self {
            client,
            path,
            body,
            connection,
            lines: Lines::default(),
        })
    }

    /// Waits for the next event; `None` when the daemon exits. If the daemon of this host ends the
    /// connection because this client has read nothing for too long, the stream goes on behind the last
    /// event. That of another host may have ended it because this client is to be let in no more.
    ///
    /// # Errors
    /// When the connection breaks off and no other one is accepted, or carries something else.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, Error> {
        loop {
            let item = self.lines.next();
            if let Some(item) = item.map_err(|reason| self.client.broken(reason))? {
                return Ok(Some(item));
            }
            let frame = match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.resume(self.client.broken(error)).await?;
                    continue;
                }
            };
            if let Some(data) = frame.data_ref() {
                let pushed = self.lines.push(data);
                pushed.map_err(|reason| self.client.broken(reason))?;
            }
        }
    }

    /// Connects anew behind the last event; returns `error` if there was none since the last time, or the
    /// daemon does not accept.
    async fn resume(&mut self, error: Error) -> Result<(), Error> {
        let last = std::mem::take(&mut self.lines).last;
        let Some(last) = last.filter(|_| self.client.host.is_none()) else {
            return Err(error);
        };
        let resumed = self.client.event_stream(&self.path, Some(&last)).await;
        (self.body, self.connection) = resumed.map_err(|_| error)?;
        Ok(())
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Assembles lines, and events from lines.
#[derive(Debug, Default)]
struct Lines {
    pending: Vec<u8>,
    /// The `id` of the last event.
    last: Option<String>,
    kind: String,
    data: String,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() > LINE_MAX {
            return Err(format!("an event of more than {LINE_MAX} bytes"));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<StreamItem>, String> {
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let bytes: Vec<u8> = self.pending.drain(..=end).collect();
            let text = String::from_utf8_lossy(&bytes);
            let line = text.trim_end_matches(['\r', '\n']);
            if let Some(kind) = line.strip_prefix("event:") {
                self.kind = kind.trim_start().to_owned();
            } else if let Some(data) = line.strip_prefix("data:") {
                self.data.push_str(data.trim_start());
            } else if let Some(id) = line.strip_prefix("id:") {
                self.last = Some(id.trim_start().to_owned());
            } else if line.is_empty() && !self.data.is_empty() {
                return self.finish().map(Some);
            }
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<StreamItem, String> {
        let (kind, data) = (
            std::mem::take(&mut self.kind),
            std::mem::take(&mut self.data),
        );
        if kind == "missed" {
            let missed = data.parse().map_err(|_| format!("missed: {data:?}"))?;
            return Ok(StreamItem::Missed(missed));
        }
        let event = serde_json::from_str(&data).map_err(|error| error.to_string())?;
        Ok(StreamItem::Event(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_assembled_from_any_pieces() {
        let text = ": keep alive\n\nid: 12\nevent: rule_up\ndata: {\"at_ms\":1,\"kind\":\"rule_up\",\
                    \"subject\":\"cam1\",\"message\":\"up\"}\n\nevent: missed\ndata: 7\n\n";
        for size in [1, 7, text.len()] {
            let mut lines = Lines::default();
            let mut items = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                lines.push(piece).unwrap();
                items.extend(lines.next().unwrap());
            }
            items.extend(lines.next().unwrap());
            let StreamItem::Event(event) = &items[0] else {
                panic!("{items:?}")
            };
            assert_eq!((event.at_ms, event.subject.as_str()), (1, "cam1"));
            assert_eq!(items[1..], [StreamItem::Missed(7)]);
            assert_eq!(lines.last.as_deref(), Some("12"));
        }
    }
}
