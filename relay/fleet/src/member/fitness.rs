//! How well this relay serves its shares, alone and compared with others: a relay that receives fewer of
//! a share's rules than another is worse.

use std::collections::{BTreeMap, BTreeSet};

use crate::member::plan::Planned;
use crate::member::{Fitness, Member, Rules};

/// How long a relay stays out of the order for a share that it was not fit for and lost, in ns. It cannot
/// judge a share that is not installed, so it is tried again.
const MARKED_FOR: u64 = 60_000_000_000;
/// The same for a share of which it received nothing, perhaps because nobody sends.
const UNRECEIVED_FOR: u64 = 10 * MARKED_FOR;
/// After a holder has reported silence, a stream that is received now was received since: readings are half a
/// second apart, in ns.
const PROVEN_AFTER: u64 = 1_000_000_000;
/// Longest reason that is sent to others, in characters.
const REASON_MAX: usize = 120;

/// This relay's fitness for a share when the share was taken away.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Mark {
    until: u64,
    unfit: Option<String>,
    received: Option<u32>,
    /// Whether it concerns the input alone, and so does not hold for a source that starts again.
    is_of_input: bool,
}

impl Member {
    pub(super) fn update_fitness(&mut self, fitness: Fitness) {
        if self.rules.fitness == fitness {
            return;
        }
        self.stale = true;
        self.note_contested();
        let before = std::mem::replace(&mut self.rules.fitness, fitness);
        self.rules
            .marks
            .retain(|share, _| !self.plan.install.contains(share));
        let me = self.config.relay.as_str();
        let was_down: BTreeSet<String> = before.down.keys().cloned().collect();
        let unfit = before.silent.into_iter().chain(before.down);
        let mut reasons: BTreeMap<String, Option<String>> =
            unfit.map(|(share, why)| (share, Some(why))).collect();
        let lacks = |(share, received): &(&String, &u32)| {
            let planned = self.plan.shares.get(*share);
            **received == 0 || planned.is_some_and(|planned| planned.lacking.contains_key(me))
        };
        for (share, _) in before.heard.iter().filter(lacks) {
            reasons.entry(share.clone()).or_default();
        }
        for (share, unfit) in reasons {
            if self.plan.shares.contains_key(&share) && !self.plan.install.contains(&share) {
                let received = before.heard.get(&share).copied();
                let is_unreceived = unfit.is_none() && received == Some(0);
                let marked_for = if is_unreceived {
                    UNRECEIVED_FOR
                } else {
                    MARKED_FOR
                };
                let mark = Mark {
                    until: self.now + marked_for,
                    unfit,
                    received,
                    is_of_input: !was_down.contains(&share),
                };
                self.rules.marks.insert(share, mark);
            }
        }
    }

    /// Removes marks that have expired.
    pub(super) fn drop_marks(&mut self) {
        let before = self.rules.marks.len();
        let now = self.now;
        self.rules.marks.retain(|_, mark| now < mark.until);
        self.stale |= self.rules.marks.len() != before;
    }

    /// Removes the marks of shares that a relay receives now and none received before.
    pub(super) fn source_begins(&mut self, shares: &BTreeSet<String>) {
        let before = self.rules.marks.len();
        let marks = &mut self.rules.marks;
        marks.retain(|share, mark| !(mark.is_of_input && shares.contains(share)));
        self.stale |= self.rules.marks.len() != before;
    }

    /// Shares that this relay cannot serve, and why.
    pub(super) fn own_unfit(&self) -> BTreeMap<String, String> {
        let rules = &self.rules;
        let current = [&rules.fitness.silent, &rules.fitness.down, &rules.failed];
        let marks = rules.marks.iter();
        let marked = marks.filter_map(|(share, mark)| Some((share, mark.unfit.as_ref()?)));
        let short = |reason: &String| {
            let mut clean = reason.chars().filter(|c| !c.is_control());
            let short: String = clean.by_ref().take(REASON_MAX).collect();
            short + clean.next().map_or("", |_| "…")
        };
        marked
            .chain(current.into_iter().flatten())
            .map(|(share, reason)| (share.clone(), short(reason)))
            .chain(self.not_held())
            .collect()
    }

    /// Notes the shares of whose rules the holder reports to receive fewer than this relay, since when, and
    /// whether all of them were received after that.
    pub(super) fn note_contested(&mut self) {
        let me = self.config.relay.as_str();
        let Fitness { heard, pausing, .. } = &self.rules.fitness;
        let mut contested = BTreeMap::new();
        for (share, received) in heard {
            let holder = self
                .plan
                .shares
                .get(share)
                .and_then(|it| it.holder.as_deref());
            let entry = holder.and_then(|holder| self.replica.relay(holder));
            let of_holder = entry.and_then(|entry| entry.heard.get(share));
            if holder != Some(me) && of_holder.is_some_and(|of_holder| of_holder < received) {
                let before = self.rules.contested.get(share);
                let (since, was_proven) = before.copied().unwrap_or((self.now, false));
                let is_proven = !pausing.contains_key(share) && self.now >= since + PROVEN_AFTER;
                contested.insert(share.clone(), (since, was_proven || is_proven));
            }
        }
        self.rules.contested = contested;
    }

    /// How many rules of each share this relay receives. One that pauses does not count where the holder
    /// receives nothing either: if the source has ended, the share would go from one to the other in vain.
    pub(super) fn own_received(&self) -> BTreeMap<String, u32> {
        let Rules {
            marks,
            fitness,
            contested,
            ..
        } = &self.rules;
        let marked = marks
            .iter()
            .filter_map(|(share, mark)| Some((share.clone(), mark.received?)));
        let heard = fitness.heard.iter().map(|(share, received)| {
            let is_unproven = contested
                .get(share)
                .is_some_and(|(_, is_proven)| !is_proven);
            let pausing = fitness.pausing.get(share).filter(|_| is_unproven);
            (
                share.clone(),
                received.saturating_sub(pausing.copied().unwrap_or(0)),
            )
        });
        marked.chain(heard).collect()
    }

    /// How long a share that this relay holds may be served this badly, if the standby serves it better.
    pub(super) fn patience(&self, share: &str, planned: &Planned) -> Option<u64> {
        let is_down =
            self.rules.failed.contains_key(share) || self.rules.fitness.down.contains_key(share);
        let receives_less = self.rules.fitness.silent.contains_key(share)
            || planned.lacking.contains_key(self.config.relay.as_str());
        let patience = self.config.patience_ns;
        if is_down && planned.is_fit {
            return Some(patience.down);
        }
        (receives_less && planned.is_fit && planned.receives_more).then_some(patience.silent)
    }
}
