//! Events as they happen, as server-sent events.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::event::{Event, EventKind};
use api::reply::ErrorReply;
use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use futures::{Stream, stream};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::{Api, Failure};
use crate::events::event;

/// Most readers at once.
const READERS: usize = 32;

/// How often a line is sent while nothing happens, so that a reader that went away is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

static READING: AtomicUsize = AtomicUsize::new(0);

/// Everything that happens from now on, one server-sent event each.
#[utoipa::path(get, path = "/v1/events", tag = "events", responses(
    (status = 200, description = "Events without end; each has a JSON object as data", body = Event, content_type = "text/event-stream"),
    (status = 503, description = "Too many readers", body = ErrorReply),
))]
pub(super) async fn events(
    State(api): State<Api>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Failure> {
    let reader = Reader::enter(api.events.subscribe())?;
    let stream = stream::unfold(reader, async |mut reader| {
        let event = match reader.events.recv().await {
            Ok(event) => event,
            Err(RecvError::Lagged(missed)) => event(
                EventKind::Missed,
                format!("{missed} events missed; read the state again"),
            ),
            Err(RecvError::Closed) => return None,
        };
        let kind = event.event.as_str();
        let data = serde_json::to_string(&event).unwrap_or_default();
        Some((Ok(sse::Event::default().event(kind).data(data)), reader))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// One reader's place, given up when it goes away.
struct Reader {
    events: broadcast::Receiver<Event>,
}

impl Reader {
    fn enter(events: broadcast::Receiver<Event>) -> Result<Self, Failure> {
        let room = |reading| (reading < READERS).then_some(reading + 1);
        READING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
            .map_err(|_| {
                let message = format!("{READERS} clients read events already");
                Failure::new("unavailable", message)
            })?;
        Ok(Self { events })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        READING.fetch_sub(1, Ordering::Relaxed);
    }
}
