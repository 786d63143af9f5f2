//! What a file says: streams as they are sent, independent of the relay.

use std::net::IpAddr;
use std::time::Duration;

use config::MAX_RULES;
use rules::net::{Ports, Prefix};

use crate::remark::{Position, Remark, Why};
use crate::to::To;

/// What was found in a file, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The streams, in the order of the file.
    pub streams: Vec<Stream>,
    /// What was not taken over, and what there is to know.
    pub remarks: Vec<Remark>,
}

/// A stream that a rule can relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Where in the file it stands.
    pub place: Position,
    /// What the file calls it.
    pub name: Option<String>,
    /// Where it is sent to; more than one bring the same packets of RTP.
    pub legs: Vec<Leg>,
    /// How long the last leg comes behind the first one.
    pub delay: Duration,
    /// Where the file sends it on to; empty where it does not say.
    pub to: Vec<To>,
    /// Whether it is to be relayed.
    pub enabled: bool,
}

/// One way that a stream comes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Its senders; empty for any.
    pub sources: Vec<IpAddr>,
    /// Its group, or range of groups.
    pub group: Prefix,
    /// Its ports, where the file says which.
    pub ports: Option<Ports>,
    /// The relay's interface, where the file says which.
    pub interface: Option<String>,
    /// Which of its stream's legs the file has it as, from 0, whatever became of the others.
    pub number: usize,
}

impl Leg {
    /// Its senders, as an endpoint has them.
    pub fn senders(&self) -> Vec<Prefix> {
        self.sources.iter().copied().map(Prefix::host).collect()
    }
}

impl Parsed {
    /// How many more streams there is room for: a daemon takes no more rules.
    pub(crate) const fn room(&self) -> usize {
        (MAX_RULES as usize).saturating_sub(self.streams.len())
    }

    /// Takes a stream, or says once that there are too many.
    pub(crate) fn take(&mut self, stream: Stream) {
        if self.room() > 0 {
            return self.streams.push(stream);
        }
        let is_said = |remark: &Remark| remark.why == Why::TooMany;
        if !self.remarks.last().is_some_and(is_said) {
            self.leave(stream.place, "", Why::TooMany);
        }
    }

    /// Says that something was not taken over.
    pub(crate) fn leave(&mut self, place: Position, text: &str, why: Why) {
        self.remarks.push(Remark::of_loss(place, text, why));
    }

    /// Says something of what was taken over.
    pub(crate) fn note(&mut self, place: Position, text: &str, why: Why) {
        self.remarks.push(Remark::note(place, text, why));
    }
}

impl Stream {
    /// A stream of one leg that the file calls `name`.
    pub(crate) fn single(place: Position, name: Option<String>, leg: Leg) -> Self {
        Self {
            place,
            name,
            legs: vec![leg],
            delay: Duration::ZERO,
            to: Vec::new(),
            enabled: true,
        }
    }
}
