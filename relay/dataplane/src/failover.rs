//! Failover: what the control side does to the words that packets decide by, alike on both paths. Legs
//! and rules are named by the slots that they count in, so a leg that stays keeps its words when others
//! are added, removed or change slots.

use std::collections::BTreeMap;

use bpf::layout::{Choice, FAILOVER_LINES, Failover, Line};
use compile::table::Route;
use packet::failover::{self, active_of, choice};
use sys::field;
use sys::memory::Array;

use crate::clock::Clock;

/// The failovers of one path.
#[derive(Debug)]
pub(crate) struct Failovers {
    lines: Array<Line>,
    choices: Array<Choice>,
    clock: Clock,
    /// By rule.
    rules: BTreeMap<u32, Failover>,
}

/// The leg of a rule that is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Active {
    pub(crate) line: u32,
    /// Since when, by this process's clock.
    pub(crate) since_ns: u64,
    /// Times another leg has become active.
    pub(crate) changes: u64,
}

impl Failovers {
    /// None yet; the words are where packets decide.
    pub(crate) fn new(lines: Array<Line>, choices: Array<Choice>, clock: Clock) -> Self {
        Self {
            lines,
            choices,
            clock,
            rules: BTreeMap::new(),
        }
    }

    /// How a rule fails over, if it does.
    pub(crate) fn of(&self, rule: u32) -> Option<&Failover> {
        self.rules.get(&rule)
    }

    /// Adopts the failover of an earlier process, if all that it names exists.
    pub(crate) fn adopt(&mut self, rule: u32, former: Failover) -> bool {
        let exists = |line: &u32| *line < self.lines.len();
        let is_sound =
            former.count as usize <= former.lines.len() && former.lines.iter().all(exists);
        if is_sound {
            self.rules.insert(rule, former);
        }
        is_sound
    }

    /// Lets packets of a rule pass by one leg at a time; returns whether that changed. A rule without an
    /// active leg, or whose active leg was removed, gets one: the first that delivers, or else the first,
    /// whose silence begins now.
    pub(crate) fn set(&mut self, rule: u32, failover: Failover) -> bool {
        let before = self.rules.insert(rule, failover);
        let when = when(&failover);
        let Choice { active, changes } = self.choices.read(rule);
        if !active_of(active).is_some_and(|active| when.lines.contains(&active)) {
            let now_ns = self.clock.now_ns();
            let delivers = |line: &&u32| !when.is_silent(self.lines.read(**line).last_ns, now_ns);
            let best = when.lines.iter().find(delivers).copied();
            if let Some(line) = best.or(when.lines.first().copied()) {
                if best.is_none() {
                    let (last_ns, since_ns) = (now_ns, now_ns);
                    self.lines.write(line, &Line { last_ns, since_ns });
                }
                self.choose(rule, choice(line, now_ns), changes);
            }
        }
        before != Some(failover)
    }

    /// Lets a rule relay each of its inputs; returns whether it failed over before.
    pub(crate) fn end(&mut self, rule: u32) -> bool {
        self.rules.remove(&rule).is_some()
    }

    /// Ends the failovers of all rules but `wanted`.
    pub(crate) fn end_others(&mut self, wanted: impl Fn(u32) -> bool) {
        self.rules.retain(|rule, _| wanted(*rule));
    }

    /// Makes a leg the active one of its rule; while it delivers, those before it come back as if they
    /// had begun to deliver now. `false` if it is none of the rule's legs.
    pub(crate) fn switch(&self, rule: u32, line: u32) -> bool {
        let Some(failover) = self.rules.get(&rule) else {
            return false;
        };
        let lines = when(failover).lines;
        let Some(position) = lines.iter().position(|other| *other == line) else {
            return false;
        };
        let now_ns = self.clock.now_ns();
        let is_silent = when(failover).is_silent(self.lines.read(line).last_ns, now_ns);
        let before = if is_silent { &[] } else { &lines[..position] };
        for other in before {
            let last_ns = self.lines.read(*other).last_ns;
            let since_ns = now_ns;
            self.lines.write(*other, &Line { last_ns, since_ns });
        }
        let Choice { active, changes } = self.choices.read(rule);
        let is_other = active_of(active) != Some(line);
        self.choose(
            rule,
            choice(line, now_ns),
            changes.wrapping_add(is_other.into()),
        );
        true
    }

    /// Which leg of a rule is active, where it fails over.
    pub(crate) fn active(&self, rule: u32) -> Option<Active> {
        self.rules.get(&rule)?;
        let Choice { active, changes } = self.choices.read(rule);
        let since_ns = failover::since_ns(active);
        Some(Active {
            line: active_of(active)?,
            since_ns: self.clock.to_process_ns(since_ns),
            changes,
        })
    }

    /// Returns whether a packet of a line would pass now; the active leg does not change.
    pub(crate) fn would_pass(&self, rule: u32, line: u32) -> bool {
        let Some(failover) = self.rules.get(&rule).map(when) else {
            return true;
        };
        let Choice { active, changes } = self.choices.read(rule);
        let words = |line: &u32| {
            let Line { last_ns, since_ns } = self.lines.read(*line);
            (*line, [last_ns.into(), since_ns.into()])
        };
        let lines: BTreeMap<u32, failover::Pair> = failover.lines.iter().map(words).collect();
        let choice = [active.into(), changes.into()];
        failover.passes(line, self.clock.now_ns(), &choice, |line| lines.get(&line))
    }

    /// Clears the state of the former owner of an input's slot.
    pub(crate) fn forget_line(&self, line: u32) {
        self.lines.write(line, &Line::default());
    }

    /// Clears the state of the former owner of a rule's slot.
    pub(crate) fn forget_choice(&self, rule: u32) {
        self.choices.write(rule, &Choice::default());
    }

    /// Resets times in the future: a silent leg would seem to deliver until then.
    pub(crate) fn reset_future_times(&self, line: u32) {
        let now_ns = self.clock.now_ns();
        let before = self.lines.read(line);
        let past = |at_ns: u64| if at_ns > now_ns { 0 } else { at_ns };
        let after = Line {
            last_ns: past(before.last_ns),
            since_ns: past(before.since_ns),
        };
        if after != before {
            self.lines.write(line, &after);
        }
    }

    /// Counts the change first, so that whoever sees another active leg also sees the change.
    fn choose(&self, rule: u32, active: u64, changes: u64) {
        self.choices.store(rule, field!(Choice, changes), changes);
        self.choices.store(rule, field!(Choice, active), active);
    }
}

/// How a route's rule fails over between the legs at these slots, if it does. A leg whose interface is
/// missing may have no slot yet.
pub(crate) fn of_route(route: &Route, lines: impl Iterator<Item = u32>) -> Option<Failover> {
    let wanted = route.failover.as_ref()?;
    let failover = Failover {
        silence_ns: wanted.silence_ns(),
        revert_ns: wanted.revert_ns(),
        ..Failover::default()
    };
    Some(between(failover, lines))
}

/// The same between other legs.
pub(crate) fn between(failover: Failover, lines: impl Iterator<Item = u32>) -> Failover {
    let mut failover = Failover {
        count: 0,
        lines: [0; FAILOVER_LINES],
        ..failover
    };
    for (entry, line) in failover.lines.iter_mut().zip(lines) {
        *entry = line;
        failover.count += 1;
    }
    failover
}

/// When another leg takes over.
#[inline]
pub(crate) fn when(failover: &Failover) -> failover::Failover<'_> {
    let count = failover.count as usize;
    failover::Failover {
        silence_ns: failover.silence_ns,
        revert_ns: failover.revert_ns,
        lines: failover.lines.get(..count).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use sys::shared_memory;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn failovers() -> Failovers {
        const BYTES: usize = 5 * size_of::<Line>();
        let region = shared_memory::create(c"mcr-test", BYTES).unwrap();
        let memory = shared_memory::map(region.as_fd(), BYTES).unwrap();
        let choices = memory.array(4 * size_of::<Line>(), 1);
        Failovers::new(memory.array(0, 4), choices, Clock::Process)
    }

    fn set(failovers: &mut Failovers, lines: &[u32]) -> bool {
        let times = Failover {
            silence_ns: 100 * SECOND,
            ..Failover::default()
        };
        failovers.set(0, between(times, lines.iter().copied()))
    }

    fn active(failovers: &Failovers) -> u32 {
        failovers.active(0).unwrap().line
    }

    #[test]
    fn the_first_line_gets_its_time() {
        let mut failovers = failovers();
        let before = Clock::Process.now_ns();
        assert!(set(&mut failovers, &[2, 1]));
        assert!(!set(&mut failovers, &[2, 1]), "that is no news");
        assert_eq!(active(&failovers), 2);
        let Line { last_ns, since_ns } = failovers.lines.read(2);
        assert!(last_ns >= before && since_ns == last_ns);
        assert_eq!(failovers.lines.read(1), Line::default());
    }

    #[test]
    fn a_removed_line_leaves_the_stream_to_one_that_delivers() {
        let mut failovers = failovers();
        set(&mut failovers, &[0, 1, 2]);
        let now = Clock::Process.now_ns();
        let (last_ns, since_ns) = (now, now);
        failovers.lines.write(2, &Line { last_ns, since_ns });
        // The process may have run for less than the silence, so the time of the last packet wraps.
        let last_ns = now.wrapping_sub(200 * SECOND);
        failovers.lines.write(1, &Line { last_ns, since_ns });
        set(&mut failovers, &[0, 1, 2, 3]);
        assert_eq!(active(&failovers), 0, "it is there still");
        set(&mut failovers, &[1, 2]);
        assert_eq!(active(&failovers), 2);
        assert!(failovers.end(0) && !failovers.end(0));
        assert_eq!(failovers.active(0), None);
    }

    #[test]
    fn after_a_switch_by_hand_the_way_back_begins_anew() {
        let mut failovers = failovers();
        set(&mut failovers, &[0, 1]);
        let before = failovers.lines.read(0);
        // A silent leg is replaced by one that has delivered all the while.
        let last_ns = Clock::Process.now_ns().wrapping_sub(200 * SECOND);
        let since_ns = 0;
        failovers.lines.write(1, &Line { last_ns, since_ns });
        assert!(failovers.switch(0, 1));
        assert_eq!(failovers.lines.read(0), before);
        assert!(failovers.switch(0, 0));
        let (last_ns, since_ns) = (Clock::Process.now_ns(), before.since_ns);
        failovers.lines.write(1, &Line { last_ns, since_ns });
        assert!(failovers.switch(0, 1));
        assert_eq!(active(&failovers), 1);
        let after = failovers.lines.read(0);
        assert_eq!(after.last_ns, before.last_ns);
        assert!(after.since_ns > before.since_ns);
        assert!(failovers.switch(0, 1));
        assert_eq!(
            failovers.active(0).unwrap().changes,
            3,
            "the second changed nothing"
        );
        assert!(!failovers.switch(0, 3), "it is none of its lines");
    }

    #[test]
    fn invalid_state_is_not_adopted() {
        let mut failovers = failovers();
        let mut former = between(Failover::default(), [0, 3].into_iter());
        assert!(failovers.adopt(0, former));
        former.lines[7] = 4;
        assert!(!failovers.adopt(1, former));
        let count = 9;
        assert!(!failovers.adopt(2, Failover { count, ..former }));
        let now_ns = Clock::Process.now_ns();
        let (last_ns, since_ns) = (now_ns + 100 * SECOND, 1);
        failovers.lines.write(0, &Line { last_ns, since_ns });
        failovers.reset_future_times(0);
        let last_ns = 0;
        assert_eq!(failovers.lines.read(0), Line { last_ns, since_ns });
    }
}
