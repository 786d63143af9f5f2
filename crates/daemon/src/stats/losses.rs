//! When drops begin and end at a rule and at its outputs, and which outputs drop everything: judged
//! from successive readings of the counters. Nothing is remembered of what never dropped.
//!
//! What an output drops because it is down is not told here: that it is down is.

use std::collections::BTreeMap;

use dataplane::counters::{DropReason, Drops, Lost};
use model::rule::Rule;

use super::growth::{Ended, Growth};

const SECOND_NS: u64 = 1_000_000_000;
/// An output that drops everything for so long is degraded.
const STARVED_NS: u64 = 2 * SECOND_NS;

/// What is known of the drops of one rule.
#[derive(Debug, Default)]
pub(super) struct Losses {
    rule: Place,
    /// By where an output sends, and which of those that send there it is: what its counters follow
    /// when the rule changes.
    outputs: BTreeMap<(String, usize), Place>,
}

/// The rule itself, or one of its outputs.
#[derive(Debug, Default)]
struct Place {
    dropped: Drops,
    sent: u64,
    growth: Growth<DropReason>,
    /// Since when all that came was dropped.
    starved_since_ns: Option<u64>,
    /// Why, once that was told.
    starved: Option<DropReason>,
}

/// Something to tell, of an output by its index or of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossNews {
    pub(crate) output: Option<u32>,
    pub(crate) what: Loss,
}

/// What became of drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// So many packets are dropped that were not before.
    Began { reason: DropReason, packets: u64 },
    /// None is any more; so many were, over so long.
    Ended {
        reason: DropReason,
        packets: u64,
        over_ns: u64,
    },
    /// All packets are.
    Everything { reason: DropReason },
    /// Some leave again, or none comes to be dropped.
    Recovered,
}

impl Losses {
    /// Takes in a reading; `adopted`: what was dropped before it is not news.
    pub(super) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        counted: &Lost,
        adopted: bool,
    ) -> Vec<LossNews> {
        let mut news = Vec::new();
        let mut tell = |output, what: Vec<Loss>| {
            news.extend(what.into_iter().map(|what| LossNews { output, what }));
        };
        if adopted {
            self.rule.adopt(&counted.dropped, 0);
        }
        tell(None, self.rule.sample(now_ns, &counted.dropped, None));
        for (index, output) in &counted.outputs {
            let place = self.outputs.entry(key(rule, *index)).or_default();
            if adopted {
                place.adopt(&output.dropped, output.sent.packets);
            }
            let sent = Some(output.sent.packets);
            tell(Some(*index), place.sample(now_ns, &output.dropped, sent));
        }
        news
    }

    /// Whether what was dropped is still to be told of when no packet comes any more.
    pub(super) fn go_on(&self) -> bool {
        let mut places = [&self.rule].into_iter().chain(self.outputs.values());
        places.any(|place| place.growth.goes_on() || place.starved_since_ns.is_some())
    }

    /// The outputs that drop everything, and why.
    pub(super) fn starved(&self, rule: &Rule) -> Vec<(u32, DropReason)> {
        if self.none_starved() {
            return Vec::new();
        }
        let indices = 0..rule.outputs.len() as u32;
        let starved = |index| Some((index, self.outputs.get(&key(rule, index))?.starved?));
        indices.filter_map(starved).collect()
    }

    /// Whether no output drops everything.
    pub(super) fn none_starved(&self) -> bool {
        self.outputs.values().all(|place| place.starved.is_none())
    }
}

fn key(rule: &Rule, index: u32) -> (String, usize) {
    let index = index as usize;
    let to = |index: usize| rule.outputs.get(index).map(|output| &output.to);
    let before = (0..index).filter(|other| to(*other) == to(index)).count();
    (
        to(index).map(ToString::to_string).unwrap_or_default(),
        before,
    )
}

impl Place {
    fn adopt(&mut self, dropped: &Drops, sent: u64) {
        self.dropped.clone_from(dropped);
        self.sent = sent;
    }

    fn sample(&mut self, now_ns: u64, dropped: &Drops, sent: Option<u64>) -> Vec<Loss> {
        let mut news = Vec::new();
        let mut has_dropped = false;
        for reason in DropReason::ALL
            .into_iter()
            .filter(|reason| is_news(*reason))
        {
            let (now, before) = (dropped.0[reason as usize], self.dropped.0[reason as usize]);
            // Fewer than before: counters that began anew.
            let packets = now.checked_sub(before).unwrap_or(now);
            has_dropped |= packets > 0;
            if self.growth.note(now_ns, reason, packets) {
                news.push(Loss::Began { reason, packets });
            }
        }
        self.dropped.clone_from(dropped);
        let ended = self.growth.take_ended(now_ns).into_iter();
        news.extend(
            ended.map(|(reason, Ended { packets, over_ns })| Loss::Ended {
                reason,
                packets,
                over_ns,
            }),
        );
        if let Some(sent) = sent {
            let has_sent = sent != self.sent;
            self.sent = sent;
            news.extend(self.judge(now_ns, has_sent, has_dropped));
        }
        news
    }

    /// Whether all that comes is dropped.
    fn judge(&mut self, now_ns: u64, has_sent: bool, has_dropped: bool) -> Option<Loss> {
        let most = self.growth.most();
        let Some(reason) = most.filter(|_| !has_sent) else {
            self.starved_since_ns = None;
            return self.starved.take().map(|_| Loss::Recovered);
        };
        if has_dropped {
            self.starved_since_ns.get_or_insert(now_ns);
        }
        let since = self.starved_since_ns?;
        if self.starved.is_some() || now_ns - since < STARVED_NS {
            return None;
        }
        self.starved = Some(reason);
        Some(Loss::Everything { reason })
    }
}

/// Packets lost of those dropped: not what stands by, came twice or is wanted by nobody.
pub(super) fn lost<'a>(drops: impl Iterator<Item = &'a Drops>) -> u64 {
    let drops = drops.flat_map(Drops::occurred);
    let lost = drops.filter(|(reason, _)| !reason.is_meant());
    lost.fold(0, |sum, (_, count)| sum.saturating_add(count))
}

/// That an output is down is told by itself.
const fn is_news(reason: DropReason) -> bool {
    !reason.is_meant()
        && !matches!(
            reason,
            DropReason::InterfaceMissing
                | DropReason::InterfaceDown
                | DropReason::NoAddress
                | DropReason::NoRoute
                | DropReason::NoNeighbour
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = SECOND_NS / 2;

    fn drops(reason: DropReason, packets: u64) -> Drops {
        let mut drops = Drops::default();
        drops.0[reason as usize] = packets;
        drops
    }

    #[test]
    fn drops_are_told_when_they_begin_and_when_they_end() {
        let mut place = Place::default();
        let mut at = |half_seconds: u64, packets| {
            place.sample(
                half_seconds * HALF,
                &drops(DropReason::TooBig, packets),
                None,
            )
        };
        let reason = DropReason::TooBig;
        assert_eq!(at(1, 0), []);
        assert_eq!(at(2, 3), [Loss::Began { reason, packets: 3 }]);
        assert_eq!(at(3, 20), []);
        assert_eq!(at(22, 20), []);
        let (packets, over_ns) = (20, HALF);
        assert_eq!(
            at(23, 20),
            [Loss::Ended {
                reason,
                packets,
                over_ns
            }]
        );
        assert_eq!(at(24, 20), []);
        // Counters that began anew.
        assert_eq!(at(25, 2), [Loss::Began { reason, packets: 2 }]);
    }

    #[test]
    fn an_output_that_drops_everything_for_two_seconds_is_told() {
        let reason = DropReason::EgressFull;
        let mut place = Place::default();
        let mut at = |half_seconds: u64, dropped, sent| {
            let drops = drops(reason, dropped);
            place.sample(half_seconds * HALF, &drops, Some(sent))
        };
        assert_eq!(at(1, 5, 10).len(), 1, "they begin, and some leave");
        assert_eq!(at(2, 6, 10), []);
        assert_eq!(at(5, 6, 10), []);
        assert_eq!(at(6, 6, 10), [Loss::Everything { reason }]);
        assert_eq!(at(7, 9, 10), []);
        assert_eq!(at(8, 10, 11), [Loss::Recovered]);
        assert_eq!(at(9, 11, 11), []);
        assert_eq!(at(13, 12, 11), [Loss::Everything { reason }]);
        // Nothing comes any more: the drops have ended, and with them what is known.
        let told = at(33, 12, 11);
        assert!(
            matches!(told[..], [Loss::Ended { .. }, Loss::Recovered]),
            "{told:?}"
        );
    }

    #[test]
    fn what_is_dropped_because_the_output_is_down_is_no_news() {
        let mut place = Place::default();
        let dropped = drops(DropReason::InterfaceDown, 7);
        assert_eq!(place.sample(HALF, &dropped, Some(0)), []);
        assert_eq!(place.sample(9 * HALF, &dropped, Some(0)), []);
    }
}
