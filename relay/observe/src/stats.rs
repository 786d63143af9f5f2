//! Combines counters and states into the statistics that `mcr stats` shows.

mod addresses;
mod copies;
pub mod demand;
mod drop_reasons;
mod egress;
pub mod history;
mod latency;
pub mod metrics;
pub mod process;
pub mod sampler;
pub mod selection;
mod stream;
mod streams;
pub mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::query::StatsQuery;
use api::reply::{Condition, InputStats, OutputStats, RuleStats, State, Stats, Traffic};
use compile::OutputView;
use compile::host::{Host, Interface};
use compile::table::Path;
use dataplane::counters::{Counters, Drops, InputCounters, OutputCounters, RuleCounters};
use igmp::listeners::Listeners;
use rules::health::Silence;
use rules::reflect::MODE;
use rules::rule::{OutputSpec, Rule};

pub use drop_reasons::{PossibleDrops, Reasons};
pub use sampler::Sampler;
#[cfg(test)]
pub(crate) use {
    addresses::CONFLICT as ADDRESS_CONFLICT, egress::DROPS as EGRESS_DROPS, egress::NOBODY,
};

use self::selection::Selected;
use crate::alarms;
use crate::view::{self, RuleState, View};

/// The drop reason that is shown even before it occurs.
const ALWAYS_SHOWN: &str = "too_big";

/// The identity of a relay.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The instance's name.
    pub instance: String,
    /// The host's name.
    pub host: String,
    /// When it was started.
    pub started: std::time::Instant,
    /// The main file of the configuration.
    pub config: std::path::PathBuf,
    /// The fleet that it is a relay of.
    pub fleet: Option<String>,
}

/// The inputs of statistics. Statistics are made rule by rule as they are written: those of all rules at
/// once would take many times the memory of the counters.
#[derive(Clone, Copy, Debug)]
pub struct Readings<'a> {
    /// Which relay it is.
    pub identity: &'a Identity,
    /// The running rules.
    pub view: &'a View,
    /// The counters.
    pub counters: &'a Counters,
    /// The samples.
    pub sampler: &'a Sampler,
    /// The hosts that listen.
    pub listeners: &'a Listeners,
}

impl<'a> Readings<'a> {
    /// The statistics without the rules.
    pub fn without_rules(&self) -> Stats {
        Stats {
            instance: self.identity.instance.clone(),
            host: self.identity.host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fleet: self.identity.fleet.clone(),
            uptime_seconds: self.identity.started.elapsed().as_secs_f64(),
            rules: Vec::new(),
            workers: self.counters.workers.clone(),
            egress: self.sampler.egress.stats(&self.view.host),
            xdp: self.taken_at_xdp(),
            demand: demand::links(self.listeners),
            selection: None,
        }
    }

    fn taken_at_xdp(&self) -> BTreeMap<String, u64> {
        let interfaces = &self.view.host.interfaces;
        let taken = self.counters.taken_at_xdp.iter();
        taken
            .filter_map(|(index, packets)| Some((interfaces.get(index)?.name.clone(), *packets)))
            .collect()
    }

    /// The statistics of the rules, in their order.
    pub fn rules(self) -> impl Iterator<Item = RuleStats> + 'a {
        let rules = self.written();
        rules.map(move |(written, state)| self.of(written, state))
    }

    /// The statistics of the rules, each with its possible drop reasons.
    pub fn rules_and_drops(self) -> impl Iterator<Item = (RuleStats, PossibleDrops)> + 'a {
        let possible = drop_reasons::Reckoning::of(self.view);
        let rules = self.written();
        rules.map(move |(written, state)| {
            let possible = possible.of_rule(written, state);
            (self.of(written, state), possible)
        })
    }

    /// The statistics without the rules, and those of the rules that a query selects.
    pub fn selected(self, query: &StatsQuery) -> (Stats, impl Iterator<Item = RuleStats> + 'a) {
        let rules: Vec<_> = self.written().collect();
        let all = rules.iter().map(|(written, state)| {
            let counted = self.counters.rules.get(state.name());
            (self.of(written, state), counted.map_or(0, lost))
        });
        let selected = Selected::of(query, all);
        let stats = Stats {
            selection: Some(Box::new(selected.selection)),
            ..self.without_rules()
        };
        let indices = selected.indices.into_iter();
        let selected = indices.map(move |index| {
            let (written, state) = rules[index];
            self.of(written, state)
        });
        (stats, selected)
    }

    fn written(self) -> impl Iterator<Item = (&'a Rule, &'a Arc<RuleState>)> + 'a {
        let Self { view, .. } = self;
        view.rules.iter().zip(view.states.values())
    }

    fn of(self, written: &Rule, state: &RuleState) -> RuleStats {
        let none = RuleCounters::default();
        let counted = self.counters.rules.get(state.name()).unwrap_or(&none);
        let mut stats = rule((written, state), counted, &self.view.host, self.sampler);
        demand::count_members(written, state, self.listeners, &mut stats.outputs);
        for ((spec, view), output) in written
            .outputs
            .iter()
            .zip(&state.rule.outputs)
            .zip(&mut stats.outputs)
        {
            output.unheard = self.unheard(spec, view);
        }
        let is_idle = stats.is_idle();
        let is_expected = state.rule.enabled && written.reflect.is_none() && !is_idle;
        if !is_expected {
            (stats.silent_seconds, stats.waiting_seconds) = (None, None);
        }
        let is_watched = match &written.health {
            Some(health) => health.silence != Silence::Off,
            None => !self.sampler.ignores_silence(),
        };
        stats.may_be_silent = (!is_expected || !is_watched).then_some(true);
        for input in &mut stats.inputs {
            let is_waiting = input.received.packets == 0 && input.active != Some(false);
            input.condition = Some(if !state.rule.enabled {
                Condition::Disabled
            } else if !input.joined && !is_idle {
                Condition::Down
            } else if is_expected && is_waiting {
                Condition::Waiting
            } else {
                Condition::Up
            });
        }
        stats.condition = Some(stats.condition());
        stats
    }

    /// Why copies of an output reach nobody, if that is known.
    fn unheard(self, spec: &OutputSpec, view: &OutputView) -> Option<String> {
        let (to, link) = (&spec.to, view.link.filter(|_| view.down.is_none())?);
        match view.wanted {
            Some(0) if spec.demand.is_some() => Some(format!(
                "nobody on {} listens to it; have the receiver join it there",
                to.interface.as_deref()?
            )),
            None if to.is_multicast() => {
                let why = self.sampler.egress.unheard(link, to.destination.address);
                why.map(ToOwned::to_owned)
            }
            _ => None,
        }
    }
}

/// Writes final statistics into the log.
pub fn log(readings: Readings<'_>) {
    for rule in readings.rules() {
        let dropped: u64 = rule.dropped.values().sum();
        tracing::info!(
            rule = rule.name,
            received = rule.received.packets,
            dropped,
            "final"
        );
        for output in &rule.outputs {
            let dropped: u64 = output.dropped.values().sum();
            tracing::info!(
                rule = rule.name,
                output = output.to,
                sent = output.sent.packets,
                dropped,
                "final"
            );
        }
    }
    for worker in &readings.counters.workers {
        tracing::info!(
            worker = worker.id,
            received = worker.received,
            matched = worker.matched,
            forwarded = worker.forwarded,
            buffer_exhausted = worker.buffer_exhausted,
            restarts = worker.restarts,
            "final"
        );
    }
}

/// Makes the statistics of one rule.
fn rule(
    (written, state): (&Rule, &RuleState),
    counted: &RuleCounters,
    host: &Host,
    sampler: &Sampler,
) -> RuleStats {
    let inspected = counted.health.as_deref().copied().unwrap_or_default();
    let sample = sampler.of(state.name(), &inspected);
    let placement = &state.rule.placement;
    let none = OutputCounters::default();
    let enabled = state.rule.enabled;
    let outputs = state.rule.outputs.iter().zip(0..).map(|(view, index)| {
        let sum = view.copies.as_ref().map(|_| copies::sum(counted, index));
        let single = counted.outputs.get(&index).map(|counted| &**counted);
        let of_output = sum.as_ref().or(single).unwrap_or(&none);
        let starved = starved(&sample, state, Some(index), host);
        let link = view.link.and_then(|link| host.interfaces.get(&link));
        let trouble = starved.or_else(|| sampler.egress.refusal(link?));
        let tunnel = link.and_then(|link| host.tunnels.get(&link.name));
        OutputStats {
            tunnel: tunnel.map(|on_host| on_host.tunnel.remote.to_string()),
            addresses: copies::addresses(view, enabled, counted),
            ..output(view, enabled, trouble, of_output, link)
        }
    });
    let outputs: Vec<OutputStats> = outputs.collect();
    let own = starved(&sample, state, None, host);
    let (worst, reason) = judge(state, own, &outputs, &sample);
    let failover = counted.failover.as_ref();
    RuleStats {
        name: state.name().to_owned(),
        labels: written.labels.clone(),
        share: written.share.clone(),
        mode: written.reflect.as_ref().map(|_| MODE.to_owned()),
        condition: None,
        acknowledged: None,
        state: worst,
        state_reason: reason,
        path: path_name(placement.path).to_owned(),
        path_reason: placement.reason.to_string(),
        inputs: inputs(state, counted, &sample.leg_troubles),
        active: failover.map(|failover| failover.active.clone()),
        active_seconds: failover.map(|failover| seconds_since(failover.since_ns)),
        switches: failover.map(|failover| failover.changes),
        merge: counted.merge.as_deref().map(|merge| merge.together),
        received: counted.received,
        answers: written.reflect.as_ref().map(|_| counted.received.answers),
        dropped: dropped(&counted.dropped),
        outputs,
        rates: sample.rates,
        silent_seconds: silent_seconds(counted.received, &sample),
        may_be_silent: None,
        // A rule that was added just now is not in the readings yet.
        waiting_seconds: (counted.received.packets == 0)
            .then(|| sample.added_ns.map_or(0.0, seconds_since)),
        health: sample.health.filter(|_| enabled),
        residence: latency::stats(&counted.latency),
    }
}

/// Seconds since the last packet of a stream that has stopped. A watched stream is judged as its rule
/// says.
fn silent_seconds(received: Traffic, sample: &sampler::Sample) -> Option<f64> {
    match &sample.health {
        Some(health) => health
            .silent_seconds
            .filter(|_| health.state == State::Down),
        None => {
            let now_ns = sys::clock::monotonic_ns();
            let silence = alarms::silence(now_ns, received.last_ns, sample.longest_ns?);
            last_packet_seconds(received).filter(|_| silence.is_some())
        }
    }
}

/// A rule that drops everything, itself or at an output, is degraded, and so is one with a leg in trouble,
/// on which redundancy cannot rely, unless it is in a worse state. Merged legs are down if none delivers.
fn judge(
    state: &RuleState,
    own: Option<String>,
    outputs: &[OutputStats],
    sample: &sampler::Sample,
) -> (State, Option<String>) {
    if sample.none_delivers && matches!(state.state, State::Up | State::Degraded) {
        return (State::Down, Some("all inputs are silent".to_owned()));
    }
    let mut outputs = outputs.iter();
    let output = outputs.find(|output| output.state == State::Degraded);
    let degraded = output.map(|output| {
        let reason = output.reason.as_deref().unwrap_or_default();
        format!("output {}: {reason}", output.to)
    });
    let leg = sample.leg_troubles.first();
    let trouble = leg.map(|(leg, what)| format!("input {leg} {what}"));
    match own.or(degraded).or(trouble) {
        Some(reason) if state.state == State::Up => (State::Degraded, Some(reason)),
        _ => (state.state, state.reason.as_deref().map(str::to_owned)),
    }
}

/// The path's name in JSON and metrics.
pub const fn path_name(path: Path) -> &'static str {
    match path {
        Path::Kernel => "kernel",
        Path::Userspace => "userspace",
    }
}

/// `troubles`: what is wrong with which legs.
fn inputs(
    state: &RuleState,
    counted: &RuleCounters,
    troubles: &[(String, String)],
) -> Vec<InputStats> {
    let inputs = state.inputs();
    let is_only = inputs.len() == 1;
    let of = |at: &str| {
        if is_only {
            InputCounters {
                received: counted.received,
                ..InputCounters::default()
            }
        } else {
            counted.inputs.get(at).cloned().unwrap_or_default()
        }
    };
    let failover = counted.failover.as_ref();
    let lines = counted.merge.as_ref().map(|merge| &merge.lines);
    let trouble = |at: &str| {
        let (_, what) = troubles.iter().find(|(leg, _)| leg == at)?;
        Some(what.clone())
    };
    let views = &state.rule.inputs;
    let stats = inputs.zip(views).map(|((at, state), view)| {
        let counted = of(at);
        let hook = state.hook.as_ref();
        let at_tc = hook.and_then(|(_, at_tc)| at_tc.as_ref());
        InputStats {
            at: at.to_owned(),
            joined: state.joined,
            condition: None,
            reason: state.reason.as_deref().map(str::to_owned),
            received: counted.received,
            dropped: dropped(&counted.dropped),
            active: failover.map(|failover| failover.active == at),
            line: lines.and_then(|lines| lines.get(at)).copied(),
            trouble: trouble(at),
            last_packet_seconds: last_packet_seconds(counted.received),
            merging: state.merging.as_deref().map(str::to_owned),
            hook: hook.map(|(hook, _)| hook.as_str().to_owned()),
            hook_reason: at_tc.map(|at_tc| at_tc.why.to_string()),
            xdp_asked: at_tc.map(|at_tc| at_tc.is_asked),
            shared_with: view::passed_to(view),
        }
    });
    stats.collect()
}

/// Why an output or the rule itself drops everything, if it does.
fn starved(
    sample: &sampler::Sample,
    state: &RuleState,
    output: Option<u64>,
    host: &Host,
) -> Option<String> {
    let mut starved = sample.starved.iter();
    let (_, reason) = starved.find(|(which, _)| *which == output)?;
    Some(alarms::starved_because(*reason, state, output, host))
}

/// `starved`: why it drops everything, if it does.
fn output(
    view: &OutputView,
    enabled: bool,
    starved: Option<String>,
    counted: &OutputCounters,
    link: Option<&Interface>,
) -> OutputStats {
    let mut dropped = dropped(&counted.dropped);
    dropped.entry(ALWAYS_SHOWN.to_owned()).or_default();
    let (state, reason) = match (&view.down, starved) {
        (down, _) if !enabled => (State::Disabled, down.as_ref().map(|down| down.text.clone())),
        (Some(down), _) => (State::Down, Some(down.text.clone())),
        (None, Some(why)) => (State::Degraded, Some(why)),
        (None, None) => match copies::copy_down(view).or_else(|| view.unanswered.clone()) {
            Some(why) => (State::Degraded, Some(why)),
            None => (State::Up, None),
        },
    };
    let leaving = view.leaving.as_deref();
    OutputStats {
        source: leaving.and_then(|how| Some(how.source?.to_string())),
        next_hop: leaving.and_then(|how| Some(how.next_hop?.to_string())),
        next_hop_mac: leaving.and_then(|how| Some(how.mac?.to_string())),
        mtu: leaving.and_then(|how| how.mtu),
        to: view.to.clone(),
        state,
        reason,
        address: view.address.map(|address| address.to_string()),
        name_error: view.name_error.clone(),
        interface: link.map(|link| link.name.clone()),
        tunnel: None,
        by_socket: view.routed.clone(),
        wanted: view.wanted.filter(|_| view.copies.is_none()).map(u64::from),
        members: None,
        unheard: None,
        sent: counted.sent,
        last_packet_seconds: last_packet_seconds(counted.sent),
        dropped,
        addresses: None,
        left_out: view
            .copies
            .as_ref()
            .map(|copies| copies.left_out as u64)
            .filter(|left_out| *left_out > 0),
    }
}

/// To a thousandth; a timer tick is longer.
fn last_packet_seconds(counted: Traffic) -> Option<f64> {
    (counted.last_ns > 0).then(|| seconds_since(counted.last_ns))
}

/// To a thousandth.
fn seconds_since(ns: u64) -> f64 {
    let ago_ns = sys::clock::monotonic_ns().saturating_sub(ns);
    (ago_ns / 1_000_000) as f64 / 1e3
}

/// Packets that a rule and its outputs lost.
fn lost(counted: &RuleCounters) -> u64 {
    let outputs = counted.outputs.values().map(|output| &output.dropped);
    alarms::lost([&counted.dropped].into_iter().chain(outputs))
}

fn dropped(drops: &Drops) -> BTreeMap<String, u64> {
    drops
        .occurred()
        .map(|(reason, count)| (reason.as_str().to_owned(), count))
        .collect()
}
