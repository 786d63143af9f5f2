//! What a path counted, added up by rule, input and output under the names that it counts for.

use std::collections::BTreeMap;
use std::sync::Arc;

use packet::latency::Latency;

use super::{Control, Memory};
use crate::counters::{
    Arrived, Counters, Drops, FailoverCounters, LinesSeen, MergeCounters, MergeSeen, Traffic,
};
use crate::failover::when;
use crate::owners::known::{KnownRule, Progress};
use crate::owners::name::{Hash, Kind};

impl<M: Memory> Control<M> {
    /// Adds what the next rules counted.
    pub(crate) fn read(&self, lanes: &M::Lanes, progress: &mut Progress, counters: &mut Counters) {
        self.known.read(progress, |name, known| {
            self.read_rule(lanes, (name, known), counters);
        });
    }

    fn read_rule(
        &self,
        lanes: &M::Lanes,
        (name, known): (&Arc<str>, &KnownRule),
        counters: &mut Counters,
    ) {
        let Some(owner) = self.owners(Kind::Rule).find(&known.hash) else {
            return;
        };
        let Some((received, dropped)) = self.counted(lanes, Kind::Rule, &known.hash) else {
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
        let failover = self.failover(slot, known).map(Box::new);
        rule.failover = failover.or(rule.failover.take());
        let merge = self.merge(slot, known).map(Box::new);
        rule.merge = merge.or(rule.merge.take());
        for (at, hash) in &known.inputs {
            if let Some((received, dropped)) = self.counted(lanes, Kind::Input, hash) {
                let input = rule.inputs.entry(at.clone()).or_default();
                input.received.add(received);
                input.dropped.add(&dropped);
            }
        }
        for (index, hash) in &known.outputs {
            if let Some((sent, dropped)) = self.counted(lanes, Kind::Output, hash) {
                let output = rule.outputs.entry(*index).or_default();
                output.sent.add(sent);
                output.dropped.add(&dropped);
            }
        }
    }

    /// Adds what these rules received, and what they dropped where they dropped anything.
    pub(crate) fn read_arrived(&self, lanes: &M::Lanes, rules: &[Arc<str>], arrived: &mut Arrived) {
        let known = rules.iter();
        let known = known.filter_map(|name| Some((name, self.known.get(name)?)));
        for (name, known) in known {
            let owner = self.owners(Kind::Rule).find(&known.hash);
            let counted = self.counted(lanes, Kind::Rule, &known.hash);
            let (Some(owner), Some((received, dropped))) = (owner, counted) else {
                continue;
            };
            let (slot, base) = (owner.slot, owner.base.as_deref());
            let total = arrived.entry(Arc::clone(name)).or_default();
            let (health, _) = self.memory.of_rule(lanes, slot, base);
            total.add(received, &health);
            total.add_dropped(&dropped);
            let lines = self.lines_seen(lanes, slot, known).map(Box::new);
            total.lines = lines.or(total.lines.take());
            let merge = self.merge_seen(lanes, slot, known).map(Box::new);
            total.merge = merge.or(total.merge.take());
            for (index, hash) in &known.outputs {
                if let Some((sent, dropped)) = self.counted(lanes, Kind::Output, hash) {
                    total.add_output(*index, sent, &dropped);
                }
            }
        }
    }

    /// The rules of these names that count, each with its slot and whoever counts for it.
    pub(crate) fn counting<'a>(
        &'a self,
        names: &'a [Arc<str>],
    ) -> impl Iterator<Item = (u32, &'a KnownRule)> {
        let known = names.iter().filter_map(|name| self.known.get(name));
        known.filter_map(|known| Some((self.slot(Kind::Rule, &known.hash)?, known)))
    }

    /// Which leg of a rule is active.
    fn failover(&self, rule: u32, known: &KnownRule) -> Option<FailoverCounters> {
        let active = self.failovers.active(rule)?;
        let mut inputs = self.inputs(known);
        let (at, _) = inputs.find(|(_, line)| *line == active.line)?;
        Some(FailoverCounters {
            active: at.clone(),
            since_ns: active.since_ns,
            changes: active.changes,
        })
    }

    /// What the legs of a rule brought that are merged.
    fn merge(&self, rule: u32, known: &KnownRule) -> Option<MergeCounters> {
        self.merges.read(rule, self.inputs(known))
    }

    /// What came by each leg of a rule whose inputs stand by for each other. One whose interface is
    /// missing may have no slot yet.
    fn lines_seen(&self, lanes: &M::Lanes, rule: u32, known: &KnownRule) -> Option<LinesSeen> {
        let failover = self.failover(rule, known)?;
        let lines = when(self.failovers.of(rule)?).lines;
        let is_line = |hash: &Hash| {
            let slot = self.slot(Kind::Input, hash);
            slot.is_none_or(|slot| lines.contains(&slot))
        };
        let inputs = known.inputs.iter().filter(|(_, hash)| is_line(hash));
        let came = inputs.map(|(at, hash)| (at.clone(), self.came(lanes, hash)));
        Some(LinesSeen {
            active: failover.active,
            changes: failover.changes,
            came: came.collect(),
        })
    }

    fn merge_seen(&self, lanes: &M::Lanes, rule: u32, known: &KnownRule) -> Option<MergeSeen> {
        let counters = self.merge(rule, known)?;
        let inputs = known.inputs.iter();
        let lines = inputs.filter(|(at, _)| counters.lines.contains_key(*at));
        let last_ns = lines.map(|(at, hash)| (at.clone(), self.came(lanes, hash).last_ns));
        let last_ns: BTreeMap<String, u64> = last_ns.collect();
        Some(MergeSeen { counters, last_ns })
    }

    fn came(&self, lanes: &M::Lanes, input: &Hash) -> Traffic {
        let counted = self.counted(lanes, Kind::Input, input);
        counted.map_or_else(Traffic::default, |(came, _)| came)
    }

    fn inputs<'a>(&'a self, known: &'a KnownRule) -> impl Iterator<Item = (&'a String, u32)> {
        let inputs = known.inputs.iter();
        inputs.filter_map(|(at, hash)| Some((at, self.slot(Kind::Input, hash)?)))
    }

    /// What an owner has counted since it came.
    fn counted(&self, lanes: &M::Lanes, kind: Kind, owner: &Hash) -> Option<(Traffic, Drops)> {
        let owner = self.owners(kind).find(owner)?;
        self.memory
            .traffic(lanes, (kind, owner.slot), owner.base.as_deref())
    }
}
