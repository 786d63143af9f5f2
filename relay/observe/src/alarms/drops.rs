//! When drops begin and end at a rule and at its outputs, and which of them drop everything. Nothing is
//! remembered of what never dropped.
//!
//! Drops of an output that is down are not reported here: that it is down is.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::reply::{Event, State};
use compile::host::{Host, Interface};
use compile::table::Output;
use dataplane::counters::{DropReason, Drops, Lost, OutputCounters, Traffic};
use rules::net::Ifindex;
use rules::printable::count;
use rules::rule::Rule;

use super::{Alarm, Alarms, Row, SECOND_NS, Turn, grown};
use crate::events::event;
use crate::events::kind::{
    DROPS_BEGAN, DROPS_ENDED, OUTPUT_DEGRADED, OUTPUT_UP, RULE_DEGRADED, RULE_UP,
};
use crate::view::RuleState;

/// What drops everything for two seconds is degraded, until it does not.
const STARVED: Alarm = Alarm {
    ends: 0,
    ..Alarm::above(2 * SECOND_NS - 1)
};

/// What is read of drops, of a rule or of an output.
#[derive(Debug)]
pub(super) struct Reading {
    reason: DropReason,
    /// Packets dropped, or for how long all were.
    level: u64,
    /// What the reason means here, and what to do.
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
    condition: |read| (read.level, Alarm::growth()),
    begins: |read| {
        format!(
            "drops packets as {}, {} so far: {}",
            read.reason,
            count(read.level),
            read.why
        )
    },
    remedy: "",
    ends: Some((DROPS_ENDED, |read, standing| {
        format!(
            "drops no more packets as {}: {}",
            read.reason,
            standing.total()
        )
    })),
    stands: None,
};

/// All are.
static ALL: Row<Reading> = Row {
    faults: &["packets larger than the egress MTU"],
    metrics: &["mcr_output_degraded"],
    kind: OUTPUT_DEGRADED,
    condition: |read| (read.level, STARVED),
    begins: |read| format!("is degraded: {}", everything(read.reason, &read.why)),
    remedy: "",
    ends: Some((OUTPUT_UP, |_, _| "no longer drops everything".to_owned())),
    stands: None,
};

/// Both.
#[cfg(test)]
pub(super) static ROWS: [&Row<Reading>; 2] = [&SOME, &ALL];

/// What is known of the drops of one rule.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    rule: Ledger,
    /// What the rule had received.
    came: u64,
    /// By where an output sends, and which of those that send there it is: what its counters follow
    /// when the rule changes.
    outputs: BTreeMap<(String, usize), Ledger>,
}

/// Of the rule itself, or of one of its outputs.
#[derive(Debug, Default)]
struct Ledger {
    dropped: Drops,
    /// Packets sent; of the rule, passed.
    sent: u64,
    some: Alarms<DropReason>,
    /// Since when all that came was dropped.
    starved_since_ns: Option<u64>,
    /// One at most, by why it began.
    all: Alarms<DropReason>,
}

/// Something to tell, of an output by its index or of the rule.
#[derive(Debug)]
pub(crate) struct DropChange {
    output: Option<u64>,
    row: &'static Row<Reading>,
    read: Reading,
    turn: Turn,
    /// Whether neither the rule nor an output of it drops everything.
    none_starved: bool,
}

impl Losses {
    /// Takes in a reading; `adopted`: what was dropped before it is not reported.
    pub(crate) fn sample(
        &mut self,
        now_ns: u64,
        rule: &Rule,
        (came, counted): (Traffic, &Lost),
        adopted: bool,
    ) -> Vec<DropChange> {
        let passed = self.passed(came.packets, &counted.dropped);
        if adopted {
            self.rule.adopt(&counted.dropped, passed);
        }
        // Another reflector may send back all that there is.
        let passed = Some(passed).filter(|_| rule.reflect.is_none());
        let mut news = self.rule.sample(now_ns, &counted.dropped, passed);
        for (index, output) in summed(&counted.outputs).iter() {
            let ledger = self.outputs.entry(key(rule, *index)).or_default();
            // Of copies to the addresses of a name those alone are told of that dropped something.
            let is_whole = rule
                .outputs
                .get(*index as usize)
                .is_some_and(|spec| spec.all.is_none());
            let sent = Some(output.sent.packets).filter(|_| is_whole);
            if adopted {
                ledger.adopt(&output.dropped, output.sent.packets);
            }
            let of_output = ledger.sample(now_ns, &output.dropped, sent);
            news.extend(of_output.into_iter().map(|one| DropChange {
                output: Some(*index),
                ..one
            }));
        }
        let none_starved = self.none_starved();
        news.iter_mut()
            .for_each(|one| one.none_starved = none_starved);
        news
    }

    /// How much passed, or was dropped as is meant. What came and what was dropped are read one after the
    /// other: within a hundredth of what came, it is what it was.
    fn passed(&mut self, came: u64, dropped: &Drops) -> u64 {
        let grew = grown(came, std::mem::replace(&mut self.came, came));
        let dropped = dropped.occurred().filter(|(reason, _)| is_news(*reason));
        let dropped = dropped.map(|(_, packets)| packets);
        let passed = came.saturating_sub(dropped.sum());
        if passed.abs_diff(self.rule.sent) > grew / 100 {
            passed
        } else {
            self.rule.sent
        }
    }

    /// Whether drops are still to be reported when no packet comes any more.
    pub(crate) fn go_on(&self) -> bool {
        self.ledgers()
            .any(|ledger| ledger.some.any() || ledger.starved_since_ns.is_some())
    }

    /// What drops everything, and why: the rule itself, and outputs by their index.
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

/// By the outputs that the rule writes; copies to the addresses of a name are summed up.
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
        let reasons = DropReason::ALL.into_iter().filter(|one| is_news(*one));
        let has_dropped = reasons.clone().any(|reason| packets(reason) > 0);
        let read = reasons.map(|reason| Reading::of(reason, packets(reason)));
        let levels = read.map(|read| (read.reason, (SOME.condition)(&read)));
        let some = self.some.sample(now_ns, levels).into_iter();
        let some = some.map(|turn| DropChange::of(&SOME, turn, packets(turn.0)));
        let Some(sent) = sent else {
            return some.collect();
        };
        let has_sent = sent != std::mem::replace(&mut self.sent, sent);
        let all = self.judge(now_ns, has_sent, has_dropped).into_iter();
        some.chain(all.map(|turn| DropChange::of(&ALL, turn, 0)))
            .collect()
    }

    /// Whether all that comes is dropped.
    fn judge(&mut self, now_ns: u64, has_sent: bool, has_dropped: bool) -> Vec<(DropReason, Turn)> {
        let most = self
            .some
            .standing()
            .max_by_key(|(_, standing)| standing.sum);
        let most = most.map(|(reason, _)| reason).filter(|_| !has_sent);
        match most {
            None => self.starved_since_ns = None,
            Some(_) if has_dropped => drop(self.starved_since_ns.get_or_insert(now_ns)),
            Some(_) => {}
        }
        let starved_ns = self
            .starved_since_ns
            .map_or(0, |since_ns| now_ns - since_ns);
        let level = self.starved().or(most).map(|reason| {
            let read = Reading::of(reason, starved_ns);
            (reason, (ALL.condition)(&read))
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
    /// Of the rule, until its output is known.
    const fn of(
        row: &'static Row<Reading>,
        (reason, turn): (DropReason, Turn),
        level: u64,
    ) -> Self {
        Self {
            output: None,
            row,
            read: Reading::of(reason, level),
            turn,
            none_starved: true,
        }
    }

    /// The events that it comes to: of the output or the rule, and, where the rule is up but for that,
    /// of its state.
    pub(crate) fn events(mut self, rule: &RuleState, host: &Host) -> Vec<Event> {
        let name = rule.name();
        self.read.why = why(self.read.reason, rule, self.output, host);
        let Some((kind, what)) = self.row.told(&self.read, &self.turn) else {
            return Vec::new();
        };
        let output = self
            .output
            .and_then(|index| rule.rule.outputs.get(Output::number(index) as usize));
        let at = output.map_or_else(String::new, |output| format!(": output {}", output.to));
        let of_rule = match kind {
            OUTPUT_DEGRADED => Some((RULE_DEGRADED, what.clone())),
            OUTPUT_UP if self.none_starved => Some((RULE_UP, "is up".to_owned())),
            _ => None,
        };
        let of_rule = of_rule.filter(|_| rule.state == State::Up);
        let of_rule =
            of_rule.map(|(kind, what)| event(kind, name, format!("rule {name:?} {what}")));
        if self.output.is_none() && [OUTPUT_DEGRADED, OUTPUT_UP].contains(&kind) {
            return of_rule.into_iter().collect();
        }
        let reason = self.read.reason;
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

/// Why an output, or the rule itself, is degraded that drops everything.
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

/// What a reason means here, and what to do.
fn why(reason: DropReason, rule: &RuleState, output: Option<u64>, host: &Host) -> String {
    let link = output.and_then(|output| {
        let output = rule.rule.outputs.get(Output::number(output) as usize)?;
        host.interfaces.get(output.link.as_ref()?)
    });
    let name = link.map_or("IFACE", |link| link.name.as_str());
    let remedy = reason.remedy().replace("IFACE", name);
    let mtus = link.and_then(|link| mtus(rule, link, host));
    match mtus.filter(|_| reason == DropReason::TooBig) {
        Some(mtus) => format!("{mtus}: {remedy}"),
        None => remedy,
    }
}

/// Both MTUs: the output's and that of the input with the largest.
fn mtus(rule: &RuleState, egress: &Interface, host: &Host) -> Option<String> {
    let link = |index: &Ifindex| host.interfaces.get(index);
    let inputs = rule.rule.inputs.iter().flat_map(|input| &input.interfaces);
    let ingress = inputs.filter_map(link).max_by_key(|link| link.mtu)?;
    Some(format!(
        "larger than the MTU of {}, which is {}; that of {} is {}",
        egress.name, egress.mtu, ingress.name, ingress.mtu
    ))
}

/// Packets lost of those dropped: not what stands by, came twice or is wanted by nobody.
pub(crate) fn lost<'a>(drops: impl Iterator<Item = &'a Drops>) -> u64 {
    let drops = drops.flat_map(Drops::occurred);
    let lost = drops.filter(|(reason, _)| !reason.is_meant());
    lost.fold(0, |sum, (_, count)| sum.saturating_add(count))
}

/// That an output is down is reported by itself.
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
