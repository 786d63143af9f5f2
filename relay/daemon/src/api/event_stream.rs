//! Events as server-sent events: one line of JSON each, in order; a client that is too slow receives the
//! number of events it missed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::request::LAST_EVENT_ID_HEADER;
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use observe::events::{Begin, Delivery, KEPT, Numbered, Subscriber};
use serde::Deserialize;
use utoipa::IntoParams;

use super::api_error::{ApiError, Code, Reply};
use super::body::Parameters;
use super::connections::{Connection, Held};
use super::service::Service;

/// How often a comment is sent while there are no events, so that a vanished client is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EventOptions {
    /// Begin with so many of the events of before.
    #[serde(default)]
    #[param(maximum = 200)]
    recent: usize,
    /// Many events of a kind that come together are told as one, as those of before always are.
    #[serde(default)]
    brief: bool,
    /// Go on with what happens from now on; else the answer ends with what is known, so that who asks
    /// now and then holds no connection.
    #[serde(default = "EventOptions::follows")]
    follow: bool,
}

impl EventOptions {
    const fn follows() -> bool {
        true
    }
}

/// What happens from now on, as server-sent events whose data is an `Event`; an event named `missed`
/// carries the number of events that are lost to the client. With `Last-Event-ID`, the `id` of an
/// event, it goes on behind that one.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(EventOptions),
    responses((status = 200, body = api::reply::Event, content_type = "text/event-stream")))]
pub(super) async fn events(
    State(service): State<Arc<Service>>,
    Extension(connection): Extension<Connection>,
    Parameters(options): Parameters<EventOptions>,
    headers: HeaderMap,
) -> Reply<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    if options.recent > KEPT {
        let message = format!("recent={}: at most {KEPT} are kept", options.recent);
        return Err(ApiError::new(Code::Usage, message));
    }
    let value = headers.get(LAST_EVENT_ID_HEADER);
    let last = value.and_then(|value| value.to_str().ok()?.parse().ok());
    let begin = last.map_or(Begin::Recent(options.recent), Begin::After);
    let following = Following {
        subscriber: service.events.subscribe(begin, options.brief),
        is_followed: options.follow,
        _held: connection.hold(),
    };
    let stream = stream::unfold(following, Following::next);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

struct Following {
    subscriber: Subscriber,
    is_followed: bool,
    _held: Held,
}

impl Following {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        let delivery = if self.is_followed {
            self.subscriber.next().await
        } else {
            self.subscriber.known()
        };
        let event = match delivery? {
            Delivery::Event(Numbered { number, event }) => Event::default()
                .id(number.to_string())
                .event(&event.kind)
                .json_data(&event)
                .unwrap_or_default(),
            Delivery::Missed(missed) => Event::default().event("missed").data(missed.to_string()),
        };
        Some((Ok(event), self))
    }
}
