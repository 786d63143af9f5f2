//! The sockets and the clock of the routers: one task owns them, and one task per socket reads.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use igmp::codec::{self, Received, RouterMessage};
use igmp::listeners::{Listeners, Routers};
use igmp::router::{Querier, Router};
use observe::events::{self, Events};
use rules::demand::{Groups, Listening};
use rules::net::Ifindex;
use rules::printable::count;
use sys::group_socket::GroupSocket;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking, yield_now};
use tokio::time::sleep_until;

use super::record::Record;
use super::{DriverInput, Link, Links};

/// Packets that are read from a socket before other sockets.
const BURST: usize = 64;
/// Bursts that are queued; further packets wait in the socket, or are lost.
const BURSTS: usize = 32;
/// How long changes are collected.
const GATHER: Duration = Duration::from_millis(2);
/// The shortest interval between writes of the record.
const SAVE: Duration = Duration::from_millis(500);
/// The longest interval between them, so that the record's age shows how long no daemon has listened.
const SAVE_AGAIN: Duration = Duration::from_secs(60);
/// How often opening a socket is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// No message of IGMP or MLD is longer than a frame.
const FRAME: usize = 9_216;

/// A family of an interface.
type LinkFamily = (Ifindex, bool);

/// The packets that a reader has read.
struct Burst {
    family: LinkFamily,
    /// The number of the socket.
    socket: u64,
    read: Result<Vec<Received>, io::Error>,
}

/// A socket and its reader.
struct Open {
    socket: Arc<GroupSocket>,
    number: u64,
    reader: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The task that runs the routers.
pub(super) struct Driver {
    listeners: Listeners,
    record: Record,
    events: Events,
    listening: watch::Sender<Arc<Listening>>,
    links: BTreeMap<Ifindex, Link>,
    has_begun: bool,
    open: BTreeMap<LinkFamily, Open>,
    sockets: u64,
    bursts: (mpsc::Sender<Burst>, mpsc::Receiver<Burst>),
    queriers: BTreeMap<LinkFamily, Querier>,
    refused: u64,
    barred: u64,
    publish_at: Option<Instant>,
    save_at: Option<Instant>,
    retry_at: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        listeners: Listeners,
        record: Record,
        events: Events,
        listening: watch::Sender<Arc<Listening>>,
    ) -> Self {
        Self {
            listeners,
            record,
            events,
            listening,
            links: BTreeMap::new(),
            has_begun: false,
            open: BTreeMap::new(),
            sockets: 0,
            bursts: mpsc::channel(BURSTS),
            queriers: BTreeMap::new(),
            refused: 0,
            barred: 0,
            publish_at: None,
            save_at: None,
            retry_at: None,
        }
    }

    pub(super) async fn run(mut self, mut input: watch::Receiver<DriverInput>) {
        loop {
            let due = self.due();
            tokio::select! {
                changed = input.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let (links, recorded) = {
                        let input = input.borrow_and_update();
                        (input.links.clone(), input.recorded.clone())
                    };
                    let to_restore = recorded.filter(|_| !self.has_begun);
                    self.has_begun = true;
                    self.set_links(links, &to_restore.unwrap_or_default());
                }
                Some(burst) = self.bursts.1.recv() => self.receive(burst),
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                    // Packets waiting in the sockets arrived before the timers that expire now.
                    yield_now().await;
                    while let Ok(burst) = self.bursts.1.try_recv() {
                        self.receive(burst);
                    }
                }
            }
            self.do_due_work();
        }
    }

    fn due(&self) -> Option<Instant> {
        let router = self
            .listeners
            .lock()
            .values()
            .flat_map(|routers| [&routers.ipv4, &routers.ipv6])
            .filter_map(Router::due)
            .min();
        [router, self.publish_at, self.save_at, self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn do_due_work(&mut self) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.open_all(now);
        }
        self.poll(now);
        if self.publish_at.is_some_and(|at| at <= now) {
            self.publish_at = None;
            self.publish();
            let soon = now + SAVE;
            self.save_at = Some(self.save_at.map_or(soon, |at| at.min(soon)));
        }
        if self.save_at.is_some_and(|at| at <= now) {
            self.save_at = (!self.links.is_empty()).then_some(now + SAVE_AGAIN);
            let (record, listeners) = (self.record.clone(), self.listeners.clone());
            spawn_blocking(move || record.write(&listeners.lock()));
        }
    }

    /// Polls every router, and sends their messages.
    fn poll(&mut self, now: Instant) {
        let mut outputs = Vec::new();
        let mut has_changed = false;
        let (mut refused, mut barred) = (0, 0);
        {
            let mut all = self.listeners.lock();
            for (index, routers) in all.iter_mut() {
                for ipv4 in [true, false] {
                    let router = routers.of_mut(ipv4);
                    router.poll(now);
                    has_changed |= router.has_changed();
                    refused += router.refused();
                    barred += router.barred();
                    let family = (*index, ipv4);
                    outputs.push((family, router.own(), router.outbox(), router.querier()));
                }
            }
        }
        for (family, own, messages, querier) in outputs {
            self.send(family, own, &messages);
            self.publish_querier(family, querier);
        }
        if refused > self.refused {
            let more = count(refused - self.refused);
            self.publish_refused(format!(
                "no room for {more} more of what hosts listen to: groups, sources or hosts; somebody \
                 sends reports of too many"
            ));
            self.refused = refused;
        }
        if barred > self.barred {
            let more = count(barred - self.barred);
            self.publish_refused(format!(
                "{more} more of what hosts listen to is refused: listeners of the outputs do not permit \
                 the host, or no more groups"
            ));
            self.barred = barred;
        }
        if has_changed {
            self.publish_at.get_or_insert(now + GATHER);
        }
    }

    fn send(&self, family: LinkFamily, own: Option<IpAddr>, messages: &[RouterMessage]) {
        let (Some(own), Some(open)) = (own, self.open.get(&family)) else {
            return;
        };
        for message in messages {
            let Some((to, packet)) = codec::write(own, message) else {
                continue;
            };
            if let Err(error) = open.socket.send(packet::craft::group_mac(to), &packet) {
                let interface = family.0.0;
                tracing::debug!(%error, interface, "cannot send a query");
            }
        }
    }

    fn publish_querier(&mut self, family: LinkFamily, querier: Querier) {
        let previous = self
            .queriers
            .insert(family, querier)
            .unwrap_or(Querier::Nobody);
        let Some(link) = self.links.get(&family.0).filter(|_| previous != querier) else {
            return;
        };
        let (name, protocol) = (&link.name, if family.1 { "IGMP" } else { "MLD" });
        let who = match querier {
            Querier::Own(address) => format!("this relay asks who listens, as {address}"),
            Querier::Other(address) => format!("{address} asks who listens"),
            Querier::Nobody => "nobody asks who listens".to_owned(),
        };
        let message = format!("interface {name}: {protocol}: {who}");
        self.events
            .publish(events::event(events::kind::QUERIER_CHANGED, name, message));
    }

    fn publish_refused(&self, message: String) {
        self.events.publish(events::event(
            events::kind::LISTENERS_REFUSED,
            "daemon",
            message,
        ));
    }

    fn publish(&self) {
        let all = self.listeners.lock();
        let before = self.listening.borrow().clone();
        let links = all.iter().map(|(index, routers)| {
            let (ipv4, ipv6) = (routers.ipv4.wanted(), routers.ipv6.wanted());
            let groups: Groups = ipv4
                .iter()
                .chain(ipv6)
                .map(|(g, f)| (*g, f.clone()))
                .collect();
            let same = before.0.get(index).filter(|before| ***before == groups);
            (*index, same.cloned().unwrap_or_else(|| Arc::new(groups)))
        });
        let listening = Listening(links.collect());
        drop(all);
        self.listening.send_if_modified(|published| {
            let differs = **published != listening;
            *published = Arc::new(listening);
            differs
        });
    }

    fn receive(&mut self, burst: Burst) {
        let family = burst.family;
        let open = self.open.get(&family);
        if open.is_none_or(|open| open.number != burst.socket) {
            return;
        }
        let now = Instant::now();
        match burst.read {
            Ok(messages) => {
                let own = self.links.get(&family.0).map(|link| &link.addresses);
                let is_own = |from: &IpAddr| own.is_some_and(|own| own.contains(from));
                if let Some(routers) = self.listeners.lock().get_mut(&family.0) {
                    let router = routers.of_mut(family.1);
                    for message in messages.iter().filter(|message| !is_own(&message.from)) {
                        router.receive(now, message);
                    }
                }
            }
            Err(error) => {
                // The link went down, or it was removed and another one has its index: a notification
                // follows soon.
                tracing::debug!(%error, interface = family.0.0, "does not hear who listens");
                self.open.remove(&family);
                self.retry_at.get_or_insert(now + RETRY);
            }
        }
    }

    fn set_links(&mut self, links: Links, recorded: &Listening) {
        let now = Instant::now();
        {
            let mut all = self.listeners.lock();
            all.retain(|index, _| links.0.contains_key(index));
            for (index, link) in &links.0 {
                let routers = all.entry(*index).or_insert_with(|| Routers {
                    name: link.name.clone(),
                    ipv4: Router::default(),
                    ipv6: Router::default(),
                    problem: None,
                });
                routers.name.clone_from(&link.name);
                for ipv4 in [true, false] {
                    let router = routers.of_mut(ipv4);
                    router.set(now, link.setting(ipv4));
                    if let Some(groups) = recorded.0.get(index) {
                        router.restore(now, groups, ipv4);
                    }
                }
            }
        }
        for ((index, ipv4), open) in &self.open {
            // Switches need not send reports here any longer (RFC 4286 section 5).
            let is_removed = !links.0.contains_key(index);
            let own = self
                .links
                .get(index)
                .and_then(|link| link.setting(*ipv4).own);
            if let Some(own) = own.filter(|_| is_removed)
                && let Some((to, packet)) = codec::write(own, &RouterMessage::Termination)
            {
                let _ = open.socket.send(packet::craft::group_mac(to), &packet);
            }
        }
        self.open
            .retain(|(index, _), _| links.0.contains_key(index));
        self.queriers
            .retain(|(index, _), _| links.0.contains_key(index));
        self.links = links.0;
        self.open_all(now);
        self.publish_at.get_or_insert(now + GATHER);
    }

    /// Opens the sockets that are not open, on links that are up.
    fn open_all(&mut self, now: Instant) {
        let mut closed: Vec<LinkFamily> = Vec::new();
        for (index, link) in self.links.iter().filter(|(_, link)| link.up) {
            for ipv4 in [true, false] {
                let is_used = !link.setting(ipv4).ranges.is_empty();
                if is_used && !self.open.contains_key(&(*index, ipv4)) {
                    closed.push((*index, ipv4));
                }
            }
        }
        for family in closed {
            let problem = self
                .open(family)
                .err()
                .map(|error| format!("cannot hear who listens: {error}"));
            if problem.is_some() {
                self.retry_at.get_or_insert(now + RETRY);
            }
            if let Some(routers) = self.listeners.lock().get_mut(&family.0) {
                if problem.is_none() {
                    // Queries for what was missed meanwhile.
                    routers.of_mut(family.1).renew(now);
                }
                routers.problem = problem;
            }
        }
    }

    fn open(&mut self, family: LinkFamily) -> io::Result<()> {
        let socket = GroupSocket::open(family.0.0, family.1)?;
        // One of tokio's types that waits for any descriptor; `socket` itself reads.
        let duplicate = std::net::UdpSocket::from(socket.as_fd().try_clone_to_owned()?);
        let waiter = UdpSocket::from_std(duplicate)?;
        let socket = Arc::new(socket);
        self.sockets += 1;
        let both = (socket.clone(), waiter);
        let reader = read(both, family, self.sockets, self.bursts.0.clone());
        let open = Open {
            socket,
            number: self.sockets,
            reader: tokio::spawn(reader),
        };
        self.open.insert(family, open);
        Ok(())
    }
}

/// Reads a socket until it fails.
async fn read(
    (socket, waiter): (Arc<GroupSocket>, UdpSocket),
    family: LinkFamily,
    number: u64,
    bursts: mpsc::Sender<Burst>,
) {
    let mut buffer = vec![0; FRAME];
    loop {
        let mut messages = Vec::new();
        let result = match waiter.readable().await {
            Ok(()) => waiter.try_io(Interest::READABLE, || {
                read_burst(&socket, &mut buffer, &mut messages)
            }),
            Err(error) => Err(error),
        };
        let read = match result {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(messages),
        };
        let has_failed = read.is_err();
        let burst = Burst {
            family,
            socket: number,
            read,
        };
        if bursts.send(burst).await.is_err() || has_failed {
            return;
        }
    }
}

/// Reads up to a burst; `WouldBlock` if there were fewer packets.
fn read_burst(
    socket: &GroupSocket,
    buffer: &mut [u8],
    messages: &mut Vec<Received>,
) -> io::Result<()> {
    for _ in 0..BURST {
        let length = socket.receive(buffer)?.ok_or(io::ErrorKind::WouldBlock)?;
        // Packets without a valid message are ignored.
        messages.extend(codec::read(&buffer[..length]));
    }
    Ok(())
}
