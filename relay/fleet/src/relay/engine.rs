//! The main loop of a relay: it passes inputs to the member and carries out the member's commands. It
//! runs on one thread, which only ever waits for the next event; requests run as tasks of their own.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::mem::take;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use etcd::Client;
use sys::clock::{boottime_ns, realtime_ms};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::installer::Wanted;
use super::operator::{Operator, Request};
use super::outage::Outage;
use super::peering::Peering;
use super::received::{OwnSocket, Received};
use super::retained::Retained;
use super::tasks::spawn;
use super::watching::{Follower, WatchCommand};
use super::{Config, Status, status, transactions};
use crate::host::{Event, Fitness, Host};
use crate::keys::{Key, Keys};
use crate::member::{self, Change, Command, FleetEvent, Input, KeyValue, Member, PhaseName};
use crate::peers::Message;
use crate::record::{Recorder, without_secret};
use crate::rules::Rules;

/// How often the member gets a tick.
const TICK: Duration = Duration::from_nanos(crate::member::TICK_NS);
/// How often the daemon is sampled.
const SAMPLE: Duration = Duration::from_millis(100);
/// Most notifications that are handled before the member decides.
const BATCH_MAX: usize = 64;
/// Samples between two publications of a changed status, and how many shares add one more.
const PUBLISH_SAMPLES: u32 = 2;
const PUBLISH_SHARES: usize = 100;
/// The same for an unchanged status, which costs as much with a thousand shares.
const REPUBLISH_SAMPLES: u32 = 10;
/// Samples between two publications of this relay's counters.
const COUNTERS_SAMPLES: u32 = 50;

/// The channels that the engine receives from.
pub(super) struct Receivers {
    /// From its own tasks; each has few things under way at a time.
    pub(super) received: mpsc::UnboundedReceiver<Received>,
    /// From the other relays: a short queue, so that a flood of datagrams waits in the kernel.
    pub(super) peers: mpsc::Receiver<(Message, SocketAddr)>,
    /// From the owners of the [`super::Relay`]; the engine ends when the last one is dropped.
    pub(super) requests: mpsc::UnboundedReceiver<Request>,
}

/// A relay's engine.
pub(super) struct Engine {
    pub(super) config: Arc<Config>,
    pub(super) host: Arc<dyn Host>,
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) member: Member,
    pub(super) recorder: Recorder,
    pub(super) retained: Retained,
    pub(super) rules: Arc<Rules>,
    /// The value of `rules/current` that named these rules.
    pub(super) current: Option<crate::keys::Current>,
    /// The rules that etcd names, while they are not yet in use.
    pub(super) reading: Option<crate::keys::Current>,
    /// The same, if they could not be read, and the sample at which they are read again.
    pub(super) unread: Option<(crate::keys::Current, u32)>,
    /// The version of the member's status that was last published.
    pub(super) published_version: u64,
    /// Counts the samples.
    pub(super) samples: u32,
    /// The calendar's time at boot, as the member has it.
    pub(super) boot_unix_ms: u64,
    pub(super) received: mpsc::UnboundedSender<Received>,
    pub(super) watches: mpsc::UnboundedSender<WatchCommand>,
    pub(super) wanted: watch::Sender<Wanted>,
    /// Whether `wanted` has rules without a notification: that follows the member's decision on them.
    pub(super) has_new_rules: bool,
    pub(super) peers: Peering,
    /// `Some` until the address is known at which the others reach this relay.
    pub(super) follower: Option<Follower>,
    /// The sender of the question that is being answered.
    pub(super) requester: Option<SocketAddr>,
    pub(super) published: watch::Sender<Arc<Status>>,
    pub(super) leaving: Vec<oneshot::Sender<()>>,
    pub(super) fitness: Fitness,
    pub(super) tally: status::Tally,
    pub(super) outage: Outage,
    pub(super) is_checking_alive: Rc<Cell<bool>>,
    pub(super) is_publishing_counters: Rc<Cell<bool>>,
}

/// The time when this host's CLOCK_BOOTTIME was 0, by the calendar of now, in ms since 1970.
pub(super) fn boot_unix_ms() -> u64 {
    realtime_ms().saturating_sub(boottime_ns() / 1_000_000)
}

impl Engine {
    /// Runs until the last owner has dropped the relay.
    pub(super) async fn run(mut self, mut receivers: Receivers) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sample = interval(SAMPLE);
        sample.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                request = receivers.requests.recv() => match request {
                    Some(request) => self.carry_out_request(request),
                    None => return,
                },
                Some(received) = receivers.received.recv() => self.receive_all(received, &mut receivers.received),
                Some((message, from)) = receivers.peers.recv() => self.receive_peer(message, from),
                _ = tick.tick() => self.handle(Input::Tick),
                _ = sample.tick() => self.sample(),
            }
        }
    }

    /// Takes part, now that the address is known at which the others reach this relay.
    fn use_own_socket(&mut self, (at, socket): OwnSocket) {
        if at.ip().is_loopback() {
            tracing::info!(
                "the relays of other hosts cannot reach this one at {at}; give peer in [fleet] where \
                 there are any"
            );
        }
        self.peers.open(socket);
        self.take(Input::Own(at));
        if let Some(follower) = self.follower.take() {
            spawn(follower.run());
        }
    }

    fn receive_peer(&mut self, message: Message, from: SocketAddr) {
        match message {
            Message::Question(question) => {
                self.requester = Some(from);
                self.handle(Input::Question(question));
                self.requester = None;
            }
            Message::Answer(answer) => self.handle(Input::Answer(answer)),
        }
    }

    /// Receives everything that has arrived meanwhile, too, and then decides: so a late engine catches up.
    fn receive_all(&mut self, first: Received, more: &mut mpsc::UnboundedReceiver<Received>) {
        self.receive(first);
        for _ in 1..BATCH_MAX {
            let Ok(received) = more.try_recv() else {
                break;
            };
            self.receive(received);
        }
        self.act();
    }

    fn receive(&mut self, received: Received) {
        match received {
            Received::Input(input) => {
                self.note(&input);
                self.take(input);
            }
            Received::Own(own) => self.use_own_socket(own),
            Received::Away(error) => self.note_away(&error),
            Received::Rules(read) => self.take_rules(read),
            Received::Installed(number, input) => {
                if self.wanted.borrow().number == number {
                    self.take(input);
                }
            }
        }
    }

    /// Notes why etcd is unavailable. A relay with a session reports that only once its beats fail.
    fn note_away(&mut self, error: &etcd::Error) {
        let why = status::away(error);
        let has_session = self.member.phase() == PhaseName::Joined;
        let is_away = !has_session || self.outage.is_reported();
        if is_away && self.outage.should_report(&why, Instant::now()) {
            self.host.tell(Event::EtcdAway { why: why.clone() });
        }
        self.tally.away(why);
        self.take(Input::EtcdReachable(false));
    }

    /// Passes an input to the member, and carries out what it decides.
    pub(super) fn handle(&mut self, input: Input) {
        self.take(input);
        self.act();
    }

    /// Passes an input to the member, which decides later.
    pub(super) fn take(&mut self, input: Input) {
        let (now, input) = (boottime_ns(), without_secret(&self.keys, input));
        self.recorder.took(now, &input);
        self.member.take(now, input);
    }

    fn act(&mut self) {
        let now = boottime_ns();
        let commands = self.member.decide(now);
        self.recorder.decided(now, &commands);
        for command in commands {
            self.carry_out(command);
        }
        if take(&mut self.has_new_rules) {
            self.wanted.send_modify(|_| {});
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Txn {
                id,
                txn,
                give_up_ns,
            } => self.begin_transaction(id, txn, give_up_ns),
            Command::WatchBeat { relay } => drop(self.watches.send(WatchCommand::Watch(relay))),
            Command::ListAgain => drop(self.watches.send(WatchCommand::ListAgain)),
            Command::UnwatchBeat { relay } => drop(self.watches.send(WatchCommand::Unwatch(relay))),
            Command::Ask { peer, question } => self.peers.send(peer, Message::Question(question)),
            Command::Answer(answer) => {
                if let Some(requester) = self.requester {
                    self.peers.send(requester, Message::Answer(answer));
                }
            }
            Command::Gate { share, until } => self.host.set_gate(&share, until),
            Command::Install { shares } => self.want(shares),
            Command::SaveSession(session) => self.retained.save_session(session),
            Command::Event(event) => self.report(event),
        }
    }

    fn begin_transaction(&self, id: member::TxnId, txn: member::Txn, give_up_ns: u64) {
        let (client, received) = (self.client.clone(), self.received.clone());
        spawn(async move {
            let sent_ns = boottime_ns();
            let limit = Duration::from_nanos(give_up_ns.saturating_sub(sent_ns));
            let (outcome, error) = transactions::carry_out(&client, txn, limit).await;
            if let Some(error) = error {
                let _ = received.send(Received::Away(error));
            }
            let answered = Input::Answered {
                id,
                sent_ns,
                outcome,
            };
            let _ = received.send(Received::Input(answered));
        });
    }

    /// Has these shares' rules compiled and joined.
    fn want(&mut self, shares: BTreeSet<String>) {
        self.has_new_rules = false;
        self.wanted.send_modify(|wanted| {
            wanted.number += 1;
            wanted.shares = Some(shares);
        });
    }

    /// Handles what in an input concerns the engine itself.
    fn note(&mut self, input: &Input) {
        match input {
            Input::Listed { keys, .. } => {
                self.tally.back();
                self.take(Input::EtcdReachable(true));
                keys.iter().for_each(|kv| self.note_key(kv));
                self.peers.make_secret(&self.client, &self.keys);
            }
            Input::Changed { changes, .. } => {
                for change in changes {
                    if let Change::Put(kv) = change {
                        self.note_key(kv);
                    }
                }
            }
            Input::Answered {
                sent_ns, outcome, ..
            } if self.tally.answered(*sent_ns, outcome) => {
                self.take(Input::EtcdReachable(true));
            }
            _ => {}
        }
    }

    fn note_key(&mut self, kv: &KeyValue) {
        match self.keys.parse(&kv.key) {
            Ok(Key::Settings) => self.peers.take_settings(kv),
            Ok(Key::Rules) => self.read_rules(kv),
            _ => {}
        }
    }

    /// Samples the daemon, and publishes the status of the relay.
    fn sample(&mut self) {
        let samples = self.samples;
        self.samples = samples.wrapping_add(1);
        self.act();
        self.recorder.checkpoint(boottime_ns(), &self.member);
        self.check_alive();
        let boot_unix_ms = boot_unix_ms();
        if boot_unix_ms.abs_diff(self.boot_unix_ms) >= 1000 {
            self.boot_unix_ms = boot_unix_ms;
            self.take(Input::Calendar(boot_unix_ms));
        }
        let fitness = self.host.fitness();
        if fitness != self.fitness {
            self.fitness.clone_from(&fitness);
            self.handle(Input::Fitness(fitness));
        }
        let version = self.member.status_version();
        let has_changed = version != self.published_version;
        let interval = if has_changed {
            PUBLISH_SAMPLES
        } else {
            REPUBLISH_SAMPLES
        };
        let more = (self.rules.shares().len() / PUBLISH_SHARES) as u32;
        if samples.is_multiple_of(interval + more) {
            self.published_version = version;
            self.publish();
        }
        if samples.is_multiple_of(COUNTERS_SAMPLES) {
            self.publish_counters();
            self.peers.make_secret(&self.client, &self.keys);
        }
        self.read_rules_again();
    }

    fn check_alive(&self) {
        if self.is_checking_alive.replace(true) {
            return;
        }
        let (host, received) = (Arc::clone(&self.host), self.received.clone());
        let is_checking_alive = Rc::clone(&self.is_checking_alive);
        spawn(async move {
            host.alive().await;
            is_checking_alive.set(false);
            let _ = received.send(Received::Input(Input::Alive));
        });
    }

    /// Publishes the status to the owners of the relay.
    pub(super) fn publish(&self) {
        let now = boottime_ns();
        let status = status::of(self.member.status(now), &self.rules, &self.tally);
        self.published.send_replace(Arc::new(status));
    }

    fn publish_counters(&self) {
        if self.is_publishing_counters.replace(true) {
            return;
        }
        let is_publishing = Rc::clone(&self.is_publishing_counters);
        let (client, host) = (self.client.clone(), Arc::clone(&self.host));
        let key = self.keys.text(&Key::Counters(self.config.relay.clone()));
        spawn(async move {
            let counters = host.counters().await;
            let value = serde_json::to_vec(&counters).unwrap_or_default();
            let limit = Duration::from_secs(2);
            if let Err(error) = client.put(key, value, limit).await {
                tracing::debug!(%error, "counters are not told");
            }
            is_publishing.set(false);
        });
    }

    fn carry_out_request(&mut self, request: Request) {
        if let Request::Leave(done) = request {
            if matches!(self.member.phase(), PhaseName::Starting | PhaseName::Left) {
                // It never took part, or no longer does.
                let _ = done.send(());
                return;
            }
            self.leaving.push(done);
            self.handle(Input::Leave);
            return;
        }
        if let Request::Record(last, done) = request {
            let from = boottime_ns().saturating_sub(last.as_nanos() as u64);
            let _ = done.send(Ok(self.recorder.file(from)));
            return;
        }
        self.publish();
        let operator = Operator {
            client: self.client.clone(),
            keys: self.keys.clone(),
            config: Arc::clone(&self.config),
            rules: Arc::clone(&self.rules),
            current: self.current.clone(),
            status: Arc::clone(&self.published.borrow()),
        };
        spawn(operator.carry_out(request));
    }

    /// Adds an event of the member to the daemon's event log, if it belongs there.
    fn report(&mut self, event: FleetEvent) {
        let own = self.config.relay.clone();
        let event = match event {
            FleetEvent::Joined { session } => {
                tracing::info!(relay = own, session, "takes part in the fleet");
                if self.outage.end() {
                    self.host.tell(Event::EtcdBack);
                }
                return;
            }
            FleetEvent::Left => {
                for done in self.leaving.drain(..) {
                    let _ = done.send(());
                }
                return;
            }
            FleetEvent::ShareOpened { share } => {
                self.tally.takeovers += 1;
                let why = self.member.why_held(&share).to_owned();
                Some(Event::ShareOpened { share, why })
            }
            FleetEvent::EtcdAway => {
                let reason = self.tally.reason().unwrap_or_default();
                self.outage.note_reported(reason, Instant::now());
                let why = self.tally.why_unacknowledged();
                Some(Event::EtcdAway { why })
            }
            FleetEvent::EtcdBack => {
                self.outage.end();
                Some(Event::EtcdBack)
            }
            other => status::event(other, own),
        };
        if let Some(event) = event {
            self.host.tell(event);
        }
    }
}
