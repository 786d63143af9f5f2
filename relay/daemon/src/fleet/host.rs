//! What a daemon lends a fleet: its rules' table, its gates, its counters and its events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use api::reply::FleetCounters;
use dataplane::counters::{Counters, DropReason, RuleCounters};
use fleet::host::{BoxFuture, Event, Host};
use model::document::RuleDocument;
use model::printable::plural;
use tokio::sync::{mpsc, oneshot, watch};

use crate::alarms::silence;
use crate::dataplane_thread::DataplaneThread;
use crate::events::{self, Events};
use crate::stats::Sampler;
use crate::supervisor::command::{Command, FleetRules, Order, Turn};
use crate::view::View;

/// A stream that was heard is silent after a longer time without a packet.
const SILENCE_NS: u64 = 2_000_000_000;

/// What a daemon lends a fleet.
pub(crate) struct Lent {
    commands: mpsc::Sender<Command>,
    dataplane: DataplaneThread,
    view: watch::Receiver<Arc<View>>,
    events: Events,
    sampler: Sampler,
    /// When each of the fleet's rules was last seen to receive, in nanoseconds of `CLOCK_MONOTONIC`.
    heard: Mutex<BTreeMap<String, u64>>,
}

impl Lent {
    pub(crate) fn new(
        commands: mpsc::Sender<Command>,
        dataplane: DataplaneThread,
        view: watch::Receiver<Arc<View>>,
        events: Events,
        sampler: Sampler,
    ) -> Self {
        Self {
            commands,
            dataplane,
            view,
            events,
            sampler,
            heard: Mutex::default(),
        }
    }

    async fn carry_out(
        &self,
        rules: Vec<RuleDocument>,
    ) -> Result<BTreeMap<String, String>, String> {
        let ending = || "the daemon is ending".to_owned();
        let (refused, told) = oneshot::channel();
        let (reply, answer) = oneshot::channel();
        let command = Command {
            order: Order::Fleet(FleetRules { rules, refused }),
            turn: Turn::default(),
            reply,
        };
        let sent = self.commands.send(command).await;
        sent.map_err(|_| ending())?;
        let answered = answer.await.map_err(|_| ending())?;
        answered.map_err(|refusal| refusal.message)?;
        told.await.map_err(|_| ending())
    }

    /// Why a rule is silent that was heard.
    fn silence(&self, rule: &str, now_ns: u64) -> Option<String> {
        let rates = self.sampler.rates(rule);
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if rates.packets_1s > 0.0 {
            heard.insert(rule.to_owned(), now_ns);
            return None;
        }
        silence(now_ns, *heard.get(rule)?, SILENCE_NS)?;
        Some(format!("rule {rule:?}: nothing comes any more"))
    }

    /// Forgets what was heard of rules that are not here: what comes back is new.
    fn forget_others(&self, view: &View) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|rule, _| view.rules.get(rule).is_some());
    }
}

impl Host for Lent {
    fn install(
        &self,
        rules: Vec<RuleDocument>,
    ) -> BoxFuture<'_, Result<BTreeMap<String, String>, String>> {
        Box::pin(self.carry_out(rules))
    }

    fn set_gate(&self, share: &str, until_ns: u64) {
        self.dataplane.gates().set(share, until_ns);
    }

    fn unfit(&self) -> BTreeMap<String, String> {
        let view = self.view.borrow().clone();
        let now_ns = sys::clock::monotonic_ns();
        self.forget_others(&view);
        let mut unfit = BTreeMap::new();
        for (rule, state) in view.rules.iter().zip(view.states.values()) {
            let Some(share) = rule.share.as_ref().filter(|_| rule.enabled) else {
                continue;
            };
            let down = { state.outputs() }.find_map(|(to, down)| Some((to, down?)));
            let down = down.map(|(to, why)| format!("rule {:?}: output {to}: {why}", rule.name));
            let deaf = { state.inputs() }.find(|(_, input)| !input.joined);
            let deaf = deaf.map(|(at, input)| {
                let why = input.reason.as_deref().unwrap_or("is not joined");
                format!("rule {:?}: input {at}: {why}", rule.name)
            });
            let why = down.or(deaf).or_else(|| self.silence(&rule.name, now_ns));
            if let Some(why) = why {
                unfit.entry(share.clone()).or_insert(why);
            }
        }
        unfit
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
            let s = plural(rules as u64);
            let message =
                format!("rules of the fleet: generation {generation}, {rules} rule{s}, applied");
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
    let all = { outputs.clone().map(|output| &output.dropped) }.chain([&counted.dropped]);
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
