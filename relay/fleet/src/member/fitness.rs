//! How well this relay serves its shares, alone and compared with others: one that receives fewer of a
//! share's rules than another is worse.

use std::collections::{BTreeMap, BTreeSet};

use crate::member::plan::Planned;
use crate::member::{Fitness, Member};

/// How long a relay stays out of line for a share that it was not fit for and has no more, in ns. What
/// it has not installed it cannot judge; then it is tried again.
const MARKED_FOR: u64 = 60_000_000_000;
/// The same of what it heard nothing of, which may be because nobody sends.
const UNHEARD_FOR: u64 = 10 * MARKED_FOR;
/// Longest reason that is sent to others, in characters.
const REASON_MAX: usize = 120;

/// What was known of a share when it was taken away.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Mark {
    until: u64,
    unfit: Option<String>,
    heard: Option<u32>,
    /// It is of what was received, and says nothing of a source that begins anew.
    is_hearing: bool,
}

impl Member {
    pub(super) fn fitness_told(&mut self, fitness: Fitness) {
        if self.rules.fitness == fitness {
            return;
        }
        self.stale = true;
        let before = std::mem::replace(&mut self.rules.fitness, fitness);
        self.rules
            .marks
            .retain(|share, _| !self.plan.install.contains(share));
        let me = self.config.relay.as_str();
        let was_down: BTreeSet<String> = before.down.keys().cloned().collect();
        let unfit = before.silent.into_iter().chain(before.down);
        let mut marks: BTreeMap<String, Option<String>> =
            unfit.map(|(share, why)| (share, Some(why))).collect();
        let lacks = |(share, heard): &(&String, &u32)| {
            let planned = self.plan.shares.get(*share);
            **heard == 0 || planned.is_some_and(|planned| planned.lacking.contains_key(me))
        };
        for (share, _) in before.heard.iter().filter(lacks) {
            marks.entry(share.clone()).or_default();
        }
        for (share, unfit) in marks {
            if self.plan.shares.contains_key(&share) && !self.plan.install.contains(&share) {
                let heard = before.heard.get(&share).copied();
                let is_unheard = unfit.is_none() && heard == Some(0);
                let is_hearing = !was_down.contains(&share);
                let until = self.now + if is_unheard { UNHEARD_FOR } else { MARKED_FOR };
                self.rules.marks.insert(
                    share,
                    Mark {
                        until,
                        unfit,
                        heard,
                        is_hearing,
                    },
                );
            }
        }
    }

    /// Forgets what is too old to be believed.
    pub(super) fn drop_marks(&mut self) {
        let before = self.rules.marks.len();
        let now = self.now;
        self.rules.marks.retain(|_, mark| now < mark.until);
        self.stale |= self.rules.marks.len() != before;
    }

    /// Somebody hears these shares, and nobody did before.
    pub(super) fn source_begins(&mut self, shares: &BTreeSet<String>) {
        let before = self.rules.marks.len();
        let marks = &mut self.rules.marks;
        marks.retain(|share, mark| !(mark.is_hearing && shares.contains(share)));
        self.stale |= self.rules.marks.len() != before;
    }

    /// Shares that this relay cannot serve, and why.
    pub(super) fn own_unfit(&self) -> BTreeMap<String, String> {
        let rules = &self.rules;
        let told = [&rules.fitness.silent, &rules.fitness.down, &rules.failed];
        let marked = rules.marks.iter();
        let marked = marked.filter_map(|(share, mark)| Some((share, mark.unfit.as_ref()?)));
        let all = marked.chain(told.into_iter().flatten());
        let short = |reason: &String| {
            let mut clean = reason.chars().filter(|c| !c.is_control());
            let short: String = clean.by_ref().take(REASON_MAX).collect();
            short + clean.next().map_or("", |_| "…")
        };
        let all = all.map(|(share, reason)| (share.clone(), short(reason)));
        all.chain(self.not_held()).collect()
    }

    /// How many rules of each share it receives.
    pub(super) fn own_heard(&self) -> BTreeMap<String, u32> {
        let marked = self.rules.marks.iter();
        let marked = marked.filter_map(|(share, mark)| Some((share.clone(), mark.heard?)));
        marked.chain(self.rules.fitness.heard.clone()).collect()
    }

    /// How long a share that this relay holds may be served so badly, if the next serves it better.
    pub(super) fn patience(&self, share: &str, planned: &Planned) -> Option<u64> {
        let is_down =
            self.rules.failed.contains_key(share) || self.rules.fitness.down.contains_key(share);
        let is_deaf = self.rules.fitness.silent.contains_key(share)
            || planned.lacking.contains_key(self.config.relay.as_str());
        let patience = self.config.patience_ns;
        let down = (is_down && planned.is_fit).then_some(patience.down);
        let deaf = is_deaf && planned.is_fit && planned.hears_more;
        down.or(deaf.then_some(patience.silent))
    }
}
