//! When drops begin and end at a rule and at its outputs, and which of them drop everything. A rule or
//! output that never dropped anything has no state.
//!
//! Drops of an output that is down are not reported here: its being down is reported instead.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::reply::{Event, State};
use compile::OutputView;
use compile::host::{Host, Interface};
use compile::table::Output;
use dataplane::counters::{DropReason, Drops, Lost, OutputCounters, Traffic};
use rules::net::Ifindex;
use rules::printable::count;
use rules::rule::Rule;

use super::{Alarm, Alarms, Edge, Row, SECOND_NS, grown};
use crate::events::event;
use crate::events::kind::{
    DROPS_BEGAN, DROPS_ENDED, OUTPUT_DEGRADED, OUTPUT_UP, RULE_DEGRADED, RULE_UP,
};
use crate::view::RuleState;

/// A rule or output that drops everything for two seconds is degraded until it no longer does.
const STARVED: Alarm = Alarm {
    ends: 0,
    ..Alarm::above(2 * SECOND_NS - 1)
};

/// A reading of the drops of a rule or an output.
#[derive(Debug)]
pub(super) struct Reading {
    reason: DropReason,
    /// Packets dropped, or how long all were.
    level: u64,
    /// What the reason means here, and the remedy.
    why: String,
}

/// Some packets are dropped for a reason.
static SOME: Row<Reading> = Row {
    faults: &[
        "a loop beyond the host",
        "packets larger than the egress MTU",
        "a packet filter drops copies to sockets of the relay",
    ],
    metrics: &[
        "mcr_rule_dropped_packets_total",
        "mcr_output_dropped_packets_total",
    ],
    kind: DROPS_BEGAN,
    condition: |reading| (reading.level, Alarm::growth()),
    begins: |reading| {
        format!(
            "drops packets as {}, {} so far: {}",
            reading.reason,
            count(reading.level),
            reading.why
        )
    },
    remedy: "",
    ends: Some((DROPS_ENDED, |reading, standing| {
        format!(
            "drops no more packets as {}: {}",
            reading.reason,
            standing.total()
        )
    })),
    stands: None,
};

/// All packets are dropped.
static ALL: Row<Reading> = Row {
    faults: &["packets larger than the egress MTU"],
    metrics: &["mcr_output_degraded"],
    kind: OUTPUT_DEGRADED,
    condition: |reading| (reading.level, STARVED),
    begins: |reading| format!("is degraded: {}", everything(reading.reason, &reading.why)),
    remedy: "",
    ends: Some((OUTPUT_UP, |_, _| "no longer drops everything".to_owned())),
    stands: None,
};

#[cfg(test)]
pub(super) static ROWS: [&Row<Reading>; 2] = [&SOME, &ALL];

/// The drops of one rule.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    rule: Ledger,
    /// Packets that the rule had received.
    received: u64,
    /// By destination, and number among the outputs with the same destination: the key by which an
    /// output keeps its counters when the rule changes.
    outputs: BTreeMap<(String, usize), Ledger>,
}

/// The drops of the rule itself, or of one of its outputs.
#[derive(Debug, Default)]
struct Ledger {
    dropped: Drops,
    /// Packets sent; for the rule, packets passed.
    sent: u64,
    some: Alarms<DropReason>,
    /// Since when all that arrives is dropped.
    starved_since_ns: Option<u64>,
    /// At most one, by the reason for which it began.
    all: Alarms<DropReason>,
}

/// A change to report, of an output by its index or of the rule.
#[derive(Debug)]
pub(crate) struct DropChange {
    output: Option<u64>,
    row: &'static Row<Reading>,
    reading: Reading,
    edge: Edge,
    /// Whether neither the rule nor an output of it drops everything.
    none_starved: bool,
}

impl Losses {
    /// Records a reading; `adopted`: drops before it are not reported.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        (received, counted): (Traffic, &Lost),
        adopted: bool,
    ) -> Vec<DropChange> {
        let passed = self.passed(received.packets, &counted.dropped);
        if adopted {
            self.rule.adopt(&counted.dropped, passed);
        }
        // Another reflector may send back everything.
        let expected = Some(passed).filter(|_| rule.reflect.is_none());
        let mut changes = self.rule.sample(now_ns, &counted.dropped, expected);
        for (index, output) in summed(&counted.outputs).iter() {
            let ledger = self.outputs.entry(key(rule, *index)).or_default();
            // Of copies to the addresses of a name, only those that dropped something are listed.
            let is_whole = rule
                .outputs
                .get(*index as usize)
                .is_some_and(|spec| spec.all.is_none());
            let sent = Some(output.sent.packets).filter(|_| is_whole);
            if adopted {
                ledger.adopt(&output.dropped, output.sent.packets);
            }
            let of_output = ledger.sample(now_ns, &output.dropped, sent);
            changes.extend(of_output.into_iter().map(|change| DropChange {
                output: Some(*index),
                ..change
            }));
        }
        let none_starved = self.none_starved();
        for change in &mut changes {
            change.none_starved = none_starved;
        }
        changes
    }

    /// How much passed, or was dropped on purpose. Packets received and packets dropped are read one after
    /// the other: a difference within a hundredth of what was received counts as none.
    fn passed(&mut self, received: u64, dropped: &Drops) -> u64 {
        let grew = grown(received, std::mem::replace(&mut self.received, received));
        let unwanted = dropped.occurred().filter(|(reason, _)| reason.is_fault());
        let passed = received.saturating_sub(unwanted.map(|(_, packets)| packets).sum());
        if passed.abs_diff(self.rule.sent) > grew / 100 {
            passed
        } else {
            self.rule.sent
        }
    }

    /// Whether drops are still to be reported when no more packets arrive.
    pub(crate) fn has_pending(&self) -> bool {
        self.ledgers()
            .any(|ledger| ledger.some.any() || ledger.starved_since_ns.is_some())
    }

    /// What drops everything and why: the rule itself, and outputs by their index.
    pub(crate) fn starved(&self, rule: &Rule) -> Vec<(Option<u64>, DropReason)> {
        if self.none_starved() {
            return Vec::new();
        }
        let outputs = (0..rule.outputs.len() as u64).filter_map(|index| {
            let ledger = self.outputs.get(&key(rule, index))?;
            Some((Some(index), ledger.starved()?))
        });
        let own = self.rule.starved().map(|reason| (None, reason));
        own.into_iter().chain(outputs).collect()
    }

    fn none_starved(&self) -> bool {
        self.ledgers().all(|ledger| !ledger.all.any())
    }

    fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        [&self.rule].into_iter().chain(self.outputs.values())
    }
}

/// The counters by the rule's written outputs; copies to the addresses of a name are summed up.
fn summed(counted: &BTreeMap<u64, OutputCounters>) -> Cow<'_, BTreeMap<u64, OutputCounters>> {
    if counted.keys().all(|index| Output::number(*index) == *index) {
        return Cow::Borrowed(counted);
    }
    let mut summed: BTreeMap<u64, OutputCounters> = BTreeMap::new();
    for (index, output) in counted {
        let sum = summed.entry(Output::number(*index)).or_default();
        sum.sent.add(output.sent);
        sum.dropped.add(&output.dropped);
    }
    Cow::Owned(summed)
}

fn key(rule: &Rule, index: u64) -> (String, usize) {
    let index = index as usize;
    let to = |index: usize| rule.outputs.get(index).map(|output| &output.to);
    let before = (0..index).filter(|other| to(*other) == to(index)).count();
    (
        to(index).map(ToString::to_string).unwrap_or_default(),
        before,
    )
}

impl Ledger {
    fn adopt(&mut self, dropped: &Drops, sent: u64) {
        self.dropped.clone_from(dropped);
        self.sent = sent;
    }

    fn starved(&self) -> Option<DropReason> {
        self.all.standing().next().map(|(reason, _)| reason)
    }

    fn sample(&mut self, now_ns: u64, dropped: &Drops, sent: Option<u64>) -> Vec<DropChange> {
        let before = std::mem::replace(&mut self.dropped, dropped.clone());
        let packets = |reason| grown(dropped.0[reason as usize], before.0[reason as usize]);
        let reasons = DropReason::ALL.into_iter().filter(|one| one.is_fault());
        let has_dropped = reasons.clone().any(|reason| packets(reason) > 0);
        let levels = reasons.map(|one| (one, (SOME.condition)(&Reading::of(one, packets(one)))));
        let edges = self.some.sample(now_ns, levels).into_iter();
        let some = edges.map(|edge| DropChange::of(&SOME, edge, packets(edge.0)));
        let Some(sent) = sent else {
            return some.collect();
        };
        let has_sent = sent != std::mem::replace(&mut self.sent, sent);
        let all = self.judge(now_ns, has_sent, has_dropped).into_iter();
        some.chain(all.map(|edge| DropChange::of(&ALL, edge, 0)))
            .collect()
    }

    /// Judges whether all that arrives is dropped.
    fn judge(&mut self, now_ns: u64, has_sent: bool, has_dropped: bool) -> Vec<(DropReason, Edge)> {
        let standing = self.some.standing().filter(|_| !has_sent);
        let most = standing
            .max_by_key(|(_, standing)| standing.sum)
            .map(|(reason, _)| reason);
        match most {
            None => self.starved_since_ns = None,
            Some(_) if has_dropped => drop(self.starved_since_ns.get_or_insert(now_ns)),
            Some(_) => {}
        }
        let starved_ns = self
            .starved_since_ns
            .map_or(0, |since_ns| now_ns - since_ns);
        let level = self.starved().or(most).map(|reason| {
            let reading = Reading::of(reason, starved_ns);
            (reason, (ALL.condition)(&reading))
        });
        self.all.sample(now_ns, level)
    }
}

impl Reading {
    const fn of(reason: DropReason, level: u64) -> Self {
        let why = String::new();
        Self { reason, level, why }
    }
}

impl DropChange {
    /// A change of the rule; the output is set afterwards.
    const fn of(
        row: &'static Row<Reading>,
        (reason, edge): (DropReason, Edge),
        level: u64,
    ) -> Self {
        Self {
            output: None,
            row,
            reading: Reading::of(reason, level),
            edge,
            none_starved: true,
        }
    }

    /// Its events: of the output or the rule, and, if the rule is up otherwise, of its state.
    pub(crate) fn events(mut self, rule: &RuleState, host: &Host) -> Vec<Event> {
        let name = rule.name();
        self.reading.why = why(self.reading.reason, rule, self.output, host);
        let Some((kind, what)) = self.row.report(&self.reading, &self.edge) else {
            return Vec::new();
        };
        let output = self
            .output
            .and_then(|index| rule.rule.outputs.get(Output::number(index) as usize));
        let at = output.map_or_else(String::new, |output| format!(": output {}", output.to));
        let state = match kind {
            _ if rule.state != State::Up => None,
            OUTPUT_DEGRADED => Some((RULE_DEGRADED, what.clone())),
            OUTPUT_UP if self.none_starved => Some((RULE_UP, "is up".to_owned())),
            _ => None,
        };
        let of_rule = state.map(|(kind, what)| event(kind, name, format!("rule {name:?} {what}")));
        if self.output.is_none() && [OUTPUT_DEGRADED, OUTPUT_UP].contains(&kind) {
            return of_rule.into_iter().collect();
        }
        let reason = self.reading.reason;
        let part = match output.map(|output| &output.to) {
            None => reason.to_string(),
            Some(to) if [DROPS_BEGAN, DROPS_ENDED].contains(&kind) => format!("{to} {reason}"),
            Some(to) => to.clone(),
        };
        let of_end = Event {
            part: Some(part),
            ..event(kind, name, format!("rule {name:?}{at} {what}"))
        };
        [of_end].into_iter().chain(of_rule).collect()
    }
}

/// Why an output, or the rule itself, is degraded if it drops everything.
pub(crate) fn starved_because(
    reason: DropReason,
    rule: &RuleState,
    output: Option<u64>,
    host: &Host,
) -> String {
    everything(reason, &why(reason, rule, output, host))
}

fn everything(reason: DropReason, why: &str) -> String {
    format!("all packets are dropped as {reason}: {why}")
}

/// What a reason means here, and the remedy.
fn why(reason: DropReason, rule: &RuleState, output: Option<u64>, host: &Host) -> String {
    let leaving = output.and_then(|index| {
        let output = rule.rule.outputs.get(Output::number(index) as usize)?;
        let link = host.interfaces.get(output.link.as_ref()?)?;
        Some((output, link))
    });
    let name = leaving.map_or("IFACE", |(_, link)| link.name.as_str());
    let remedy = reason.remedy().replace("IFACE", name);
    let mtus = leaving.and_then(|leaving| mtus(rule, leaving, host));
    match mtus.filter(|_| reason == DropReason::TooBig) {
        Some(mtus) => format!("{mtus}: {remedy}"),
        None => remedy,
    }
}

/// Both MTUs: the output's, which its route may reduce, and that of the input with the largest.
fn mtus(
    rule: &RuleState,
    (output, egress): (&OutputView, &Interface),
    host: &Host,
) -> Option<String> {
    let leaving = output.leaving.as_ref();
    let mtu = leaving.and_then(|how| how.mtu).unwrap_or(egress.mtu);
    let of = if mtu < egress.mtu {
        "the route by "
    } else {
        ""
    };
    let less = if leaving.is_some_and(|how| how.by_socket) {
        ", less what encryption or encapsulation adds"
    } else {
        ""
    };
    let link = |index: &Ifindex| host.interfaces.get(index);
    let inputs = rule.rule.inputs.iter().flat_map(|input| &input.interfaces);
    let ingress = inputs.filter_map(link).max_by_key(|link| link.mtu)?;
    Some(format!(
        "larger than the MTU of {of}{}, which is {mtu}{less}; that of {} is {}",
        egress.name, ingress.name, ingress.mtu
    ))
}

/// Packets lost of those dropped: excludes standby packets, duplicates and what nobody wants.
pub(crate) fn lost<'a>(drops: impl Iterator<Item = &'a Drops>) -> u64 {
    let occurred = drops.flat_map(Drops::occurred);
    let lost = occurred.filter(|(reason, _)| !reason.is_intended());
    lost.fold(0, |sum, (_, count)| sum.saturating_add(count))
}
