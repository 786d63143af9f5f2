//! Long replies in bounded memory, however many clients ask and however slowly they read: clients that
//! ask at the same time share one compressed text, and when there are too many texts the readers of the
//! oldest are cut off.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use api::query::{RulesQuery, StatsQuery};
use axum::Extension;
use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body, Frame, SizeHint};
use observe::compressed_body::Piece;
use observe::stats::metrics::Format;
use observe::view::View;
use parking_lot::Mutex;

use super::api_error::Reply;
use super::connections::Connection;

/// Bytes of all compressed texts together; a single one may be larger.
const ROOM: usize = 16 << 20;

/// The greatest age of a text that a new reader may share with others.
const FRESH: Duration = Duration::from_secs(1);

/// The content of a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The statistics of all rules, or of some.
    Stats(Option<Box<StatsQuery>>),
    /// All rules, or some.
    Rules(Option<RulesQuery>),
    Export,
    Interfaces,
    Metrics(Format),
    /// The last changes, that many.
    Changes(usize),
    Flows(String),
    History {
        rules: Vec<String>,
        seconds: u32,
    },
}

impl Subject {
    /// Returns whether clients can ask for only a few different ones of the kind.
    const fn is_one_of_few(&self) -> bool {
        match self {
            Self::Stats(None) | Self::Rules(None) => true,
            Self::Export | Self::Interfaces | Self::Metrics(_) => true,
            Self::Stats(Some(_)) | Self::Rules(Some(_)) => false,
            Self::Flows(_) | Self::History { .. } | Self::Changes(_) => false,
        }
    }
}

/// The texts that are being read.
#[derive(Debug, Default)]
pub(crate) struct ResponseCache {
    /// One text is generated at a time: clients that waited share it.
    turn: tokio::sync::Mutex<()>,
    texts: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Texts {
    /// By number, so the oldest first.
    by_number: BTreeMap<u64, Text>,
    /// Bytes of all of them.
    held: usize,
    /// The number of the last text or reader.
    next: u64,
    /// The number of clients that wait for a text.
    waiting: BTreeMap<Subject, usize>,
    /// Bytes of the last text about a subject.
    expected: BTreeMap<Subject, usize>,
}

#[derive(Debug)]
struct Text {
    subject: Subject,
    /// When its generation began.
    begun: Instant,
    view: Arc<View>,
    pieces: Arc<[Piece]>,
    /// Bytes that it occupies.
    held: usize,
    readers: BTreeMap<u64, Connection>,
}

/// A text just generated.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) view: Arc<View>,
    pub(crate) pieces: Vec<Piece>,
}

impl ResponseCache {
    /// Returns the text about `subject` as it is now, or was a moment ago under the same view. `make`
    /// generates it if there is none.
    pub(super) async fn read<F>(
        self: &Arc<Self>,
        subject: Subject,
        connection: &Connection,
        current: impl Fn() -> Arc<View>,
        make: impl FnOnce() -> F,
    ) -> Reply<Reading>
    where
        F: Future<Output = Reply<Made>>,
    {
        let asked = Instant::now();
        let waiting = Waiting::new(self, &subject);
        let _turn = self.turn.lock().await;
        let shared = self.texts.lock().shared(&subject, asked, &current());
        let number = match shared {
            Some(number) => number,
            None => {
                self.texts.lock().make_room(&subject);
                let begun = Instant::now();
                let made = make().await?;
                self.texts.lock().add(subject, begun, made)
            }
        };
        let reading = self.begin(number, connection);
        drop(waiting);
        Ok(reading)
    }

    fn begin(self: &Arc<Self>, number: u64, connection: &Connection) -> Reading {
        let mut texts = self.texts.lock();
        let reader = texts.number();
        let text = texts
            .by_number
            .get_mut(&number)
            .expect("texts go when others are made, which waits for this turn's end");
        text.readers.insert(reader, connection.clone());
        Reading {
            cache: Arc::clone(self),
            text: number,
            reader,
            generation: text.view.generation,
            pieces: Arc::clone(&text.pieces),
            next: 0,
            remaining: text.pieces.iter().map(|piece| piece.length() as u64).sum(),
        }
    }
}

impl Texts {
    const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The text that a client that asked at that time may share.
    fn shared(&self, subject: &Subject, asked: Instant, view: &Arc<View>) -> Option<u64> {
        let mut newest = self.by_number.iter().rev();
        let (number, text) = newest.find(|(_, text)| text.subject == *subject)?;
        let is_of_now = text.begun >= asked;
        let is_fresh = text.begun.elapsed() < FRESH && Arc::ptr_eq(&text.view, view);
        (is_of_now || is_fresh).then_some(*number)
    }

    /// Cuts off readers, those of the oldest text first, until there is room for one more.
    fn make_room(&mut self, subject: &Subject) {
        let expected = self.expected.get(subject).copied().unwrap_or_default();
        while self.held + expected > ROOM {
            let Some((_, oldest)) = self.by_number.pop_first() else {
                break;
            };
            self.held -= oldest.held;
            oldest.readers.values().for_each(Connection::cut_off);
        }
    }

    fn add(&mut self, subject: Subject, begun: Instant, Made { view, pieces }: Made) -> u64 {
        let held = pieces.iter().map(Piece::held).sum();
        if subject.is_one_of_few() {
            self.expected.insert(subject.clone(), held);
        }
        let number = self.number();
        let text = Text {
            subject,
            begun,
            view,
            pieces: pieces.into(),
            held,
            readers: BTreeMap::new(),
        };
        self.by_number.insert(number, text);
        self.held += held;
        number
    }

    /// Removes texts that nobody reads or waits for.
    fn sweep(&mut self) {
        let (waiting, held) = (&self.waiting, &mut self.held);
        self.by_number.retain(|_, text| {
            let stays = !text.readers.is_empty() || waiting.contains_key(&text.subject);
            *held -= if stays { 0 } else { text.held };
            stays
        });
    }
}

/// A client that waits for a text.
struct Waiting<'a> {
    cache: &'a ResponseCache,
    subject: Subject,
}

impl<'a> Waiting<'a> {
    fn new(cache: &'a ResponseCache, subject: &Subject) -> Self {
        *cache
            .texts
            .lock()
            .waiting
            .entry(subject.clone())
            .or_default() += 1;
        let subject = subject.clone();
        Self { cache, subject }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut texts = self.cache.texts.lock();
        if let Some(waiting) = texts.waiting.get_mut(&self.subject) {
            *waiting -= 1;
            if *waiting == 0 {
                texts.waiting.remove(&self.subject);
            }
        }
        texts.sweep();
    }
}

/// A text in transmission to one client.
#[derive(Debug)]
pub(super) struct Reading {
    cache: Arc<ResponseCache>,
    text: u64,
    reader: u64,
    generation: u64,
    pieces: Arc<[Piece]>,
    next: usize,
    remaining: u64,
}

impl Reading {
    /// The generation of the rules that it describes.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.get(self.next).map(Piece::text);
        self.next += 1;
        self.remaining -= piece.as_ref().map_or(0, Bytes::len) as u64;
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut texts = self.cache.texts.lock();
        if let Some(text) = texts.by_number.get_mut(&self.text) {
            text.readers.remove(&self.reader);
        }
        texts.sweep();
    }
}

/// The requesting client's connection.
pub(super) type Requester = Extension<Connection>;

/// A reading as the whole of a reply.
pub(super) fn text(kind: &'static str, reading: Reading) -> Response {
    let body = axum::body::Body::new(reading);
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the existing texts, and the counted sum.
    fn held(cache: &ResponseCache) -> (usize, usize) {
        let texts = cache.texts.lock();
        (
            texts.by_number.values().map(|text| text.held).sum(),
            texts.held,
        )
    }

    #[tokio::test]
    async fn the_bytes_of_texts_are_counted_as_they_are_added_and_removed() {
        let cache = Arc::new(ResponseCache::default());
        let view = Arc::new(View::default());
        let connection = Connection::default();
        let read = async |subject: Subject, length: usize| {
            let make = || async {
                Ok(Made {
                    view: Arc::clone(&view),
                    pieces: vec![Piece::Plain(vec![b'x'; length].into())],
                })
            };
            cache
                .read(subject, &connection, || Arc::clone(&view), make)
                .await
                .unwrap()
        };
        let first = read(Subject::Stats(None), ROOM / 2).await;
        let second = read(Subject::Rules(None), ROOM / 2).await;
        assert_eq!(held(&cache), (ROOM, ROOM));
        // Its size is unknown yet, so it has room; a second one needs the others' room.
        let third = read(Subject::Export, ROOM).await;
        assert_eq!(held(&cache), (2 * ROOM, 2 * ROOM));
        drop(second);
        assert_eq!(held(&cache), (ROOM / 2 + ROOM, ROOM / 2 + ROOM));
        let fourth = read(Subject::Interfaces, 7).await;
        assert_eq!(held(&cache), (ROOM + 7, ROOM + 7));
        drop((first, third, fourth));
        assert_eq!(held(&cache), (0, 0));
    }
}
