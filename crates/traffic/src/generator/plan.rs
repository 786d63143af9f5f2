//! What to send and when: packets made to a schedule, or those of a capture.

use std::time::Duration;

use super::compose::Composer;
use super::fault::{Emission, Injector, MOST_EMISSIONS};
use super::option::Options;
use super::outbox::Outbox;
use super::replay::Player;
use crate::clock;
use crate::payload::Stamp;
use crate::report::Injected;
use crate::schedule::Schedule;

/// More packets than any run sends.
const MOST_PACKETS: u64 = 1 << 50;

/// The packets of a run, numbered from 0.
pub(super) enum Plan<'a> {
    /// Test packets.
    Test(Box<Test>),
    /// A capture's packets.
    Replay(Player<'a>),
}

/// Test packets made to a schedule.
pub(super) struct Test {
    schedule: Schedule,
    last: u64,
    run: u16,
    composer: Composer,
    injector: Option<Injector>,
}

impl<'a> Plan<'a> {
    pub(super) fn of(options: &'a Options) -> Self {
        match &options.replay {
            Some(capture) => Self::Replay(Player::new(capture, options)),
            None => Self::Test(Box::new(Test::of(options))),
        }
    }

    /// The number of packets; `u64::MAX` for no end.
    pub(super) fn last(&self) -> u64 {
        match self {
            Self::Test(test) => test.last,
            Self::Replay(player) => player.last(),
        }
    }

    /// The number of packets that are due within `duration`; `None` for no end, or where packets
    /// are due as fast as they can be sent.
    pub(super) fn packets(&self, duration: Option<Duration>) -> Option<u64> {
        let last = Some(self.last()).filter(|&last| last < u64::MAX);
        let Some(duration) = duration.filter(|_| self.is_paced()) else {
            return last.filter(|_| duration.is_none() || self.is_paced());
        };
        let end = clock::nanoseconds(duration);
        // Due times never fall: the first packet that is due too late is searched by halves.
        let (mut fits, mut late) = (0, last.unwrap_or(MOST_PACKETS));
        while fits < late {
            let middle = fits + (late - fits) / 2;
            if self.due_ns(middle) < end {
                fits = middle + 1;
            } else {
                late = middle;
            }
        }
        Some(fits)
    }

    /// Says whether packets have due times of their own.
    pub(super) fn is_paced(&self) -> bool {
        match self {
            Self::Test(test) => test.schedule.total_rate.is_some(),
            Self::Replay(_) => true,
        }
    }

    /// When the packet is due, in nanoseconds after the start.
    pub(super) fn due_ns(&self, number: u64) -> u64 {
        match self {
            Self::Test(test) => test.schedule.due_ns(number),
            Self::Replay(player) => player.due_ns(number),
        }
    }

    /// Puts what comes of the packet into the outbox, or says `false` when that is too full.
    pub(super) fn queue(&mut self, number: u64, intended_ns: u64, outbox: &mut Outbox) -> bool {
        match self {
            Self::Test(test) => test.queue(number, intended_ns, outbox),
            Self::Replay(player) => player.queue(number, outbox),
        }
    }

    /// Puts one packet that was held back into the outbox; says `false` when there is none.
    pub(super) fn queue_rest(&mut self, outbox: &mut Outbox) -> bool {
        let Self::Test(test) = self else {
            return false;
        };
        let held = test.injector.as_mut().and_then(Injector::release);
        held.is_some_and(|emission| test.composer.emit(&emission, outbox))
    }

    /// Faults injected so far; `None` when none were asked for.
    pub(super) fn injected(&self) -> Option<Injected> {
        let Self::Test(test) = self else {
            return None;
        };
        test.injector.as_ref().map(|injector| injector.injected)
    }
}

impl Test {
    fn of(options: &Options) -> Self {
        let faults = options.faults;
        Self {
            schedule: options.schedule(),
            last: options.total_count().unwrap_or(u64::MAX),
            run: clock::realtime_ns() as u16 ^ std::process::id() as u16,
            composer: Composer::new(options),
            injector: faults
                .any()
                .then(|| Injector::new(faults, options.seed, options.destinations.len())),
        }
    }

    fn queue(&mut self, number: u64, intended_ns: u64, outbox: &mut Outbox) -> bool {
        let slot = self.schedule.slot(number);
        let stamp = Stamp {
            run: self.run,
            stream: slot.stream as u32,
            sequence: slot.sequence,
            intended_ns,
        };
        let Some(injector) = &mut self.injector else {
            return self.composer.emit(&Emission::plain(number, stamp), outbox);
        };
        if !outbox.has_room(MOST_EMISSIONS) {
            return false;
        }
        injector.pass(number, stamp, |emission| {
            self.composer.emit(&emission, outbox);
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Destination;

    fn packets(rate_pps: Option<f64>, count: Option<u64>, seconds: Option<u64>) -> Option<u64> {
        let resolve = |text: &str| Destination::resolve(&text.parse().unwrap()).unwrap();
        let options = Options {
            rate_pps,
            count,
            ramp: Duration::from_secs(1),
            ..Options::to(resolve("127.0.0.1:1000-1001"))
        };
        Plan::of(&options).packets(seconds.map(Duration::from_secs))
    }

    #[test]
    fn the_packets_of_a_run_are_known_where_its_end_is() {
        assert_eq!(packets(Some(100.0), Some(7), None), Some(14));
        assert_eq!(packets(Some(100.0), Some(7), Some(10)), Some(14));
        assert_eq!(
            packets(Some(100.0), None, Some(1)),
            Some(100),
            "half of it in the ramp"
        );
        assert_eq!(packets(Some(100.0), Some(9999), Some(2)), Some(300));
        assert_eq!(packets(None, Some(7), None), Some(14));
        assert_eq!(packets(None, Some(7), Some(1)), None);
        assert_eq!(packets(Some(100.0), None, None), None);
    }
}
