//! What a replay leaves out of a capture, reported by reason: a user who replays a stream and gets
//! less of it must see why.

use std::fmt;

use super::datagram::NotUsable;

/// Packets of a capture that are left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Fragments of datagrams.
    pub fragments: u64,
    /// UDP whose end the capture does not hold.
    pub cut_short: u64,
    /// Without a time.
    pub untimed: u64,
    /// Not UDP over IP.
    pub other: u64,
}

impl Skipped {
    pub(super) fn count(&mut self, reason: NotUsable) {
        match reason {
            NotUsable::Fragment => self.fragments += 1,
            NotUsable::CutShort => self.cut_short += 1,
            NotUsable::Other => self.other += 1,
        }
    }
}

/// Nothing, or the reasons as the end of a sentence.
impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.other, "not UDP over IP"),
            (self.fragments, "fragments"),
            (
                self.cut_short,
                "cut short by the capture (tcpdump -s 0 keeps them whole)",
            ),
            (self.untimed, "without a time"),
        ];
        let given: Vec<_> = reasons
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, reason)| format!("{count} {reason}"))
            .collect();
        if given.is_empty() {
            return Ok(());
        }
        write!(f, "; packets left out: {}", given.join(", "))
    }
}
