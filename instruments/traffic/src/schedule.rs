//! When each packet of each stream is due: a pure function of its number.
//!
//! Packets are numbered globally. A block of `burst` packets of one stream shares one due time;
//! blocks of the streams take turns, evenly spread. The due time depends on nothing that happened
//! before, so a late packet never delays the intended time of the next (no coordinated omission).

/// More packets than any run sends.
pub const MOST_PACKETS: u64 = 1 << 50;

/// The plan of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Number of streams, at least 1.
    pub streams: u64,
    /// Packets per second of all streams together; `None` for as fast as possible.
    pub total_rate: Option<f64>,
    /// Packets that leave together, at least 1.
    pub burst: u64,
    /// Seconds during which the rate rises evenly from 0 to `total_rate`.
    pub ramp_seconds: f64,
}

/// One packet's stream and its position there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Stream number, from 0.
    pub stream: u64,
    /// Sequence number within the stream, from 0.
    pub sequence: u64,
}

impl Schedule {
    /// Returns which packet of which stream the `number`-th packet is.
    pub fn slot(&self, number: u64) -> Slot {
        let block = number / self.burst;
        Slot {
            stream: block % self.streams,
            sequence: block / self.streams * self.burst + number % self.burst,
        }
    }

    /// Nanoseconds after the start at which the `number`-th packet is due; 0 without a rate.
    pub fn due_ns(&self, number: u64) -> u64 {
        let first_of_block = number - number % self.burst;
        self.elapsed_ns(first_of_block as f64)
    }

    /// The first packet that is due at `time_ns` or later; one beyond any run if there is none.
    pub fn first_due(&self, time_ns: u64) -> u64 {
        first_due(time_ns, MOST_PACKETS, |number| self.due_ns(number))
    }

    /// Nanoseconds the schedule takes for `count` packets, the last one's interval included.
    pub fn length_ns(&self, count: u64) -> u64 {
        self.elapsed_ns(count as f64)
    }

    fn elapsed_ns(&self, packets: f64) -> u64 {
        let Some(rate) = self.total_rate else {
            return 0;
        };
        let in_ramp = rate * self.ramp_seconds / 2.0;
        let seconds = if packets < in_ramp {
            (2.0 * packets * self.ramp_seconds / rate).sqrt()
        } else {
            self.ramp_seconds / 2.0 + packets / rate
        };
        (seconds * 1e9) as u64
    }
}

/// The first packet that is due at `time_ns` or later, or `end` if none before it is: a binary search, as due
/// times never fall.
pub(crate) fn first_due(time_ns: u64, end: u64, due_ns: impl Fn(u64) -> u64) -> u64 {
    let (mut early, mut due) = (0, end);
    while early < due {
        let middle = early + (due - early) / 2;
        if due_ns(middle) < time_ns {
            early = middle + 1;
        } else {
            due = middle;
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(streams: u64, burst: u64) -> Schedule {
        Schedule {
            streams,
            total_rate: Some(1000.0),
            burst,
            ramp_seconds: 0.0,
        }
    }

    #[test]
    fn streams_take_turns_evenly() {
        let schedule = schedule(4, 1);
        let slots: Vec<_> = (0..6)
            .map(|n| schedule.slot(n))
            .map(|s| (s.stream, s.sequence))
            .collect();
        assert_eq!(slots, [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]);
        assert_eq!(schedule.due_ns(5), 5_000_000);
    }

    #[test]
    fn a_burst_is_of_one_stream_and_due_at_once() {
        let schedule = schedule(2, 3);
        let slots: Vec<_> = (0..8)
            .map(|n| schedule.slot(n))
            .map(|s| (s.stream, s.sequence))
            .collect();
        assert_eq!(
            slots,
            [
                (0, 0),
                (0, 1),
                (0, 2),
                (1, 0),
                (1, 1),
                (1, 2),
                (0, 3),
                (0, 4)
            ]
        );
        assert_eq!(
            [2, 3, 5, 6].map(|n| schedule.due_ns(n)),
            [0, 3_000_000, 3_000_000, 6_000_000]
        );
    }

    #[test]
    fn a_ramp_sends_half_as_much_and_then_continues_at_the_rate() {
        let schedule = Schedule {
            ramp_seconds: 2.0,
            ..schedule(1, 1)
        };
        assert_eq!(schedule.due_ns(1000), 2_000_000_000);
        assert_eq!(schedule.due_ns(250), 1_000_000_000);
        assert_eq!(schedule.due_ns(3000), 4_000_000_000);
    }
}
