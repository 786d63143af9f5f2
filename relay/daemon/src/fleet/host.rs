//! What a daemon provides to a fleet: its rules' table, its gates, its counters and its events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::reply::{FleetCounters, Via};
use dataplane::counters::{Counters, DropReason, RuleCounters};
use fleet::host::{BoxFuture, Event, Fitness, Host};
use observe::events::kind::*;
use observe::events::{self, Events};
use observe::silence;
use observe::stats::Sampler;
use observe::stats::sampler::INTERVAL;
use observe::view::{RuleState, View};
use parking_lot::Mutex;
use rules::document::RuleDocument;
use rules::printable::things;
use tokio::sync::{mpsc, oneshot, watch};

use crate::author::Author;
use crate::dataplane_thread::DataplaneThread;
use crate::supervisor::command::{Command, FleetRules, Order};

/// After a long pause, how long a stream counts as slow, the multiple of the pause after which it is silent,
/// and the most in multiples of the usual time.
const SLOW_FOR_NS: u64 = 60_000_000_000;
const SLOW: u64 = 2;
const SLOWEST: u64 = 8;
/// The most that one reading adds to a pause: while the daemon does not read, because it was stopped or the
/// machine is busy, nobody knows whether the stream pauses.
const READING_NS: u64 = INTERVAL.as_nanos() as u64;

/// The daemon as the host of a fleet's relay.
pub(crate) struct DaemonHost {
    /// The fleet's name.
    name: String,
    commands: mpsc::Sender<Command>,
    dataplane: DataplaneThread,
    view: watch::Receiver<Arc<View>>,
    events: Events,
    sampler: Sampler,
    /// A received stream is silent after this time without a packet; a stream never received is not
    /// judged before.
    silence_ns: u64,
    /// The reception of each of the fleet's rules.
    receivers: Mutex<BTreeMap<String, Receiver>>,
}

/// The reception of a rule, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug)]
struct Receiver {
    since_ns: u64,
    /// The last reading, the last packet by it, and how long none had arrived before it while readings came
    /// regularly.
    read_ns: u64,
    last_ns: u64,
    silent_ns: u64,
    /// How long a pause may last.
    longest_ns: u64,
    slow_until_ns: u64,
}

/// Whether a rule receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reception {
    /// It was just installed, and nothing has arrived yet.
    Pending,
    Never,
    Stopped,
    /// It was silent for no longer than it paused before.
    Pausing,
    Active,
}

impl Receiver {
    fn new(since_ns: u64) -> Self {
        Self {
            since_ns,
            read_ns: since_ns,
            last_ns: 0,
            silent_ns: 0,
            longest_ns: 0,
            slow_until_ns: 0,
        }
    }

    /// Updates it with a reading: its time, and the time of the last packet.
    fn update(&mut self, (read_ns, last_ns): (u64, u64), silence_ns: u64) -> Reception {
        if last_ns > self.slow_until_ns {
            self.longest_ns = silence_ns;
        }
        let between_ns = read_ns.saturating_sub(self.read_ns).min(READING_NS);
        if last_ns > self.last_ns {
            // While it was not installed, packets were not recorded.
            if self.last_ns > self.since_ns && self.silent_ns > silence_ns {
                let pause_ns = (self.silent_ns * SLOW).min(silence_ns * SLOWEST);
                self.longest_ns = self.longest_ns.max(pause_ns);
                self.slow_until_ns = last_ns + SLOW_FOR_NS;
            }
            self.silent_ns = read_ns.saturating_sub(last_ns).min(between_ns);
        } else {
            self.silent_ns += between_ns;
        }
        (self.read_ns, self.last_ns) = (read_ns, last_ns);
        // A packet before a reinstallation does not count as received.
        let is_old = last_ns <= self.since_ns;
        if is_old && read_ns < self.since_ns + 2 * silence_ns {
            return Reception::Pending;
        }
        match last_ns {
            0 => Reception::Never,
            _ if silence(read_ns, last_ns, self.longest_ns).is_some() => Reception::Stopped,
            _ if silence(read_ns, last_ns, silence_ns).is_some() => Reception::Pausing,
            _ => Reception::Active,
        }
    }
}

impl DaemonHost {
    pub(crate) fn new(
        commands: mpsc::Sender<Command>,
        dataplane: DataplaneThread,
        view: watch::Receiver<Arc<View>>,
        events: Events,
        sampler: Sampler,
        (name, input_silence): (String, Duration),
    ) -> Self {
        Self {
            name,
            commands,
            dataplane,
            view,
            events,
            sampler,
            // The fleet waits for the other half.
            silence_ns: input_silence.as_nanos() as u64 / 2,
            receivers: Mutex::default(),
        }
    }

    async fn install_rules(
        &self,
        rules: Vec<RuleDocument>,
        by: Option<String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let ending = || "the daemon is ending".to_owned();
        let (refused, refusals) = oneshot::channel();
        let order = Order::Fleet(FleetRules { rules, refused });
        let mut author = Author::of(Via::Fleet, Some(self.name.clone()));
        author.by.user = by.filter(|by| !by.is_empty());
        let (command, _, reply) = Command::new(order, author);
        let sent = self.commands.send(command).await;
        sent.map_err(|_| ending())?;
        reply
            .await
            .map_err(|_| ending())?
            .map_err(|refusal| refusal.message)?;
        refusals.await.map_err(|_| ending())
    }

    /// Whether a rule receives packets.
    fn reception(&self, rule: &str) -> Reception {
        let reading = self.sampler.last_packet(rule);
        let mut receivers = self.receivers.lock();
        let receiver = receivers
            .entry(rule.to_owned())
            .or_insert(Receiver::new(reading.0));
        receiver.update(reading, self.silence_ns)
    }

    /// Removes the reception of rules that do not run: one that returns is new.
    fn forget_others(&self, view: &View) {
        let mut receivers = self.receivers.lock();
        receivers.retain(|rule, _| view.rules.get(rule).is_some());
    }
}

impl Host for DaemonHost {
    fn install(
        &self,
        rules: Vec<RuleDocument>,
        by: Option<String>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>> {
        Box::pin(self.install_rules(rules, by))
    }

    fn set_gate(&self, share: &str, until_ns: u64) {
        self.dataplane.gates().set(share, until_ns);
    }

    fn fitness(&self) -> Fitness {
        let view = self.view.borrow().clone();
        self.forget_others(&view);
        let mut fitness = Fitness::default();
        let mut unjudged = BTreeSet::new();
        for (rule, state) in view.rules.iter().zip(view.states.values()) {
            let Some(share) = rule.share.as_ref().filter(|_| rule.enabled) else {
                continue;
            };
            if let Some(why) = down(&rule.name, state) {
                fitness.down.entry(share.clone()).or_insert(why);
            }
            let received = fitness.heard.entry(share.clone()).or_default();
            let reception = self.reception(&rule.name);
            match reception {
                Reception::Active | Reception::Pausing => *received += 1,
                Reception::Pending => drop(unjudged.insert(share)),
                Reception::Never => {}
                Reception::Stopped => {
                    let why = format!("rule {:?}: nothing comes any more", rule.name);
                    fitness.silent.entry(share.clone()).or_insert(why);
                }
            }
            if reception == Reception::Pausing {
                *fitness.pausing.entry(share.clone()).or_default() += 1;
            }
        }
        fitness.heard.retain(|share, _| !unjudged.contains(share));
        fitness
    }

    fn counters(&self) -> BoxFuture<'_, BTreeMap<String, FleetCounters>> {
        Box::pin(async {
            let counters = self.dataplane.counters().await.unwrap_or_default();
            let view = self.view.borrow().clone();
            by_share(&view, &counters, &self.sampler)
        })
    }

    fn alive(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.dataplane.answer().await.is_err() {
                // It has ended for good: this must never resolve.
                std::future::pending::<()>().await;
            }
        })
    }

    fn tell(&self, event: Event) {
        self.events.publish(to_event(event));
    }
}

/// Why a rule cannot be served, if so.
fn down(rule: &str, state: &RuleState) -> Option<String> {
    if let Some((to, why)) = state.outputs().find_map(|(to, down)| Some((to, down?))) {
        return Some(format!("rule {rule:?}: output {to}: {why}"));
    }
    let (at, input) = state.inputs().find(|(_, input)| !input.joined)?;
    let why = input.reason.as_deref().unwrap_or("is not joined");
    Some(format!("rule {rule:?}: input {at}: {why}"))
}

fn to_event(event: Event) -> api::reply::Event {
    let (kind, subject, message) = match event {
        Event::ShareOpened { share, why } => {
            let message = format!("share {share:?}: this relay forwards it: {why}");
            (SHARE_OPENED, share, message)
        }
        Event::ShareShut { share, why } => {
            let message = format!("share {share:?}: this relay forwards it no more: {why}");
            (SHARE_SHUT, share, message)
        }
        Event::RelayFenced { relay, why } => {
            let message = format!("relay {relay:?}: fenced: {why}");
            (RELAY_FENCED, relay, message)
        }
        Event::EtcdAway { why } => {
            let message = format!("etcd cannot be used: {why}");
            (ETCD_AWAY, "etcd".to_owned(), message)
        }
        Event::EtcdBack => (
            ETCD_BACK,
            "etcd".to_owned(),
            "etcd answers again".to_owned(),
        ),
        Event::RulesApplied { generation, rules } => {
            let rules = things(rules as u64, "rule");
            let message = format!("rules of the fleet: generation {generation}, {rules}, applied");
            (FLEET_RULES_APPLIED, "fleet".to_owned(), message)
        }
        Event::RulesRefused { what, why } => {
            let message = format!("{what}: not used: {why}");
            (FLEET_RULES_REFUSED, what, message)
        }
    };
    events::event(kind, &subject, message)
}

fn by_share(
    view: &View,
    counters: &Counters,
    sampler: &Sampler,
) -> BTreeMap<String, FleetCounters> {
    let mut shares: BTreeMap<String, FleetCounters> = BTreeMap::new();
    for rule in view.rules.iter() {
        let Some(share) = &rule.share else { continue };
        let sum = shares.entry(share.clone()).or_default();
        if let Some(counted) = counters.rules.get(&rule.name) {
            add(sum, counted);
        }
        sum.pps += sampler.rates(&rule.name).packets_1s as u64;
    }
    shares
}

fn add(sum: &mut FleetCounters, counted: &RuleCounters) {
    let outputs = counted.outputs.values();
    let all = outputs
        .clone()
        .map(|output| &output.dropped)
        .chain([&counted.dropped]);
    for dropped in all {
        for (reason, count) in dropped.occurred() {
            match reason {
                DropReason::Standby => sum.standby += count,
                _ => sum.dropped += count,
            }
        }
    }
    sum.received += counted.received.packets;
    sum.relayed += outputs.map(|output| output.sent.packets).sum::<u64>();
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SILENCE: u64 = 1000 * MS;

    /// Reads twice a second from `from` to `to` with a packet every `period`; returns the changes.
    fn receptions(receiver: &mut Receiver, (from, to): (u64, u64), period: u64) -> Vec<Reception> {
        let read = |at: u64| receiver.update((at * MS, at / period * period * MS), SILENCE);
        let mut receptions: Vec<Reception> = (from..to).step_by(500).map(read).collect();
        receptions.dedup();
        receptions
    }

    #[test]
    fn a_stream_never_received_differs_from_one_that_stopped() {
        let mut receiver = Receiver::new(10_000 * MS);
        let read = |to: &mut Receiver, at: u64, last: u64| to.update((at * MS, last * MS), SILENCE);
        assert_eq!(read(&mut receiver, 11_000, 0), Reception::Pending);
        assert_eq!(read(&mut receiver, 12_000, 0), Reception::Never);
        assert_eq!(read(&mut receiver, 13_000, 12_900), Reception::Active);
        assert_eq!(read(&mut receiver, 13_500, 12_900), Reception::Active);
        assert_eq!(read(&mut receiver, 14_000, 12_900), Reception::Stopped);
        // The reception of an earlier installation does not count yet.
        let mut again = Receiver::new(10_000 * MS);
        assert_eq!(read(&mut again, 10_500, 7000), Reception::Pending);
        assert_eq!(read(&mut again, 12_000, 7000), Reception::Stopped);
    }

    #[test]
    fn the_time_before_a_reinstallation_is_no_pause_of_the_stream() {
        let mut again = Receiver::new(10_000 * MS);
        let read = |to: &mut Receiver, at: u64, last: u64| to.update((at * MS, last * MS), SILENCE);
        assert_eq!(read(&mut again, 10_100, 7000), Reception::Pending);
        assert_eq!(read(&mut again, 10_600, 10_500), Reception::Active);
        assert_eq!(read(&mut again, 11_600, 10_500), Reception::Stopped);
    }

    #[test]
    fn a_slow_stream_is_silent_once_and_then_recognised() {
        let mut receiver = Receiver::new(0);
        let fast = receptions(&mut receiver, (2000, 20_000), 20);
        assert_eq!(fast, [Reception::Active]);
        let slow = receptions(&mut receiver, (20_000, 27_000), 3000);
        assert!(slow.contains(&Reception::Stopped), "{slow:?}");
        let slow = receptions(&mut receiver, (27_000, 200_000), 3000);
        assert!(!slow.contains(&Reception::Stopped), "{slow:?}");
        assert_eq!(slow[..2], [Reception::Active, Reception::Pausing]);
        // A stream that is fast again is judged by that after a while.
        receptions(&mut receiver, (200_000, 300_000), 20);
        assert_eq!(
            receiver.update((301_500 * MS, 299_980 * MS), SILENCE),
            Reception::Stopped
        );
    }

    /// Stopped or on a busy machine: the stream went on meanwhile, or its workers stood still as well.
    #[test]
    fn time_in_which_nobody_read_is_no_pause_of_the_stream() {
        for worker_stops in [false, true] {
            let mut receiver = Receiver::new(0);
            receptions(&mut receiver, (2000, 20_000), 20);
            if worker_stops {
                receiver.update((24_000 * MS, 19_500 * MS), SILENCE);
            }
            receptions(&mut receiver, (24_500, 26_000), 20);
            let dead = receiver.update((27_000 * MS, 25_990 * MS), SILENCE);
            assert_eq!(dead, Reception::Stopped, "{worker_stops}");
        }
    }
}
