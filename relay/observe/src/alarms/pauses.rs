//! Decides when a stream is silent. How long it may pause is learnt, unless configured, from its last
//! pauses: a stream of one packet every ten seconds is not silent in between, and one of a thousand per
//! second soon is.

use rules::health::Silence;

use super::{SECOND_NS, nanoseconds, silence};

/// How long any stream may pause.
const LEAST_NS: u64 = 2 * SECOND_NS;
/// A stream may pause for this many times its longest pause.
const TIMES: u64 = 5;
/// Number of pauses that are remembered.
const REMEMBERED: usize = 20;
/// Up to this length a pause does not raise what the stream may pause.
const SHORT_NS: u64 = LEAST_NS / TIMES;

/// The pauses of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    /// The last ones in nanoseconds, the newest last; `None` while all are short.
    last: Option<Box<[u64; REMEMBERED]>>,
    /// How long it may pause.
    longest_ns: Option<u64>,
    /// Since when it has been silent, in nanoseconds of `CLOCK_MONOTONIC`.
    silent_ns: Option<u64>,
}

/// The beginning or end of a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Nothing has arrived for this long, in nanoseconds.
    Silent(u64),
    /// Packets arrive again after this long, in nanoseconds.
    Back(u64),
}

impl Pauses {
    /// Records that `packets` arrived since a reading at `read_ns`, the last one at `last_ns`; the packet
    /// before them arrived at `before_ns`.
    pub(crate) fn note(&mut self, packets: u64, last_ns: u64, (read_ns, before_ns): (u64, u64)) {
        // If there are several, all that is known is that none had arrived by the previous reading.
        let until_ns = if packets == 1 { last_ns } else { read_ns };
        let gap_ns = until_ns.saturating_sub(before_ns);
        if packets == 0 || before_ns == 0 || gap_ns <= SHORT_NS && self.last.is_none() {
            return;
        }
        let last = self.last.get_or_insert_default();
        let count = usize::try_from(packets)
            .unwrap_or(REMEMBERED)
            .min(REMEMBERED);
        last.rotate_left(count);
        last[REMEMBERED - count..].fill(0);
        last[REMEMBERED - 1] = gap_ns;
        if last.iter().all(|gap_ns| *gap_ns <= SHORT_NS) {
            self.last = None;
        }
    }

    /// Checks whether a stream with its last packet at `last_ns` is silent now; `allowed` is `None` if it
    /// is not to be judged. Silence that began before the daemon (`is_first`) is not reported.
    pub(crate) fn check(
        &mut self,
        now_ns: u64,
        last_ns: u64,
        (allowed, is_first): (Option<Silence>, bool),
    ) -> Option<Pause> {
        self.longest_ns = allowed.and_then(|allowed| self.longest_ns(allowed));
        let Some(longest_ns) = self.longest_ns.filter(|_| last_ns > 0) else {
            self.silent_ns = None;
            return None;
        };
        match (self.silent_ns, silence(now_ns, last_ns, longest_ns)) {
            (None, Some(silent_ns)) => {
                self.silent_ns = Some(last_ns);
                (!is_first).then_some(Pause::Silent(silent_ns))
            }
            (Some(since_ns), _) if since_ns < last_ns => {
                self.silent_ns = None;
                Some(Pause::Back(last_ns - since_ns))
            }
            _ => None,
        }
    }

    /// How long it may pause, by the last check.
    pub(crate) const fn allowed_ns(&self) -> Option<u64> {
        self.longest_ns
    }

    /// How long it may pause, if it is not silent yet.
    pub(crate) const fn due_after_ns(&self) -> Option<u64> {
        match self.silent_ns {
            None => self.longest_ns,
            Some(_) => None,
        }
    }

    /// How long it may pause under this setting; `None`: for ever.
    pub(crate) fn longest_ns(&self, allowed: Silence) -> Option<u64> {
        match allowed {
            Silence::Off => None,
            Silence::After(time) => Some(nanoseconds(time)),
            Silence::Auto => {
                let longest = self.last.iter().flat_map(|last| last.iter()).max();
                Some(longest.map_or(LEAST_NS, |gap_ns| LEAST_NS.max(TIMES * gap_ns)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks twice a second a stream with a packet every `every_ms` for a minute, and none afterwards.
    /// Returns the false alarms, and the checks after the last packet at which silence was reported.
    fn checks(every_ms: u64, allowed: Silence) -> (usize, Vec<u64>) {
        let mut pauses = Pauses::default();
        let (mut before, mut flickers, mut reported) = ((0, 0), 0, Vec::new());
        for check in 1..1000 {
            let now_ns = check * SECOND_NS / 2;
            let packets = (now_ns / 1_000_000).min(60_000) / every_ms;
            let last_ns = packets * every_ms * 1_000_000;
            if packets > before.0 && before.0 > 0 {
                let read = (now_ns - SECOND_NS / 2, before.1);
                pauses.note(packets - before.0, last_ns, read);
            }
            before = (packets, last_ns);
            match pauses.check(now_ns, last_ns, (Some(allowed), false)) {
                Some(Pause::Silent(_)) if check > 120 => reported.push(check - 120),
                Some(Pause::Silent(_)) => flickers += 1,
                _ => {}
            }
        }
        (flickers, reported)
    }

    #[test]
    fn a_slow_stream_does_not_flicker_and_a_fast_one_is_soon_silent() {
        assert_eq!(checks(100, Silence::Auto), (0, vec![5]));
        assert_eq!(checks(1000, Silence::Auto), (0, vec![11]));
        assert_eq!(checks(2000, Silence::Auto), (0, vec![21]));
        // Its first pause has not been learnt yet.
        assert_eq!(checks(10_000, Silence::Auto), (1, vec![101]));
        assert_eq!(checks(1000, Silence::Off), (0, vec![]));
        let after = Silence::After(std::time::Duration::from_secs(3));
        assert_eq!(checks(1000, after), (0, vec![7]));
    }

    #[test]
    fn an_outage_is_forgotten_with_twenty_packets() {
        let mut pauses = Pauses::default();
        let allowed = |pauses: &Pauses| pauses.longest_ns(Silence::Auto);
        pauses.note(1, 101 * SECOND_NS, (0, SECOND_NS));
        assert_eq!(allowed(&pauses), Some(500 * SECOND_NS));
        pauses.note(19, 0, (1, 1));
        assert_eq!(allowed(&pauses), Some(500 * SECOND_NS));
        pauses.note(1, 1, (1, 1));
        assert_eq!(allowed(&pauses), Some(LEAST_NS));
        assert!(pauses.last.is_none());
    }
}
