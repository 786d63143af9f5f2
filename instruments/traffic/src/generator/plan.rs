//! What to send and when: packets made to a schedule, or those of a capture, each to a destination of
//! its own or to all legs.

use std::time::Duration;

use super::compose::Composer;
use super::fault::{Emission, Injector, MOST_EMISSIONS};
use super::lines::Lines;
use super::option::Options;
use super::outbox::Outbox;
use super::replay::Player;
use crate::clock;
use crate::payload::Stamp;
use crate::report::SendReport;
use crate::schedule::{MOST_PACKETS, Schedule};

/// A run's packets on their way to leave.
pub(super) struct Plan<'a> {
    packets: Packets<'a>,
    lines: Option<Lines>,
    /// The packet that is due next.
    next: u64,
    /// Packets that are due later are not sent.
    end_ns: u64,
}

/// The packets of a run, numbered from 0.
enum Packets<'a> {
    /// Test packets.
    Test(Box<Test>),
    /// A capture's packets.
    Replay(Player<'a>),
}

/// Test packets made to a schedule.
struct Test {
    schedule: Schedule,
    last: u64,
    run: u16,
    composer: Composer,
    injector: Option<Injector>,
}

impl<'a> Plan<'a> {
    pub(super) fn of(options: &'a Options) -> Self {
        Self {
            packets: match &options.replay {
                Some(capture) => Packets::Replay(Player::new(capture, options)),
                None => Packets::Test(Box::new(Test::of(options))),
            },
            lines: Lines::of(options),
            next: 0,
            end_ns: options.duration.map_or(u64::MAX, clock::nanoseconds),
        }
    }

    /// The number of datagrams that are due within `duration`, if no fault takes any; `None` for no
    /// end, or where packets are due as fast as they can be sent.
    pub(super) fn planned(&self, duration: Option<Duration>) -> Option<u64> {
        let lines = self.lines.as_ref().map_or(1, Lines::count);
        let packets = self.packets.count(duration)?;
        Some(packets.saturating_mul(lines))
    }

    /// Says whether packets have due times of their own.
    pub(super) fn is_paced(&self) -> bool {
        self.packets.is_paced()
    }

    /// When something leaves next, in nanoseconds after the start; `None` where nothing is left.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let waiting = self.lines.as_ref().and_then(Lines::next_due_ns);
        waiting.into_iter().chain(self.next_packet_ns()).min()
    }

    /// Says whether packets are left for after the end.
    pub(super) fn is_cut_short(&self) -> bool {
        self.next < self.packets.last()
    }

    /// Time that the packets so far take, the last one's interval included.
    pub(super) fn length_ns(&self) -> u64 {
        self.packets.due_ns(self.next).min(self.end_ns)
    }

    /// Puts what is due after `elapsed_ns` next into the outbox; says `false` when nothing is, or
    /// the outbox is too full. The run started at `start_ns` of CLOCK_REALTIME.
    pub(super) fn queue_next(
        &mut self,
        elapsed_ns: u64,
        start_ns: u64,
        outbox: &mut Outbox,
    ) -> bool {
        let waiting = self.lines.as_ref().and_then(Lines::next_due_ns);
        if waiting.is_some_and(|due| due <= elapsed_ns) {
            return self.queue_waiting(outbox);
        }
        let Some(due) = self.next_packet_ns().filter(|&due| due <= elapsed_ns) else {
            return false;
        };
        let due = if self.is_paced() { due } else { elapsed_ns };
        let intended = start_ns.wrapping_add(due);
        if let Some(lines) = &mut self.lines {
            lines.put(self.next, self.packets.place(self.next), due, intended);
        } else if !self.packets.queue(self.next, intended, outbox) {
            return false;
        }
        self.next += 1;
        if self.lines.is_some() && self.next_packet_ns().is_none() {
            self.release();
        }
        true
    }

    /// Puts one packet that was held back into the outbox; says `false` when there is none.
    pub(super) fn queue_rest(&mut self, outbox: &mut Outbox) -> bool {
        self.release();
        if self.lines.is_some() {
            return self.queue_waiting(outbox);
        }
        let Packets::Test(test) = &mut self.packets else {
            return false;
        };
        let held = test.injector.as_mut().and_then(Injector::release);
        held.is_some_and(|emission| test.composer.emit(&emission, outbox))
    }

    /// Adds what the packets themselves have to tell.
    pub(super) fn report(&self, report: &mut SendReport) {
        if let Packets::Test(test) = &self.packets {
            report.injected = test.injector.as_ref().map(|injector| injector.injected);
        }
        if let Some(lines) = &self.lines {
            report.lines = lines.reports();
            report.union = Some(lines.union());
        }
    }

    /// When the next packet is due; `None` where there is none before the end.
    fn next_packet_ns(&self) -> Option<u64> {
        let due = (self.next < self.packets.last()).then(|| self.packets.due_ns(self.next));
        due.filter(|&due| due < self.end_ns)
    }

    /// Lets what waits for a successor on a leg go: there is none.
    fn release(&mut self) {
        if let Some(lines) = &mut self.lines {
            lines.finish();
        }
    }

    /// Puts the copy that leaves a leg next into the outbox.
    fn queue_waiting(&mut self, outbox: &mut Outbox) -> bool {
        let Some(lines) = &mut self.lines else {
            return false;
        };
        let Some((line, copy)) = lines.next() else {
            return false;
        };
        let is_queued = self
            .packets
            .queue_to(line, copy.number, copy.intended_ns, outbox);
        if is_queued {
            lines.leave(line);
        }
        is_queued
    }
}

impl Packets<'_> {
    /// The number of packets; `u64::MAX` for no end.
    fn last(&self) -> u64 {
        match self {
            Self::Test(test) => test.last,
            Self::Replay(player) => player.last(),
        }
    }

    fn is_paced(&self) -> bool {
        match self {
            Self::Test(test) => test.schedule.total_rate.is_some(),
            Self::Replay(_) => true,
        }
    }

    /// The number of packets that are due within `duration`, as [`Plan::planned`].
    fn count(&self, duration: Option<Duration>) -> Option<u64> {
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

    /// When the packet is due, in nanoseconds after the start.
    fn due_ns(&self, number: u64) -> u64 {
        match self {
            Self::Test(test) => test.schedule.due_ns(number),
            Self::Replay(player) => player.due_ns(number),
        }
    }

    /// The packet's stream, and its number there.
    fn place(&self, number: u64) -> (usize, u64) {
        match self {
            Self::Test(test) => {
                let slot = test.schedule.slot(number);
                (slot.stream as usize, slot.sequence)
            }
            Self::Replay(_) => (0, number),
        }
    }

    /// Puts what comes of the packet into the outbox, or says `false` when that is too full.
    fn queue(&mut self, number: u64, intended_ns: u64, outbox: &mut Outbox) -> bool {
        match self {
            Self::Test(test) => test.queue(number, intended_ns, outbox),
            Self::Replay(player) => player.queue(number, outbox),
        }
    }

    /// Puts the packet as it is into the outbox for one destination.
    fn queue_to(&self, to: usize, number: u64, intended_ns: u64, outbox: &mut Outbox) -> bool {
        match self {
            Self::Test(test) => {
                let emission = Emission::plain(number, test.stamp(number, intended_ns));
                test.composer.emit(&Emission { to, ..emission }, outbox)
            }
            Self::Replay(player) => player.queue_to(to, number, outbox),
        }
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

    fn stamp(&self, number: u64, intended_ns: u64) -> Stamp {
        let slot = self.schedule.slot(number);
        Stamp {
            run: self.run,
            stream: slot.stream as u32,
            sequence: slot.sequence,
            intended_ns,
        }
    }

    fn queue(&mut self, number: u64, intended_ns: u64, outbox: &mut Outbox) -> bool {
        let stamp = self.stamp(number, intended_ns);
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
        Plan::of(&options).planned(seconds.map(Duration::from_secs))
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
