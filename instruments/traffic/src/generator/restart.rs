//! A sender that restarts in the middle of a run, and which number a packet then carries:
//! `1500ms`, or `at=1500ms,number=50000` for a jump under the same name.

use std::str::FromStr;
use std::time::Duration;

use rules::duration;
use thiserror::Error;

use crate::clock;
use crate::framing::Label;
use crate::payload::Stamp;
use crate::schedule::{Schedule, Slot};

/// A restart of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Restart {
    /// Time after the start of the run.
    pub at: Duration,
    /// The number that the same sender continues with; `None` for a new sender, whose numbers start
    /// as the run's did.
    pub number: Option<u64>,
}

/// What is wrong with a restart.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?}: write 1500ms for a new sender, or at=1500ms,number=50000 for a jump of the same")]
pub struct RestartError(String);

impl FromStr for Restart {
    type Err = RestartError;

    fn from_str(text: &str) -> Result<Self, RestartError> {
        let parse = || {
            if let Some(at) = duration::parse(text) {
                return Some(Self { at, number: None });
            }
            let (at, number) = match text.split_once(',') {
                Some((at, number)) => (at, Some(number.strip_prefix("number=")?.parse().ok()?)),
                None => (text, None),
            };
            let at = duration::parse(at.strip_prefix("at=")?)?;
            Some(Self { at, number })
        };
        parse().ok_or_else(|| RestartError(text.to_owned()))
    }
}

/// The numbering of every stream from some packet on.
#[derive(Clone, Copy, Debug)]
struct Era {
    /// The first packet of each stream, by the generator's own count.
    sequence: u64,
    /// The number that it carries.
    number: u64,
    /// Senders before this one.
    generation: u16,
}

/// The labels of a run's packets.
pub(super) struct Labels {
    /// Never empty; ordered by their first packet.
    eras: Vec<Era>,
}

impl Labels {
    pub(super) fn new(first: u64, restarts: &[Restart], schedule: &Schedule) -> Self {
        let mut eras = vec![Era {
            sequence: 0,
            number: first,
            generation: 0,
        }];
        let mut restarts = restarts.to_vec();
        restarts.sort();
        let mut generation: u16 = 0;
        for restart in restarts {
            let (number, is_new) = match restart.number {
                Some(number) => (number, false),
                None => (first, true),
            };
            generation = generation.wrapping_add(u16::from(is_new));
            let first_packet = schedule.first_due(clock::nanoseconds(restart.at));
            let Slot { sequence, .. } = schedule.slot(first_packet);
            eras.push(Era {
                // All streams restart with the same packet.
                sequence: sequence - sequence % schedule.burst,
                number,
                generation,
            });
        }
        Self { eras }
    }

    pub(super) fn label(&self, stamp: &Stamp) -> Label {
        let mut eras = self.eras.iter().rev();
        let Some(era) = eras.find(|era| era.sequence <= stamp.sequence) else {
            return Label::of(stamp);
        };
        let run = stamp.run.wrapping_add(era.generation);
        Label {
            number: era.number.wrapping_add(stamp.sequence - era.sequence),
            ..Label::of(&Stamp { run, ..*stamp })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::option::Options;
    use super::*;
    use crate::endpoint::Destination;
    use crate::framing::Framing;

    fn label(options: &Options, sequence: u64) -> (u16, u64) {
        let stamp = Stamp {
            run: 7,
            stream: 1,
            sequence,
            intended_ns: 0,
        };
        let label = Labels::new(
            options.first_number(),
            &options.restarts,
            &options.schedule(),
        )
        .label(&stamp);
        assert_eq!(label.sender & 0xffff, 1);
        ((label.sender >> 16) as u16, label.number)
    }

    fn options(restarts: &[&str]) -> Options {
        Options {
            rate_pps: Some(1000.0),
            framing: Framing::Rtp,
            start: Some(65_000),
            restarts: restarts.iter().map(|text| text.parse().unwrap()).collect(),
            ..Options::to(vec![Destination {
                address: "239.1.1.1:5001".parse().unwrap(),
                interface: None,
            }])
        }
    }

    #[test]
    fn restarts_are_read_as_documented() {
        let at = Duration::from_millis(1500);
        for (text, number) in [
            ("1500ms", None),
            ("at=1500ms", None),
            ("at=1500ms,number=9", Some(9)),
        ] {
            assert_eq!(text.parse(), Ok(Restart { at, number }), "{text}");
        }
        for text in [
            "",
            "1.5",
            "at=1",
            "at=1s,number=-1",
            "number=3",
            "at=1s,to=3",
        ] {
            assert!(text.parse::<Restart>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_new_sender_starts_over_and_a_jump_keeps_the_sender() {
        let options = options(&["at=2s,number=5", "1s"]);
        assert_eq!(label(&options, 0), (7, 65_000));
        assert_eq!(label(&options, 999), (7, 65_999));
        assert_eq!(label(&options, 1000), (8, 65_000));
        assert_eq!(label(&options, 2001), (8, 6));
    }

    #[test]
    fn feeds_begin_with_number_one_by_default() {
        let feed = Options {
            framing: Framing::Mdp3,
            start: None,
            ..options(&[])
        };
        assert_eq!(label(&feed, 0), (7, 1));
    }
}
