//! Faults put in on purpose, each in a percentage of packets chosen by the seed.

use crate::payload::Stamp;
use crate::random::{self, Choice};
use crate::report::Injected;

/// Percentages of packets, 0 to 100 each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Left out.
    pub lose: f64,
    /// Sent twice.
    pub duplicate: f64,
    /// Sent after the next packet of their stream.
    pub reorder: f64,
    /// Sent with a changed byte.
    pub corrupt: f64,
}

impl Faults {
    /// Returns whether there are any.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn are_percentages(&self) -> bool {
        [self.lose, self.duplicate, self.reorder, self.corrupt]
            .iter()
            .all(|percent| (0.0..=100.0).contains(percent))
    }
}

/// One datagram to send, with its number for further choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Emission {
    pub(super) number: u64,
    /// Index of the destination.
    pub(super) to: usize,
    pub(super) stamp: Stamp,
    pub(super) corrupt: bool,
}

impl Emission {
    /// An unchanged packet, to the destination of its stream.
    pub(super) fn plain(number: u64, stamp: Stamp) -> Self {
        Self {
            number,
            to: stamp.stream as usize,
            stamp,
            corrupt: false,
        }
    }
}

/// The most datagrams that one packet releases: itself twice, and one held back, twice.
pub(super) const MOST_EMISSIONS: usize = 4;

/// Decides each packet's faults.
pub(super) struct Injector {
    faults: Faults,
    seed: u64,
    held: Vec<Option<(Emission, bool)>>,
    pub(super) injected: Injected,
}

impl Injector {
    pub(super) fn new(faults: Faults, seed: u64, streams: usize) -> Self {
        Self {
            faults,
            seed,
            held: vec![None; streams],
            injected: Injected::default(),
        }
    }

    /// Hands the datagrams that one packet releases to `emit`, in order.
    pub(super) fn pass(&mut self, number: u64, stamp: Stamp, mut emit: impl FnMut(Emission)) {
        let happens = |choice, percent| random::happens(self.seed, choice, number, percent);
        if happens(Choice::Lose, self.faults.lose) {
            self.injected.lost += 1;
            return;
        }
        let corrupt = happens(Choice::Corrupt, self.faults.corrupt);
        let twice = happens(Choice::Duplicate, self.faults.duplicate);
        let late = happens(Choice::Reorder, self.faults.reorder);
        let emission = Emission {
            corrupt,
            ..Emission::plain(number, stamp)
        };
        self.injected.corrupt += u64::from(corrupt) * (1 + u64::from(twice));
        self.injected.duplicated += u64::from(twice);
        let held = &mut self.held[stamp.stream as usize];
        if late && held.is_none() {
            *held = Some((emission, twice));
            return;
        }
        let earlier = held.take();
        self.injected.reordered += u64::from(earlier.is_some());
        for (emission, twice) in [Some((emission, twice)), earlier].into_iter().flatten() {
            emit(emission);
            if twice {
                emit(emission);
            }
        }
    }

    /// Returns one datagram that is still held back at the end; it is sent in order after all.
    pub(super) fn release(&mut self) -> Option<Emission> {
        let held = self.held.iter_mut().find(|held| held.is_some())?;
        let (emission, twice) = (*held)?;
        *held = twice.then_some((emission, false));
        Some(emission)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(faults: Faults, count: u64) -> (Vec<u64>, Injected) {
        let mut injector = Injector::new(faults, 42, 1);
        let mut sent = Vec::new();
        for number in 0..count {
            let stamp = Stamp {
                run: 0,
                stream: 0,
                sequence: number,
                intended_ns: 0,
            };
            injector.pass(number, stamp, |emission| sent.push(emission.stamp.sequence));
        }
        while let Some(emission) = injector.release() {
            sent.push(emission.stamp.sequence);
        }
        (sent, injector.injected)
    }

    #[test]
    fn without_faults_everything_passes_once_and_in_order() {
        let (sent, injected) = sequences(Faults::default(), 100);
        assert_eq!(sent, (0..100).collect::<Vec<_>>());
        assert_eq!(injected, Injected::default());
    }

    #[test]
    fn a_reordered_packet_follows_its_successor() {
        let faults = Faults {
            reorder: 100.0,
            ..Faults::default()
        };
        assert_eq!(sequences(faults, 5).0, [1, 0, 3, 2, 4]);
    }

    #[test]
    fn injected_faults_are_counted() {
        let faults = Faults {
            lose: 5.0,
            duplicate: 3.0,
            reorder: 10.0,
            corrupt: 1.0,
        };
        let (sent, injected) = sequences(faults, 10_000);
        let expected = 10_000 - injected.lost + injected.duplicated;
        assert_eq!(sent.len() as u64, expected);
        assert!(injected.lost > 0 && injected.duplicated > 0 && injected.reordered > 0);
    }
}
