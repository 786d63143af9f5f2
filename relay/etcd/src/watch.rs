//! Watches: one stream with several targets, each of which reports every change from a revision on.
//!
//! A silent stream is asked for a sign of life; its answer to that is no revision to continue from,
//! since etcd before 3.4.25 and 3.5.8 may answer before it has reported earlier changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use prost::bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use crate::answer::Answer;
use crate::connection::{Body, Connection};
use crate::error::Error;
use crate::grpc::{self, Frames};
use crate::messages::watch_request::Request;
use crate::messages::{self, KeyValue, WatchRequest, WatchResponse};
use crate::pool::Pool;
use crate::range::KeyRange;
use crate::unmade::chain;

pub(crate) const WATCH: &str = "/etcdserverpb.Watch/Watch";
const PERMISSION_DENIED: u32 = 7;
const UNKNOWN: u32 = 2;

/// What to watch, and from when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchTarget {
    /// The caller's name for it, above 0 and not used twice in one watch.
    pub id: i64,
    /// The keys.
    pub range: KeyRange,
    /// The first revision to tell of, one after that of the reply which listed the keys; 0: what
    /// comes from now on.
    pub start_revision: i64,
}

/// What happened to keys of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchBatch {
    /// The target's id.
    pub target: i64,
    /// Everything up to this revision has been told to the target: one more is where another watch
    /// may go on.
    pub revision: i64,
    /// The changes, in their order; none if it is only the revision that went on.
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

/// A stream of changes. It ends with its first error; [`Watch::targets`] says from where another
/// goes on.
pub struct Watch {
    pool: Arc<Pool>,
    index: usize,
    connection: Arc<Connection>,
    requests: UnboundedSender<Bytes>,
    body: Incoming,
    frames: Frames,
    targets: Vec<WatchTarget>,
    /// Targets that go on from a revision that some member of etcd has told: those of the beginning.
    resumed: Vec<i64>,
    signs: Signs,
    error: Option<Error>,
}

/// The body of a stream's requests, and where they are put in.
pub(crate) fn requests(targets: &[WatchTarget]) -> (UnboundedSender<Bytes>, Body) {
    let (sender, receiver) = mpsc::unbounded();
    let receiver: UnboundedReceiver<Bytes> = receiver;
    let frames = receiver.map(|data| Ok::<_, Infallible>(Frame::data(data)));
    for target in targets {
        send(&sender, creation(target));
    }
    // Without a target the answer would not begin.
    send(
        &sender,
        Request::Progress(messages::WatchProgressRequest {}),
    );
    (sender, StreamBody::new(frames).boxed_unsync())
}

fn send(requests: &UnboundedSender<Bytes>, request: Request) {
    let request = Some(request);
    // It fails if the stream has ended, which the next read tells.
    let _ = requests.unbounded_send(grpc::frame(&WatchRequest { request }));
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
            signs: Signs::new(pool.config.silence),
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
    /// [`Error::Compacted`] if a target's revision is gone, [`Error::Behind`] if it has not come
    /// yet, [`Error::Unavailable`] if the stream
    /// broke, said nothing for too long, or its member has lost its leader, [`Error::Refused`] if
    /// the user may not read a target.
    pub async fn next(&mut self) -> Result<WatchBatch, Error> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let next = self.advance().await;
        if let Err(error) = &next {
            self.error = Some(error.clone());
            if matches!(error, Error::Unavailable { .. } | Error::Behind { .. }) {
                self.pool.leave(self.index);
            }
        }
        next
    }

    /// Adds a target.
    pub fn add(&mut self, target: WatchTarget) {
        send(&self.requests, creation(&target));
        self.targets.push(target);
    }

    /// Ends a target; nothing more is reported of it.
    pub fn cancel(&mut self, id: i64) {
        let watch_id = id;
        send(
            &self.requests,
            Request::Cancel(messages::WatchCancelRequest { watch_id }),
        );
        self.targets.retain(|target| target.id != id);
    }

    /// The targets with the revisions from which another watch goes on. What came of a revision that
    /// was told in part is told again.
    pub fn targets(&self) -> Vec<WatchTarget> {
        self.targets.clone()
    }

    async fn advance(&mut self) -> Result<WatchBatch, Error> {
        loop {
            let broken = |error: grpc::Malformed| error.to_string();
            while let Some(message) = self
                .frames
                .next()
                .map_err(broken)
                .map_err(|e| self.lost(e))?
            {
                let message = grpc::decode(message).map_err(broken);
                let message = message.map_err(|e| self.lost(e))?;
                if let Some(batch) = self.judge(message)? {
                    return Ok(batch);
                }
            }
            tokio::select! {
                biased;
                frame = self.body.frame() => {
                    self.signs.came();
                    self.connection.hear();
                    self.take(frame)?;
                }
                () = sleep_until(self.signs.due()) => match self.signs.overdue() {
                    Sign::Ask => send(
                        &self.requests,
                        Request::Progress(messages::WatchProgressRequest {}),
                    ),
                    Sign::Missing => {
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

    /// What a message of the stream tells, if it is of a target that there still is.
    fn judge(&mut self, message: WatchResponse) -> Result<Option<WatchBatch>, Error> {
        let id = message.watch_id;
        let Some(position) = self.targets.iter().position(|target| target.id == id) else {
            // Etcd 3.5 answers with id -1 to a target that it refuses; also to a question.
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
        // The header's revision may be ahead of the events when a target catches up.
        let told = match events.last() {
            Some(last) if message.fragment => last.mod_revision() - 1,
            Some(last) => last.mod_revision(),
            None => revision,
        };
        target.start_revision = target.start_revision.max(told.saturating_add(1));
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
        match Answer::of(code, &message) {
            Answer::Refused | Answer::Compacted => Error::Refused {
                endpoint: self.pool.endpoint(self.index).to_string(),
                code,
                message,
            },
            Answer::NotApplied | Answer::Unsettled => self.lost(message),
        }
    }

    fn lost(&self, reason: String) -> Error {
        let endpoint = self.pool.endpoint(self.index);
        Error::Unavailable {
            reason: format!("{endpoint}: {reason}"),
        }
    }
}

pub(crate) fn event(sent: messages::Event) -> Option<Event> {
    let kv = sent.kv?;
    Some(match sent.kind {
        0 => Event::Put(kv),
        _ => Event::Delete {
            key: kv.key,
            mod_revision: kv.mod_revision,
        },
    })
}

/// When to ask a silent stream for a sign of life, and when to give it up.
struct Signs {
    silence: Duration,
    heard: Instant,
    asked: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Sign {
    Ask,
    Missing,
}

impl Signs {
    fn new(silence: Duration) -> Self {
        Self {
            silence,
            heard: Instant::now(),
            asked: None,
        }
    }

    fn came(&mut self) {
        self.heard = Instant::now();
        self.asked = None;
    }

    /// A quarter of the silence is for noticing it, the rest for the answer.
    fn due(&self) -> Instant {
        match self.asked {
            None => self.heard + self.silence / 4,
            Some(asked) => asked + self.silence * 3 / 4,
        }
    }

    fn overdue(&mut self) -> Sign {
        let now = Instant::now();
        // Long after it was due: the caller was away and nobody read what came.
        let away = now > self.due() + self.silence / 4;
        if self.asked.is_some() && !away {
            return Sign::Missing;
        }
        self.asked = Some(now);
        Sign::Ask
    }
}
