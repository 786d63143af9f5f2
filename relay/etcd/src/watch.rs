//! Watches: one stream with several targets, each of which reports every change from a revision on.
//!
//! A silent stream is asked for its progress as a sign of life. The answer is not a revision to resume
//! from, since etcd before 3.4.25 and 3.5.8 may answer before it has reported earlier changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use crate::connect_error::chain;
use crate::connection::{Body, Connection};
use crate::error::Error;
use crate::error_class::ErrorClass;
use crate::grpc::{self, Frames};
use crate::messages::watch_request::Request;
use crate::messages::{self, KeyValue, WatchRequest, WatchResponse};
use crate::pool::Pool;
use crate::range::KeyRange;

pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
const PERMISSION_DENIED: u32 = 7;
const UNKNOWN: u32 = 2;

/// What to watch, and from when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchTarget {
    /// The caller's id for it, above 0 and not used twice in one watch.
    pub id: i64,
    /// The keys.
    pub range: KeyRange,
    /// The first revision to report, one after that of the reply which listed the keys; 0: changes from
    /// now on.
    pub start_revision: i64,
}

/// Changes of keys of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchBatch {
    /// The target's id.
    pub target: i64,
    /// Everything up to this revision has been reported to the target: another watch may resume one after
    /// it.
    pub revision: i64,
    /// The changes, in their order; none if only the revision has advanced.
    pub events: Vec<Event>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key was written.
    Put(KeyValue),
    /// A key was deleted.
    Delete {
        /// The key.
        key: Vec<u8>,
        /// The revision that deleted it.
        mod_revision: i64,
    },
}

impl Event {
    /// The key.
    pub fn key(&self) -> &[u8] {
        match self {
            Event::Put(kv) => &kv.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// The revision that made the change.
    pub fn mod_revision(&self) -> i64 {
        match self {
            Event::Put(kv) => kv.mod_revision,
            Event::Delete { mod_revision, .. } => *mod_revision,
        }
    }
}

/// A stream of changes. It ends with its first error; [`Watch::targets`] returns where another one
/// resumes.
pub struct Watch {
    pool: Arc<Pool>,
    index: usize,
    connection: Arc<Connection>,
    requests: UnboundedSender<Bytes>,
    body: Incoming,
    frames: Frames,
    targets: Vec<WatchTarget>,
    /// Targets that resume from a revision that some member of etcd has reported: the initial ones.
    resumed: Vec<i64>,
    liveness: Liveness,
    error: Option<Error>,
}

/// The body of a stream's requests, and a sender that adds to it.
pub(crate) fn requests(targets: &[WatchTarget]) -> (UnboundedSender<Bytes>, Body) {
    let (sender, receiver): (_, UnboundedReceiver<Bytes>) = mpsc::unbounded();
    let frames = receiver.map(|data| Ok::<_, Infallible>(Frame::data(data)));
    for target in targets {
        send(&sender, creation(target));
    }
    // Without a target, etcd would not begin its reply otherwise.
    send(
        &sender,
        Request::Progress(messages::WatchProgressRequest {}),
    );
    (sender, StreamBody::new(frames).boxed_unsync())
}

fn send(requests: &UnboundedSender<Bytes>, request: Request) {
    let message = WatchRequest {
        request: Some(request),
    };
    // It fails if the stream has ended, which the next read reports.
    let _ = requests.unbounded_send(grpc::frame(&message));
}

fn creation(target: &WatchTarget) -> Request {
    Request::Create(messages::WatchCreateRequest {
        key: target.range.first.clone(),
        range_end: target.range.end.clone(),
        start_revision: target.start_revision,
        progress_notify: true,
        watch_id: target.id,
        fragment: true,
    })
}

impl Watch {
    pub(crate) fn new(
        pool: Arc<Pool>,
        (index, connection): (usize, Arc<Connection>),
        (requests, body): (UnboundedSender<Bytes>, Incoming),
        targets: Vec<WatchTarget>,
    ) -> Self {
        Self {
            frames: Frames::new(pool.config.reply_max),
            liveness: Liveness::new(pool.config.silence),
            pool,
            index,
            connection,
            requests,
            body,
            resumed: targets.iter().map(|target| target.id).collect(),
            targets,
            error: None,
        }
    }

    /// Waits for the next changes. Nothing is lost if the future is dropped before it is ready.
    ///
    /// # Errors
    /// [`Error::Compacted`] if a target's revision has been compacted, [`Error::Behind`] if the member
    /// does not have it yet, [`Error::Unavailable`] if the stream broke, was silent for too long, or its
    /// member has lost its leader, [`Error::Refused`] if the user may not read a target.
    pub async fn next(&mut self) -> Result<WatchBatch, Error> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let next = self.advance().await;
        if let Err(error) = &next {
            self.error = Some(error.clone());
            if matches!(error, Error::Unavailable { .. } | Error::Behind { .. }) {
                self.pool.demote(self.index);
            }
        }
        next
    }

    /// Adds a target.
    pub fn add(&mut self, target: WatchTarget) {
        send(&self.requests, creation(&target));
        self.targets.push(target);
    }

    /// Ends a target; none of its changes is reported any more.
    pub fn cancel(&mut self, id: i64) {
        let cancel = messages::WatchCancelRequest { watch_id: id };
        send(&self.requests, Request::Cancel(cancel));
        self.targets.retain(|target| target.id != id);
    }

    /// The targets with the revisions from which another watch resumes. A revision that was reported in
    /// part is reported again.
    pub fn targets(&self) -> Vec<WatchTarget> {
        self.targets.clone()
    }

    async fn advance(&mut self) -> Result<WatchBatch, Error> {
        loop {
            let whole = self.frames.next();
            let lost = |error: grpc::Malformed| self.lost(error.to_string());
            if let Some(bytes) = whole.map_err(lost)? {
                let message = grpc::decode(bytes).map_err(lost)?;
                if let Some(batch) = self.interpret(message)? {
                    return Ok(batch);
                }
                continue;
            }
            tokio::select! {
                biased;
                frame = self.body.frame() => {
                    self.liveness.note_received();
                    self.connection.note_received();
                    self.take(frame)?;
                }
                () = sleep_until(self.liveness.due()) => match self.liveness.overdue() {
                    Overdue::Ask => send(
                        &self.requests,
                        Request::Progress(messages::WatchProgressRequest {}),
                    ),
                    Overdue::Lost => {
                        self.connection.retire();
                        return Err(self.lost("the watch fell silent".to_owned()));
                    }
                },
            }
        }
    }

    fn take(&mut self, frame: Option<Result<Frame<Bytes>, hyper::Error>>) -> Result<(), Error> {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(self.lost(chain(&error))),
            None => return Err(self.lost("the watch ended".to_owned())),
        };
        if let Some(data) = frame.data_ref() {
            self.frames.push(data);
            return Ok(());
        }
        match frame.trailers_ref().and_then(grpc::status) {
            Some((code, message)) if code != 0 => Err(self.refused(code, message)),
            _ => Err(self.lost("the watch ended".to_owned())),
        }
    }

    /// The batch in a message of the stream, if its target still exists.
    fn interpret(&mut self, message: WatchResponse) -> Result<Option<WatchBatch>, Error> {
        let id = message.watch_id;
        let Some(position) = self.targets.iter().position(|target| target.id == id) else {
            // etcd 3.5 replies with id -1 to a target that it refuses, and also to a progress request.
            return if message.canceled && message.created {
                Err(self.cancelled(&message))
            } else {
                Ok(None)
            };
        };
        if message.canceled {
            return Err(self.cancelled(&message));
        }
        let revision = messages::revision(message.header.as_ref());
        let target = &mut self.targets[position];
        if message.created {
            if target.start_revision == 0 {
                target.start_revision = revision + 1;
            } else if target.start_revision > revision + 1 && self.resumed.contains(&id) {
                let endpoint = self.pool.endpoint(self.index).to_string();
                return Err(Error::Behind { endpoint, revision });
            }
            return Ok(None);
        }
        let events: Vec<Event> = message.events.into_iter().filter_map(event).collect();
        // The header's revision may be ahead of the events while a target catches up.
        let reported = match events.last() {
            Some(last) if message.fragment => last.mod_revision() - 1,
            Some(last) => last.mod_revision(),
            None => revision,
        };
        target.start_revision = target.start_revision.max(reported.saturating_add(1));
        Ok(Some(WatchBatch {
            target: id,
            revision: target.start_revision - 1,
            events,
        }))
    }

    fn cancelled(&self, message: &WatchResponse) -> Error {
        if message.compact_revision > 0 {
            let revision = message.compact_revision;
            return Error::Compacted { revision };
        }
        let reason = grpc::readable(&message.cancel_reason);
        let code = if reason.contains("permission denied") {
            PERMISSION_DENIED
        } else {
            UNKNOWN
        };
        Error::Refused {
            endpoint: self.pool.endpoint(self.index).to_string(),
            code,
            message: reason,
        }
    }

    fn refused(&self, code: u32, message: String) -> Error {
        match ErrorClass::of(code, &message) {
            ErrorClass::Refused | ErrorClass::Compacted => Error::Refused {
                endpoint: self.pool.endpoint(self.index).to_string(),
                code,
                message,
            },
            ErrorClass::NotApplied | ErrorClass::Unsettled => self.lost(message),
        }
    }

    fn lost(&self, reason: String) -> Error {
        let endpoint = self.pool.endpoint(self.index);
        Error::Unavailable {
            reason: format!("{endpoint}: {reason}"),
        }
    }
}

pub(crate) fn event(event: messages::Event) -> Option<Event> {
    let kv = event.kv?;
    Some(match event.kind {
        0 => Event::Put(kv),
        _ => Event::Delete {
            key: kv.key,
            mod_revision: kv.mod_revision,
        },
    })
}

/// When to ask a silent stream for a sign of life, and when to give it up.
struct Liveness {
    silence: Duration,
    last_received: Instant,
    asked: Option<Instant>,
}

/// What to do about a stream that is overdue.
#[derive(Debug, PartialEq, Eq)]
enum Overdue {
    Ask,
    Lost,
}

impl Liveness {
    fn new(silence: Duration) -> Self {
        Self {
            silence,
            last_received: Instant::now(),
            asked: None,
        }
    }

    fn note_received(&mut self) {
        self.last_received = Instant::now();
        self.asked = None;
    }

    /// A quarter of the silence is for noticing it, the rest for the answer.
    fn due(&self) -> Instant {
        match self.asked {
            None => self.last_received + self.silence / 4,
            Some(asked) => asked + self.silence * 3 / 4,
        }
    }

    fn overdue(&mut self) -> Overdue {
        let now = Instant::now();
        // Long after it was due: the caller was not polling, and nobody read what arrived.
        let was_not_polled = now > self.due() + self.silence / 4;
        if self.asked.is_some() && !was_not_polled {
            return Overdue::Lost;
        }
        self.asked = Some(now);
        Overdue::Ask
    }
}
