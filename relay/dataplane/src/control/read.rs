//! What a path counted, added up by rule, input and output under the names that it counts for.

use std::sync::Arc;

use packet::latency::Latency;

use super::{Control, Memory};
use crate::counters::{
    Arrived, Counters, Drops, FailoverCounters, LinesSeen, MergeCounters, MergeSeen, Traffic,
};
use crate::failover::when;
use crate::owners::name::{Hash, Kind};
use crate::owners::registry::{Progress, RuleNames};

impl<M: Memory> Control<M> {
    /// Adds what the next rules counted.
    pub(crate) fn read(&self, lanes: &M::Lanes, progress: &mut Progress, counters: &mut Counters) {
        self.registry.read(progress, |name, names| {
            self.read_rule(lanes, (name, names), counters);
        });
    }

    fn read_rule(
        &self,
        lanes: &M::Lanes,
        (name, names): (&Arc<str>, &RuleNames),
        counters: &mut Counters,
    ) {
        let Some(owner) = self.owners(Kind::Rule).find(&names.hash) else {
            return;
        };
        let Some((received, dropped)) = self.counted(lanes, Kind::Rule, &names.hash) else {
            return;
        };
        let (slot, base) = (owner.slot, owner.base.as_deref());
        let rule = counters.rules.entry(name.to_string()).or_default();
        rule.received.add(received);
        rule.dropped.add(&dropped);
        let (health, latency) = self.memory.of_rule(lanes, slot, base);
        rule.add_health(&health);
        if latency != Latency::default() {
            rule.latency.entry(M::PATH).or_default().add(&latency);
        }
        let failover = self.failover(slot, names).map(Box::new);
        rule.failover = failover.or(rule.failover.take());
        if let Some(merge) = self.merge(slot, names) {
            rule.merge.get_or_insert_default().add(&merge);
        }
        for (at, hash) in &names.inputs {
            if let Some((received, dropped)) = self.counted(lanes, Kind::Input, hash) {
                let input = rule.inputs.entry(at.clone()).or_default();
                input.received.add(received);
                input.dropped.add(&dropped);
            }
        }
        for (index, hash) in &names.outputs {
            if let Some((sent, dropped)) = self.counted(lanes, Kind::Output, hash) {
                let output = rule.outputs.entry(*index).or_default();
                output.sent.add(sent);
                output.dropped.add(&dropped);
            }
        }
    }

    /// Adds what these rules received, and what they dropped where they dropped anything.
    pub(crate) fn read_arrived(&self, lanes: &M::Lanes, rules: &[Arc<str>], arrived: &mut Arrived) {
        for name in rules {
            let Some(names) = self.registry.get(name) else {
                continue;
            };
            let owner = self.owners(Kind::Rule).find(&names.hash);
            let counted = self.counted(lanes, Kind::Rule, &names.hash);
            let (Some(owner), Some((received, dropped))) = (owner, counted) else {
                continue;
            };
            let (slot, base) = (owner.slot, owner.base.as_deref());
            let total = arrived.entry(Arc::clone(name)).or_default();
            let (health, _) = self.memory.of_rule(lanes, slot, base);
            total.add(received, &health);
            total.add_dropped(&dropped);
            let lines = self.lines_seen(lanes, slot, names).map(Box::new);
            total.lines = lines.or(total.lines.take());
            let merge = self.merge_seen(lanes, slot, names).map(Box::new);
            total.merge = merge.or(total.merge.take());
            for (index, hash) in &names.outputs {
                if let Some((sent, dropped)) = self.counted(lanes, Kind::Output, hash) {
                    total.add_output(*index, sent, &dropped);
                }
            }
        }
    }

    /// Those of `rules` that count, each with its slot and its names.
    pub(crate) fn counting<'a>(
        &'a self,
        rules: &'a [Arc<str>],
    ) -> impl Iterator<Item = (u32, &'a RuleNames)> {
        rules.iter().filter_map(|rule| {
            let names = self.registry.get(rule)?;
            Some((self.slot(Kind::Rule, &names.hash)?, names))
        })
    }

    /// Which leg of a rule is active.
    fn failover(&self, rule: u32, names: &RuleNames) -> Option<FailoverCounters> {
        let active = self.failovers.active(rule)?;
        let mut inputs = self.inputs(names);
        let (at, _) = inputs.find(|(_, line)| *line == active.line)?;
        Some(FailoverCounters {
            active: at.clone(),
            since_ns: active.since_ns,
            changes: active.changes,
        })
    }

    /// What the legs of a merged rule delivered on this path.
    pub(crate) fn merge_of(&self, rule: &str) -> Option<MergeCounters> {
        let names = self.registry.get(rule)?;
        self.merge(self.slot(Kind::Rule, &names.hash)?, names)
    }

    /// What the legs of a merged rule delivered.
    fn merge(&self, rule: u32, names: &RuleNames) -> Option<MergeCounters> {
        self.merges.read(rule, self.inputs(names))
    }

    /// The traffic of each leg of a rule that fails over between its inputs. A leg whose interface is missing
    /// may have no slot yet.
    fn lines_seen(&self, lanes: &M::Lanes, rule: u32, names: &RuleNames) -> Option<LinesSeen> {
        let failover = self.failover(rule, names)?;
        let lines = when(self.failovers.of(rule)?).lines;
        let is_line = |hash: &Hash| {
            let slot = self.slot(Kind::Input, hash);
            slot.is_none_or(|slot| lines.contains(&slot))
        };
        let inputs = names.inputs.iter().filter(|(_, hash)| is_line(hash));
        let came = inputs.map(|(at, hash)| (at.clone(), self.input_traffic(lanes, hash)));
        Some(LinesSeen {
            active: failover.active,
            changes: failover.changes,
            came: came.collect(),
        })
    }

    /// The legs of a merged rule, unless they are off.
    fn merge_seen(&self, lanes: &M::Lanes, rule: u32, names: &RuleNames) -> Option<MergeSeen> {
        if !self.merges.is_running(rule) {
            return None;
        }
        let counters = self.merge(rule, names)?;
        let inputs = names.inputs.iter();
        let lines = inputs.filter(|(at, _)| counters.lines.contains_key(*at));
        let arrival_ns = |hash| self.input_traffic(lanes, hash).last_ns;
        let last_ns = lines
            .map(|(at, hash)| (at.clone(), arrival_ns(hash)))
            .collect();
        Some(MergeSeen { counters, last_ns })
    }

    fn input_traffic(&self, lanes: &M::Lanes, input: &Hash) -> Traffic {
        let counted = self.counted(lanes, Kind::Input, input);
        counted.map_or_else(Traffic::default, |(received, _)| received)
    }

    fn inputs<'a>(&'a self, names: &'a RuleNames) -> impl Iterator<Item = (&'a String, u32)> {
        let inputs = names.inputs.iter();
        inputs.filter_map(|(at, hash)| Some((at, self.slot(Kind::Input, hash)?)))
    }

    /// What an owner has counted since it got its slot.
    fn counted(&self, lanes: &M::Lanes, kind: Kind, owner: &Hash) -> Option<(Traffic, Drops)> {
        let owner = self.owners(kind).find(owner)?;
        self.memory
            .traffic(lanes, (kind, owner.slot), owner.base.as_deref())
    }
}
