//! What a daemon lends a fleet: its rules' table, its gates, its counters and its events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::reply::{FleetCounters, Via};
use dataplane::counters::{Counters, DropReason, RuleCounters};
use fleet::host::{BoxFuture, Event, Fitness, Host};
use observe::events::{self, Events};
use observe::silence;
use observe::stats::Sampler;
use observe::view::{RuleState, View};
use parking_lot::Mutex;
use rules::document::RuleDocument;
use rules::printable::things;
use tokio::sync::{mpsc, oneshot, watch};

use crate::author::Author;
use crate::dataplane_thread::DataplaneThread;
use crate::supervisor::command::{Command, FleetRules, Order};

/// How long a stream that has paused for long is one that does so, and gets so many times as long
/// before it is silent.
const SLOW_FOR_NS: u64 = 60_000_000_000;
const SLOW: u64 = 2;
const SLOWEST: u64 = 8;

/// What a daemon lends a fleet.
pub(crate) struct DaemonHost {
    /// The fleet's name.
    name: String,
    commands: mpsc::Sender<Command>,
    dataplane: DataplaneThread,
    view: watch::Receiver<Arc<View>>,
    events: Events,
    sampler: Sampler,
    /// A stream that was heard is silent after a longer time without a packet, one that was not is not
    /// judged before.
    silence_ns: u64,
    /// What was received of each of the fleet's rules.
    ears: Mutex<BTreeMap<String, Ear>>,
}

/// What was received of a rule, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug)]
struct Ear {
    since_ns: u64,
    last_ns: u64,
    /// How long it may be silent.
    longest_ns: u64,
    slow_until_ns: u64,
}

/// What a rule receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hears {
    /// It was installed just now, and nothing has come yet.
    NotYet,
    Nothing,
    NoMore,
    Something,
}

impl Ear {
    fn new(since_ns: u64) -> Self {
        Self {
            since_ns,
            last_ns: 0,
            longest_ns: 0,
            slow_until_ns: 0,
        }
    }

    /// Takes what was read: when, and when the last packet had come.
    fn hear(&mut self, (read_ns, last_ns): (u64, u64), silence_ns: u64) -> Hears {
        if last_ns > self.slow_until_ns {
            self.longest_ns = silence_ns;
        }
        let gap_ns = last_ns.saturating_sub(self.last_ns);
        // Packets passed untold while it was not installed.
        if self.last_ns > self.since_ns && gap_ns > silence_ns {
            self.longest_ns = self
                .longest_ns
                .max((gap_ns * SLOW).min(silence_ns * SLOWEST));
            self.slow_until_ns = last_ns + SLOW_FOR_NS;
        }
        self.last_ns = last_ns;
        // What was installed again has heard nothing yet of what it heard before.
        let is_old = last_ns <= self.since_ns;
        if is_old && read_ns < self.since_ns + 2 * silence_ns {
            return Hears::NotYet;
        }
        match last_ns {
            0 => Hears::Nothing,
            _ if silence(read_ns, last_ns, self.longest_ns).is_some() => Hears::NoMore,
            _ => Hears::Something,
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
            // The other half is the fleet's patience.
            silence_ns: input_silence.as_nanos() as u64 / 2,
            ears: Mutex::default(),
        }
    }

    async fn carry_out(
        &self,
        rules: Vec<RuleDocument>,
        by: Option<String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let ending = || "the daemon is ending".to_owned();
        let (refused, told) = oneshot::channel();
        let order = Order::Fleet(FleetRules { rules, refused });
        let mut author = Author::of(Via::Fleet, Some(self.name.clone()));
        author.by.user = by.filter(|by| !by.is_empty());
        let (command, _, answer) = Command::new(order, author);
        let sent = self.commands.send(command).await;
        sent.map_err(|_| ending())?;
        let answered = answer.await.map_err(|_| ending())?;
        answered.map_err(|refusal| refusal.message)?;
        told.await.map_err(|_| ending())
    }

    /// What a rule receives.
    fn hears(&self, rule: &str) -> Hears {
        let read = self.sampler.last_packet(rule);
        let mut ears = self.ears.lock();
        let ear = ears.entry(rule.to_owned()).or_insert(Ear::new(read.0));
        ear.hear(read, self.silence_ns)
    }

    /// Forgets what was received of rules that are not here: what comes back is new.
    fn forget_others(&self, view: &View) {
        let mut ears = self.ears.lock();
        ears.retain(|rule, _| view.rules.get(rule).is_some());
    }
}

impl Host for DaemonHost {
    fn install(
        &self,
        rules: Vec<RuleDocument>,
        by: Option<String>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>> {
        Box::pin(self.carry_out(rules, by))
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
            let heard = fitness.heard.entry(share.clone()).or_default();
            match self.hears(&rule.name) {
                Hears::Something => *heard += 1,
                Hears::NotYet => drop(unjudged.insert(share)),
                Hears::Nothing => {}
                Hears::NoMore => {
                    let why = format!("rule {:?}: nothing comes any more", rule.name);
                    fitness.silent.entry(share.clone()).or_insert(why);
                }
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
                // It is gone for good: whoever waits is not to be told that it lives.
                std::future::pending::<()>().await;
            }
        })
    }

    fn tell(&self, event: Event) {
        self.events.publish(told(event));
    }
}

/// Why a rule cannot be served, if so.
fn down(rule: &str, state: &RuleState) -> Option<String> {
    let down = state.outputs().find_map(|(to, down)| Some((to, down?)));
    let down = down.map(|(to, why)| format!("rule {rule:?}: output {to}: {why}"));
    let deaf = state.inputs().find(|(_, input)| !input.joined);
    let deaf = deaf.map(|(at, input)| {
        let why = input.reason.as_deref().unwrap_or("is not joined");
        format!("rule {rule:?}: input {at}: {why}")
    });
    down.or(deaf)
}

fn told(event: Event) -> api::reply::Event {
    let of_share = |kind, share: String, what, why| {
        let message = format!("share {share:?}: {what}: {why}");
        events::event(kind, &share, message)
    };
    match event {
        Event::ShareOpened { share, why } => of_share(
            events::kind::SHARE_OPENED,
            share,
            "this relay forwards it",
            why,
        ),
        Event::ShareShut { share, why } => {
            let what = "this relay forwards it no more";
            of_share(events::kind::SHARE_SHUT, share, what, why)
        }
        Event::RelayFenced { relay, why } => {
            let message = format!("relay {relay:?}: fenced: {why}");
            events::event(events::kind::RELAY_FENCED, &relay, message)
        }
        Event::EtcdAway { why } => {
            let message = format!("etcd cannot be used: {why}");
            events::event(events::kind::ETCD_AWAY, "etcd", message)
        }
        Event::EtcdBack => events::event(
            events::kind::ETCD_BACK,
            "etcd",
            "etcd answers again".to_owned(),
        ),
        Event::RulesApplied { generation, rules } => {
            let rules = things(rules as u64, "rule");
            let message = format!("rules of the fleet: generation {generation}, {rules}, applied");
            events::event(events::kind::FLEET_RULES_APPLIED, "fleet", message)
        }
        Event::RulesRefused { what, why } => {
            let message = format!("{what}: not used: {why}");
            events::event(events::kind::FLEET_RULES_REFUSED, &what, message)
        }
    }
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

    /// Reads twice a second from `from` to `to`, packets coming every `period`; gives what was heard.
    fn heard(ear: &mut Ear, (from, to): (u64, u64), period: u64) -> Vec<Hears> {
        let reads = (from..to).step_by(500);
        let hear = |at: u64| ear.hear((at * MS, at / period * period * MS), SILENCE);
        let mut heard: Vec<Hears> = reads.map(hear).collect();
        heard.dedup();
        heard
    }

    #[test]
    fn what_never_came_is_told_from_what_comes_no_more() {
        let mut ear = Ear::new(10_000 * MS);
        let read = |ear: &mut Ear, at: u64, last: u64| ear.hear((at * MS, last * MS), SILENCE);
        assert_eq!(read(&mut ear, 11_000, 0), Hears::NotYet);
        assert_eq!(read(&mut ear, 12_000, 0), Hears::Nothing);
        assert_eq!(read(&mut ear, 13_000, 12_900), Hears::Something);
        assert_eq!(read(&mut ear, 13_500, 12_900), Hears::Something);
        assert_eq!(read(&mut ear, 14_000, 12_900), Hears::NoMore);
        // What an earlier installation heard says nothing yet.
        let mut again = Ear::new(10_000 * MS);
        assert_eq!(read(&mut again, 10_500, 7000), Hears::NotYet);
        assert_eq!(read(&mut again, 12_000, 7000), Hears::NoMore);
    }

    #[test]
    fn the_time_until_it_was_installed_again_is_no_pause_of_the_stream() {
        let mut again = Ear::new(10_000 * MS);
        let read = |ear: &mut Ear, at: u64, last: u64| ear.hear((at * MS, last * MS), SILENCE);
        assert_eq!(read(&mut again, 10_100, 7000), Hears::NotYet);
        assert_eq!(read(&mut again, 10_600, 10_500), Hears::Something);
        assert_eq!(read(&mut again, 11_600, 10_500), Hears::NoMore);
    }

    #[test]
    fn a_slow_stream_is_silent_once_and_then_known() {
        let mut ear = Ear::new(0);
        let fast = heard(&mut ear, (2000, 20_000), 20);
        assert_eq!(fast, [Hears::Something]);
        let slow = heard(&mut ear, (20_000, 27_000), 3000);
        assert!(slow.contains(&Hears::NoMore), "{slow:?}");
        let slow = heard(&mut ear, (27_000, 200_000), 3000);
        assert_eq!(slow, [Hears::Something]);
        // One that is fast again is held to it after a while.
        heard(&mut ear, (200_000, 300_000), 20);
        assert_eq!(
            ear.hear((301_500 * MS, 299_980 * MS), SILENCE),
            Hears::NoMore
        );
    }
}
