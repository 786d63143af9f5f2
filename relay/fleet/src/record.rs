//! Records the recent inputs of a member and their times, so that its decisions can be replayed: it has
//! no clock and does no I/O, so it decides the same. A record begins with a snapshot of the member.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::keys::{FleetSettings, Key, Keys, Value};
use crate::member::{Adopted, Change, Command, Config, Input, KeyValue, Member};

const MAGIC: &str = "mcr fleet record 1";
/// The most that is retained, in bytes: more than an hour of three relays with a dozen shares.
const BYTES_MAX: usize = 8 << 20;
/// How long a part is, in ns: a record begins at the start of one.
const PART: u64 = 60_000_000_000;

/// Why a record cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not a record, of another version, or truncated.
    #[error("is no record of this version of mcr: {0}")]
    Unreadable(#[from] postcard::Error),
    /// A member of this version decides otherwise.
    #[error("at {at_ns} ns another member decided otherwise than this one: {decided}")]
    Differs {
        /// Time of its host.
        at_ns: u64,
        /// The decision of this version.
        decided: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Head {
    magic: String,
    start: Start,
}

#[derive(Serialize, Deserialize)]
enum Start {
    New(Box<(Config, Option<Adopted>)>),
    Going(Box<Member>),
}

/// What happened, with the time since the previous entry.
#[derive(Serialize, Deserialize)]
enum Entry<I> {
    Took(u64, I),
    /// With the digest of the commands; 0: there were none.
    Decided(u64, u64),
}

/// The recent inputs of a member.
#[derive(Debug)]
pub struct Recorder {
    parts: VecDeque<Part>,
    bytes: usize,
    last: u64,
}

#[derive(Debug, Default)]
struct Part {
    from: u64,
    start: Vec<u8>,
    entries: Vec<u8>,
}

impl Recorder {
    /// A recorder for a member that starts.
    #[must_use]
    pub fn new(config: Config, adopted: Option<Adopted>) -> Self {
        let mut recorder = Self {
            parts: VecDeque::new(),
            bytes: 0,
            last: 0,
        };
        recorder.begin(0, Start::New(Box::new((config, adopted))));
        recorder
    }

    /// Records an input of the member.
    pub fn took(&mut self, now: u64, input: &Input) {
        let since = self.since(now);
        self.note(&Entry::Took(since, input));
    }

    /// Records the member's decision.
    pub fn decided(&mut self, now: u64, commands: &[Command]) {
        let since = self.since(now);
        self.note(&Entry::<&Input>::Decided(since, digest(commands)));
    }

    /// Begins another part with a snapshot of the member, if it is time, and removes the oldest parts
    /// beyond the limit.
    pub fn checkpoint(&mut self, now: u64, member: &Member) {
        let begun = self.parts.back().map_or(0, |part| part.from);
        if now < begun + PART && begun > 0 {
            return;
        }
        // Entries count on from the last one, whichever part a record begins with.
        self.begin(self.last, Start::Going(Box::new(member.clone())));
        while self.bytes > BYTES_MAX && self.parts.len() > 1 {
            let oldest = self.parts.pop_front().unwrap_or_default();
            self.bytes -= oldest.start.len() + oldest.entries.len();
        }
    }

    /// The record from that time on, or from a little before.
    #[must_use]
    pub fn file(&self, from: u64) -> Vec<u8> {
        let later = self.parts.iter().take_while(|part| part.from <= from);
        let first = later.count().saturating_sub(1);
        let mut parts = self.parts.iter().skip(first).peekable();
        let mut file = parts
            .peek()
            .map_or_else(Vec::new, |part| part.start.clone());
        for part in parts {
            file.extend(&part.entries);
        }
        file
    }

    fn begin(&mut self, from: u64, start: Start) {
        let head = Head {
            magic: MAGIC.to_owned(),
            start,
        };
        let mut start = postcard::to_stdvec(&head).unwrap_or_default();
        start.extend(postcard::to_stdvec(&from).unwrap_or_default());
        self.bytes += start.len();
        let entries = Vec::new();
        let part = Part {
            from,
            start,
            entries,
        };
        self.parts.push_back(part);
    }

    fn since(&mut self, now: u64) -> u64 {
        let since = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        since
    }

    fn note(&mut self, entry: &Entry<&Input>) {
        let Some(part) = self.parts.back_mut() else {
            return;
        };
        let before = part.entries.len();
        let entries = std::mem::take(&mut part.entries);
        part.entries = postcard::to_extend(entry, entries).unwrap_or_default();
        self.bytes += part.entries.len() - before.min(part.entries.len());
    }
}

/// Replays a record; returns the number of inputs.
///
/// # Errors
///
/// [`RecordError`]: the record is invalid, or a member of this version decides otherwise.
pub fn replay(file: &[u8]) -> Result<usize, RecordError> {
    let (head, rest) = postcard::take_from_bytes::<Head>(file)?;
    if head.magic != MAGIC {
        return Err(postcard::Error::DeserializeBadEncoding.into());
    }
    let mut member = match head.start {
        Start::New(of) => {
            let (config, adopted) = *of;
            Member::new(config, adopted)
        }
        Start::Going(member) => *member,
    };
    let (mut now, mut rest) = postcard::take_from_bytes::<u64>(rest)?;
    let mut inputs = 0;
    while !rest.is_empty() {
        let entry;
        (entry, rest) = postcard::take_from_bytes::<Entry<Input>>(rest)?;
        match entry {
            Entry::Took(since, input) => {
                now += since;
                inputs += 1;
                member.take(now, input);
            }
            Entry::Decided(since, decided) => {
                now += since;
                let commands = member.decide(now);
                if digest(&commands) != decided {
                    return Err(RecordError::Differs {
                        at_ns: now,
                        decided: format!("{commands:?}"),
                    });
                }
            }
        }
    }
    Ok(inputs)
}

/// The input without the fleet's secret, which the member does not need.
pub(crate) fn without_secret(keys: &Keys, mut input: Input) -> Input {
    let settings = keys.text(&Key::Settings);
    let blank = |kv: &mut KeyValue| {
        if kv.key == settings {
            let none = FleetSettings {
                secret: "0".repeat(64),
            };
            let read = FleetSettings::read(&kv.key, &kv.value);
            kv.value = read.map_or(b"?".to_vec(), |_| none.write());
        }
    };
    match &mut input {
        Input::Listed { keys, .. } => keys.iter_mut().for_each(blank),
        Input::Changed { changes, .. } => {
            let puts = changes.iter_mut().filter_map(|change| match change {
                Change::Put(kv) => Some(kv),
                Change::Deleted { .. } => None,
            });
            puts.for_each(blank);
        }
        _ => {}
    }
    input
}

/// FNV-1a of the commands' text.
fn digest(commands: &[Command]) -> u64 {
    if commands.is_empty() {
        return 0;
    }
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{commands:?}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, step)
}
