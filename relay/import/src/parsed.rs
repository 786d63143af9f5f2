//! The content of a file: streams as they are sent, independent of the relay.

use std::net::IpAddr;
use std::time::Duration;

use config::MAX_RULES;
use rules::net::{Ports, Prefix};

use crate::remark::{Position, Remark, Why};
use crate::to::To;

/// The streams of a file, and remarks on the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The streams, in the order of the file.
    pub streams: Vec<Stream>,
    /// What was not taken over, and notes.
    pub remarks: Vec<Remark>,
}

/// A stream that a rule can relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Where it is in the file.
    pub position: Position,
    /// Its name in the file.
    pub name: Option<String>,
    /// Where it is sent to; several legs carry the same RTP packets.
    pub legs: Vec<Leg>,
    /// How far the last leg lags behind the first one.
    pub delay: Duration,
    /// Its outputs according to the file; empty if the file specifies none.
    pub to: Vec<To>,
    /// Whether it is to be relayed.
    pub enabled: bool,
}

/// One path on which a stream arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Its senders; empty for any.
    pub sources: Vec<IpAddr>,
    /// Its group, or range of groups.
    pub group: Prefix,
    /// Its ports, if the file specifies them.
    pub ports: Option<Ports>,
    /// The relay's interface, if the file specifies it.
    pub interface: Option<String>,
    /// Its index among the stream's legs in the file, from 0, counting rejected legs too.
    pub number: usize,
}

impl Leg {
    /// Its senders in an endpoint's form.
    pub fn senders(&self) -> Vec<Prefix> {
        self.sources.iter().copied().map(Prefix::host).collect()
    }
}

impl Parsed {
    /// How many more streams fit: a daemon takes no more rules.
    pub(crate) const fn room(&self) -> usize {
        (MAX_RULES as usize).saturating_sub(self.streams.len())
    }

    /// Adds a stream, or reports once that there are too many.
    pub(crate) fn add(&mut self, stream: Stream) {
        if self.room() > 0 {
            return self.streams.push(stream);
        }
        let is_too_many = |remark: &Remark| remark.why == Why::TooMany;
        if !self.remarks.last().is_some_and(is_too_many) {
            self.skip(stream.position, "", Why::TooMany);
        }
    }

    /// Reports something that is skipped, not taken over.
    pub(crate) fn skip(&mut self, position: Position, text: &str, why: Why) {
        self.remarks.push(Remark::rejected(position, text, why));
    }

    /// Adds a note on something that is taken over.
    pub(crate) fn note(&mut self, position: Position, text: &str, why: Why) {
        self.remarks.push(Remark::note(position, text, why));
    }
}

impl Stream {
    /// A stream of one leg that is called `name` in the file.
    pub(crate) fn single(position: Position, name: Option<String>, leg: Leg) -> Self {
        Self {
            position,
            name,
            legs: vec![leg],
            delay: Duration::ZERO,
            to: Vec::new(),
            enabled: true,
        }
    }
}
