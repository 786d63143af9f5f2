//! What to send and when: packets made to a schedule, or those of a capture.

use super::compose::Composer;
use super::fault::{Emission, Injector, MOST_EMISSIONS};
use super::option::Options;
use super::outbox::Outbox;
use super::replay::Player;
use crate::clock;
use crate::payload::Stamp;
use crate::report::Injected;
use crate::schedule::Schedule;

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
