//! The main loop of a relay: it gives the member what happens and carries out what the member decides.
//! One thread, which waits for nothing but the next event; requests run beside it.

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
use super::operator::{Operator, Order};
use super::outage::Outage;
use super::peering::Peering;
use super::received::{Received, Taken};
use super::retained::Retained;
use super::tasks::spawn;
use super::watching::{BeatOrder, Follower};
use super::{Config, Status, status, transactions};
use crate::host::{Event, Fitness, Host};
use crate::keys::{Key, Keys};
use crate::member::{self, Change, Command, FleetEvent, Input, KeyValue, Member, PhaseName};
use crate::peers::Message;
use crate::record::{Recorder, without_secret};
use crate::rules::Rules;

/// How often the member is told that time has passed.
const TICK: Duration = Duration::from_nanos(crate::member::TICK_NS);
/// How often the daemon is asked how it does.
const LOOK: Duration = Duration::from_millis(100);
/// So many notifications are acted on together, at most.
const TOGETHER: usize = 64;
/// Looks between two that publish what is known, if that has changed, and how many shares make it one more.
const PUBLISHED: u32 = 2;
const PUBLISHED_SHARES: usize = 100;
/// The same, if only time has passed: it is as much to say with a thousand shares.
const REPEATED: u32 = 10;
/// Looks between two that tell the others what was counted here.
const COUNTED: u32 = 50;

/// What the engine receives from.
pub(super) struct Receivers {
    /// Its own tasks; each has few things under way at a time.
    pub(super) received: mpsc::UnboundedReceiver<Received>,
    /// The other relays: few wait, so that a flood of datagrams waits in the kernel.
    pub(super) peers: mpsc::Receiver<(Message, SocketAddr)>,
    /// Whoever has the [`super::Relay`]; the engine ends when nobody has it any more.
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
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
    /// What said that those are the rules.
    pub(super) current: Option<crate::keys::Current>,
    /// Which rules etcd says there are, while they are not those above.
    pub(super) reading: Option<crate::keys::Current>,
    /// The same, if they could not be read, and at which look they are asked for again.
    pub(super) unread: Option<(crate::keys::Current, u32)>,
    /// The member's changes that were published last.
    pub(super) told: u64,
    /// How often was looked.
    pub(super) looks: u32,
    /// What the member was told the calendar said when this host started.
    pub(super) boot_unix_ms: u64,
    pub(super) received: mpsc::UnboundedSender<Received>,
    pub(super) beats: mpsc::UnboundedSender<BeatOrder>,
    pub(super) wanted: watch::Sender<Wanted>,
    /// Whether rules of it are not told yet: they go with what the member decides by them.
    pub(super) has_new_rules: bool,
    pub(super) peers: Peering,
    /// Until it is known where the others reach this relay.
    pub(super) follower: Option<Follower>,
    /// Where the question came from that is being answered.
    pub(super) asker: Option<SocketAddr>,
    pub(super) published: watch::Sender<Arc<Status>>,
    pub(super) leaving: Vec<oneshot::Sender<()>>,
    pub(super) fitness: Fitness,
    pub(super) tally: status::Tally,
    pub(super) outage: Outage,
    pub(super) is_asking: Rc<Cell<bool>>,
    pub(super) is_counting: Rc<Cell<bool>>,
}

/// What the calendar said, as it stands now, when this host's CLOCK_BOOTTIME was 0, in ms since 1970.
pub(super) fn boot_unix_ms() -> u64 {
    realtime_ms().saturating_sub(boottime_ns() / 1_000_000)
}

impl Engine {
    /// Runs until nobody has the relay any more.
    pub(super) async fn run(mut self, mut receivers: Receivers) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                order = receivers.orders.recv() => match order {
                    Some(order) => self.carry_out_order(order),
                    None => return,
                },
                Some(received) = receivers.received.recv() => self.receive_all(received, &mut receivers.received),
                Some((message, from)) = receivers.peers.recv() => self.receive_peer(message, from),
                _ = tick.tick() => self.tell(Input::Tick),
                _ = look.tick() => self.look(),
            }
        }
    }

    /// Takes part, now that it is known where the others reach this relay.
    fn take_own(&mut self, (at, socket): Taken) {
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
                self.asker = Some(from);
                self.tell(Input::Question(question));
                self.asker = None;
            }
            Message::Answer(answer) => self.tell(Input::Answer(answer)),
        }
    }

    /// Receives what has come meanwhile too, and acts on all of it: who is late catches up.
    fn receive_all(&mut self, first: Received, more: &mut mpsc::UnboundedReceiver<Received>) {
        self.receive(first);
        for _ in 1..TOGETHER {
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
            Received::Own(taken) => self.take_own(taken),
            Received::Away(error) => self.note_away(&error),
            Received::Rules(read) => self.take_rules(read),
            Received::Installed(number, input) => {
                if self.wanted.borrow().number == number {
                    self.take(input);
                }
            }
        }
    }

    /// Notes why etcd is of no use. A relay with a session learns it from what becomes of its beats.
    fn note_away(&mut self, error: &etcd::Error) {
        let why = status::away(error);
        let has_session = self.member.phase() == PhaseName::Joined;
        let is_away = !has_session || self.outage.is_told();
        if is_away && self.outage.is_news(&why, Instant::now()) {
            self.host.tell(Event::EtcdAway { why: why.clone() });
        }
        self.tally.away(why);
        self.take(Input::EtcdReachable(false));
    }

    /// Tells the member, and does what it decides.
    pub(super) fn tell(&mut self, input: Input) {
        self.take(input);
        self.act();
    }

    /// Tells the member, which is asked later.
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
            Command::WatchBeat { relay } => drop(self.beats.send(BeatOrder::Watch(relay))),
            Command::ListAgain => drop(self.beats.send(BeatOrder::ListAgain)),
            Command::UnwatchBeat { relay } => drop(self.beats.send(BeatOrder::Unwatch(relay))),
            Command::Ask { peer, question } => self.peers.send(peer, Message::Question(question)),
            Command::Answer(answer) => {
                if let Some(asker) = self.asker {
                    self.peers.send(asker, Message::Answer(answer));
                }
            }
            Command::Gate { share, until } => self.host.set_gate(&share, until),
            Command::Install { shares } => self.want(shares),
            Command::SaveSession(session) => self.retained.keep_session(session),
            Command::Event(event) => self.tell_people(event),
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

    /// Notes what of an input concerns others than the member.
    fn note(&mut self, input: &Input) {
        match input {
            Input::Listed { keys, .. } => {
                self.tally.back();
                self.take(Input::EtcdReachable(true));
                for found in keys {
                    self.note_key(found);
                }
                self.peers.make_secret(&self.client, &self.keys);
            }
            Input::Changed { changes, .. } => {
                for change in changes {
                    if let Change::Put(found) = change {
                        self.note_key(found);
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

    fn note_key(&mut self, found: &KeyValue) {
        match self.keys.parse(&found.key) {
            Ok(Key::Settings) => self.peers.take_settings(found),
            Ok(Key::Rules) => self.read_rules(found),
            _ => {}
        }
    }

    /// Looks how the daemon does, and says how the relay does.
    fn look(&mut self) {
        let looks = self.looks;
        self.looks = looks.wrapping_add(1);
        self.act();
        self.recorder.checkpoint(boottime_ns(), &self.member);
        self.ask_whether_alive();
        let boot_unix_ms = boot_unix_ms();
        if boot_unix_ms.abs_diff(self.boot_unix_ms) >= 1000 {
            self.boot_unix_ms = boot_unix_ms;
            self.take(Input::Calendar(boot_unix_ms));
        }
        let fitness = self.host.fitness();
        if fitness != self.fitness {
            self.fitness.clone_from(&fitness);
            self.tell(Input::Fitness(fitness));
        }
        let news = self.member.news();
        let has_changed = news != self.told;
        let many = (self.rules.shares().len() / PUBLISHED_SHARES) as u32;
        let every = if has_changed { PUBLISHED } else { REPEATED } + many;
        if looks.is_multiple_of(every) {
            self.told = news;
            self.publish();
        }
        if looks.is_multiple_of(COUNTED) {
            self.tell_counters();
            self.peers.make_secret(&self.client, &self.keys);
        }
        self.read_rules_again();
    }

    fn ask_whether_alive(&self) {
        if self.is_asking.replace(true) {
            return;
        }
        let (host, received) = (Arc::clone(&self.host), self.received.clone());
        let is_asking = Rc::clone(&self.is_asking);
        spawn(async move {
            host.alive().await;
            is_asking.set(false);
            let _ = received.send(Received::Input(Input::Alive));
        });
    }

    /// Says what is known, to whoever asks.
    pub(super) fn publish(&self) {
        let now = boottime_ns();
        let status = status::of(self.member.status(now), &self.rules, &self.tally);
        self.published.send_replace(Arc::new(status));
    }

    fn tell_counters(&self) {
        if self.is_counting.replace(true) {
            return;
        }
        let is_counting = Rc::clone(&self.is_counting);
        let (client, host) = (self.client.clone(), Arc::clone(&self.host));
        let key = self.keys.text(&Key::Counters(self.config.relay.clone()));
        spawn(async move {
            let counters = host.counters().await;
            let value = serde_json::to_vec(&counters).unwrap_or_default();
            let limit = Duration::from_secs(2);
            if let Err(error) = client.put(key, value, limit).await {
                tracing::debug!(%error, "counters are not told");
            }
            is_counting.set(false);
        });
    }

    fn carry_out_order(&mut self, order: Order) {
        if let Order::Leave(done) = order {
            if matches!(self.member.phase(), PhaseName::Starting | PhaseName::Left) {
                // It never took part, or does no more.
                let _ = done.send(());
                return;
            }
            self.leaving.push(done);
            self.tell(Input::Leave);
            return;
        }
        if let Order::Record(last, done) = order {
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
        spawn(operator.carry_out(order));
    }

    fn tell_people(&mut self, event: FleetEvent) {
        let own = self.config.relay.clone();
        let event = match event {
            FleetEvent::Joined { session } => {
                tracing::info!(relay = own, session, "takes part in the fleet");
                if self.outage.is_over() {
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
                self.outage.was_told(reason, Instant::now());
                let why = self.tally.why_unheard();
                Some(Event::EtcdAway { why })
            }
            FleetEvent::EtcdBack => {
                self.outage.is_over();
                Some(Event::EtcdBack)
            }
            other => status::event(other, own),
        };
        if let Some(event) = event {
            self.host.tell(event);
        }
    }
}
