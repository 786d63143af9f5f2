//! Rules whose inputs stand by for each other: what the program decides by, in `failovers`, and the
//! words that it decides with, in `lines` and `choices`.
//!
//! Lines are named by their inputs' counters, so a line that stays keeps its place when others come,
//! go or change places.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::offset_of;

use bpf::Maps;
use bpf::layout::{self, Choice, FAILOVER_LINES, Line};
use model::table::Route;
use packet::failover;

use crate::counters::FailoverCounters;
use crate::error::Error;
use crate::failover::Lines;
use crate::kernel::Kernel;
use crate::kernel::plan::Wanted;
use crate::owners::known::KnownRule;
use crate::owners::name::{Hash, Name};

/// A rule's failover before its lines have counters.
#[derive(Clone, Debug)]
pub(super) struct WantedFailover {
    silence_ns: u64,
    revert_ns: u64,
    lines: Vec<Hash>,
}

/// What stands in `failovers`, by the rule's counter.
pub(super) type Failovers = BTreeMap<u32, layout::Failover>;

impl WantedFailover {
    pub(super) fn of(route: &Route) -> Option<Self> {
        let failover = route.failover.as_ref()?;
        let name = |at: &String| Name::Input(&route.rule, at).hash();
        Some(Self {
            silence_ns: failover.silence_ns(),
            revert_ns: failover.revert_ns(),
            lines: failover.lines.iter().map(name).collect(),
        })
    }
}

impl Kernel {
    /// Says whether the program decides between a rule's inputs as is wanted.
    pub(super) fn fails_over_as(&self, wanted: &Wanted, rule: u32) -> bool {
        let installed = self.failovers.get(&rule).copied();
        installed == wanted.failover.as_ref().map(|f| self.with_counters(f))
    }

    /// Has the program decide between the inputs of rules as is wanted; their counters are there.
    pub(super) fn set_failovers(
        &mut self,
        wanted: HashMap<Hash, Option<WantedFailover>>,
    ) -> Result<(), Error> {
        for (rule, wanted) in wanted {
            let Some(rule) = self.owners.find(&rule).map(|owner| owner.slot) else {
                continue;
            };
            match wanted {
                Some(wanted) => self.set_failover(rule, self.with_counters(&wanted))?,
                None => self.end_failover(rule)?,
            }
        }
        Ok(())
    }

    /// Lets a rule relay each of its inputs.
    pub(super) fn end_failover(&mut self, rule: u32) -> Result<(), Error> {
        if self.failovers.remove(&rule).is_some() {
            self.program.maps.failovers.remove(&[rule])?;
        }
        Ok(())
    }

    /// Takes over what a former process left for the rules that count in `counting`; others get
    /// theirs with their routes.
    pub(super) fn adopt_failovers(&mut self, counting: &HashSet<u32>) -> Result<(), Error> {
        let entries = self.program.maps.failovers.entries()?.into_iter();
        let counters = self.program.maps.choices.len();
        let is_sound = |(rule, failover): &(u32, layout::Failover)| {
            counting.contains(rule)
                && failover.count as usize <= FAILOVER_LINES
                && failover.lines.iter().all(|line| *line < counters)
        };
        let (sound, senseless): (Vec<_>, Vec<_>) = entries.partition(is_sound);
        let senseless: Vec<u32> = senseless.into_iter().map(|(rule, _)| rule).collect();
        self.program.maps.failovers.remove(&senseless)?;
        self.failovers = sound.into_iter().collect();
        Ok(())
    }

    /// Which line of a rule is active.
    pub(super) fn failover(&self, rule: u32, known: &KnownRule) -> Option<FailoverCounters> {
        self.failovers.get(&rule)?;
        let Choice { active, changes } = self.program.maps.choices.read(rule);
        let counter = failover::active_of(active)?;
        let is_it = |hash: &Hash| self.owners.find(hash).is_some_and(|o| o.slot == counter);
        let (at, _) = known.inputs.iter().find(|(_, hash)| is_it(hash))?;
        Some(FailoverCounters {
            active: at.clone(),
            since_ns: sys::clock::from_kernel_ns(failover::since_ns(active)),
            changes,
        })
    }

    /// Makes an input the active one of its rule; `false` if it is none of the rule's lines.
    pub(crate) fn switch(&mut self, rule: &str, input: &str) -> bool {
        let counter = |name: Name<'_>| Some(self.owners.find(&name.hash())?.slot);
        let found = (counter(Name::Rule(rule)), counter(Name::Input(rule, input)));
        let (Some(rule), Some(line)) = found else {
            return false;
        };
        let Some(failover) = self.failovers.get(&rule).copied() else {
            return false;
        };
        let when = when(&failover);
        let is_line = when.lines.contains(&line);
        if is_line {
            let now_ns = sys::clock::kernel_monotonic_ns();
            crate::failover::switch(&mut self.program.maps, rule, (when, line), now_ns);
        }
        is_line
    }

    fn set_failover(&mut self, rule: u32, failover: layout::Failover) -> Result<(), Error> {
        if self.failovers.get(&rule) == Some(&failover) {
            return Ok(());
        }
        let now_ns = sys::clock::kernel_monotonic_ns();
        crate::failover::begin(&mut self.program.maps, rule, when(&failover), now_ns);
        self.program.maps.failovers.insert(&[rule], &[failover])?;
        self.failovers.insert(rule, failover);
        Ok(())
    }

    /// Names lines by their counters. A line whose interface is missing may have none yet.
    fn with_counters(&self, wanted: &WantedFailover) -> layout::Failover {
        let mut failover = layout::Failover {
            silence_ns: wanted.silence_ns,
            revert_ns: wanted.revert_ns,
            ..layout::Failover::default()
        };
        let owners = wanted
            .lines
            .iter()
            .filter_map(|hash| self.owners.find(hash));
        for (place, owner) in failover.lines.iter_mut().zip(owners) {
            *place = owner.slot;
            failover.count += 1;
        }
        failover
    }
}

fn when(failover: &layout::Failover) -> failover::Failover<'_> {
    let count = failover.count as usize;
    failover::Failover {
        silence_ns: failover.silence_ns,
        revert_ns: failover.revert_ns,
        lines: failover.lines.get(..count).unwrap_or_default(),
    }
}

impl Lines for Maps {
    fn line(&self, name: u32) -> [u64; 2] {
        let Line { last_ns, since_ns } = self.lines.read(name);
        [last_ns, since_ns]
    }

    fn set_line(&mut self, name: u32, [last_ns, since_ns]: [u64; 2]) {
        self.lines.store(name, offset_of!(Line, last_ns), last_ns);
        self.lines.store(name, offset_of!(Line, since_ns), since_ns);
    }

    fn choice(&self, rule: u32) -> [u64; 2] {
        let Choice { active, changes } = self.choices.read(rule);
        [active, changes]
    }

    fn set_choice(&mut self, rule: u32, [active, changes]: [u64; 2]) {
        self.choices
            .store(rule, offset_of!(Choice, changes), changes);
        self.choices.store(rule, offset_of!(Choice, active), active);
    }
}
