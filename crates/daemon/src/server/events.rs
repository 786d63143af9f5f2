//! Events as server-sent events: one line of JSON each, in order; a client that is too slow for
//! them is told how many it missed.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::connections::{Busy, Held};
use crate::question::Supervisor;

/// How often a comment is sent while nothing happens, so that a vanished client is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What happens from now on, as server-sent events whose data is an `Event`; an event named `missed`
/// carries the number of events a slow client lost.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    responses((status = 200, body = api::reply::Event, content_type = "text/event-stream")))]
pub(super) async fn events(
    State(supervisor): State<Supervisor>,
    Extension(busy): Extension<Busy>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let start = (supervisor.events(), busy.hold());
    let stream = stream::unfold(start, next);
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

type Following = (Receiver<api::reply::Event>, Held);

async fn next((mut events, held): Following) -> Option<(Result<Event, Infallible>, Following)> {
    let event = match events.recv().await {
        Ok(event) => Event::default()
            .event(&event.kind)
            .json_data(&event)
            .unwrap_or_default(),
        Err(RecvError::Lagged(missed)) => Event::default().event("missed").data(missed.to_string()),
        Err(RecvError::Closed) => return None,
    };
    Some((Ok(event), (events, held)))
}
