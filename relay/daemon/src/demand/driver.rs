//! The sockets and the clock of the routers: one task owns them, and one task for each socket reads.

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

/// Packets that are read of a socket before others get their turn.
const BURST: usize = 64;
/// Bursts that wait; what comes beyond waits in the socket, or is lost.
const BURSTS: usize = 32;
/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(2);
/// How often, at most, what is listened to is written down.
const SAVE: Duration = Duration::from_millis(500);
/// How often it is at least, so that its age tells how long nobody has listened.
const SAVE_AGAIN: Duration = Duration::from_secs(60);
/// How often a socket that cannot be had is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// No message of IGMP or MLD is longer than a frame.
const FRAME: usize = 9_216;

/// A family of an interface.
type LinkFamily = (Ifindex, bool);

/// What a reader has read.
struct Burst {
    family: LinkFamily,
    /// Which of the family's sockets it was.
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

/// What runs.
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

    pub(super) async fn run(mut self, mut told: watch::Receiver<DriverInput>) {
        loop {
            let due = self.due();
            tokio::select! {
                changed = told.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let (links, recorded) = {
                        let told = told.borrow_and_update();
                        (told.links.clone(), told.recorded.clone())
                    };
                    let recorded = recorded.filter(|_| !self.has_begun);
                    self.has_begun = true;
                    self.set_links(links, &recorded.unwrap_or_default());
                }
                Some(burst) = self.bursts.1.recv() => self.take(burst),
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                    // What waits in the sockets came before what runs out now.
                    yield_now().await;
                    while let Ok(burst) = self.bursts.1.try_recv() {
                        self.take(burst);
                    }
                }
            }
            self.do_due_work();
        }
    }

    fn due(&self) -> Option<Instant> {
        let routers = self.listeners.lock();
        let routers = routers
            .values()
            .flat_map(|routers| [&routers.ipv4, &routers.ipv6]);
        let routers = routers.filter_map(Router::due).min();
        [routers, self.publish_at, self.save_at, self.retry_at]
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

    /// Lets every router do what is due, and sends what they say.
    fn poll(&mut self, now: Instant) {
        let mut said = Vec::new();
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
                    said.push((family, router.own(), router.outbox(), router.querier()));
                }
            }
        }
        for (family, own, messages, querier) in said {
            self.send(family, own, &messages);
            self.tell_querier(family, querier);
        }
        if refused > self.refused {
            let more = count(refused - self.refused);
            self.tell_refused(format!(
                "no room for {more} more of what hosts listen to: groups, sources or hosts; somebody \
                 sends reports of too many"
            ));
            self.refused = refused;
        }
        if barred > self.barred {
            let more = count(barred - self.barred);
            self.tell_refused(format!(
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
            let to = packet::craft::group_mac(to);
            if let Err(error) = open.socket.send(to, &packet) {
                let interface = family.0.0;
                tracing::debug!(%error, interface, "cannot send a query");
            }
        }
    }

    fn tell_querier(&mut self, family: LinkFamily, querier: Querier) {
        let before = self
            .queriers
            .insert(family, querier)
            .unwrap_or(Querier::Nobody);
        let Some(link) = self.links.get(&family.0).filter(|_| before != querier) else {
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

    fn tell_refused(&self, message: String) {
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
        self.listening.send_if_modified(|known| {
            let differs = **known != listening;
            *known = Arc::new(listening);
            differs
        });
    }

    fn take(&mut self, burst: Burst) {
        let Burst {
            family,
            socket,
            read,
        } = burst;
        if self
            .open
            .get(&family)
            .is_none_or(|open| open.number != socket)
        {
            return;
        }
        let now = Instant::now();
        match read {
            Ok(heard) => {
                let own = self.links.get(&family.0).map(|link| &link.addresses);
                let is_own = |heard: &Received| own.is_some_and(|own| own.contains(&heard.from));
                if let Some(routers) = self.listeners.lock().get_mut(&family.0) {
                    let router = routers.of_mut(family.1);
                    heard
                        .iter()
                        .filter(|heard| !is_own(heard))
                        .for_each(|h| router.heard(now, h));
                }
            }
            Err(error) => {
                // The link went down, or it is gone and another one has its number: a notification
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
            // A switch need send no reports here any more (RFC 4286 section 5).
            let is_gone = !links.0.contains_key(index);
            let own = self
                .links
                .get(index)
                .and_then(|link| link.setting(*ipv4).own);
            if let Some(own) = own.filter(|_| is_gone)
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

    /// Opens what is not open, on links that are up.
    fn open_all(&mut self, now: Instant) {
        let links = self.links.iter().filter(|(_, link)| link.up);
        let families = links.flat_map(|(index, link)| {
            [true, false].map(|ipv4| ((*index, ipv4), link.setting(ipv4)))
        });
        let used = families.filter(|(_, setting)| !setting.ranges.is_empty());
        let families = used.map(|(family, _)| family);
        let families: Vec<LinkFamily> = families
            .filter(|family| !self.open.contains_key(family))
            .collect();
        for family in families {
            let opened = self.open(family);
            let problem = opened
                .err()
                .map(|error| format!("cannot hear who listens: {error}"));
            if problem.is_some() {
                self.retry_at.get_or_insert(now + RETRY);
            }
            if let Some(routers) = self.listeners.lock().get_mut(&family.0) {
                if problem.is_none() {
                    // Whatever was missed meanwhile is asked for.
                    routers.of_mut(family.1).renew(now);
                }
                routers.problem = problem;
            }
        }
    }

    fn open(&mut self, family: LinkFamily) -> io::Result<()> {
        let socket = GroupSocket::open(family.0.0, family.1)?;
        // Of tokio's types one that waits for any descriptor; what comes is read by `socket` itself.
        let waiter = std::net::UdpSocket::from(socket.as_fd().try_clone_to_owned()?);
        let waiter = UdpSocket::from_std(waiter)?;
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
        let mut heard = Vec::new();
        let read = match waiter.readable().await {
            Ok(()) => waiter.try_io(Interest::READABLE, || {
                read_burst(&socket, &mut buffer, &mut heard)
            }),
            Err(error) => Err(error),
        };
        let read = match read {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(heard),
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

/// Reads a burst, or what there is of it: then it would block.
fn read_burst(
    socket: &GroupSocket,
    buffer: &mut [u8],
    heard: &mut Vec<Received>,
) -> io::Result<()> {
    for _ in 0..BURST {
        let length = socket.receive(buffer)?;
        let length = length.ok_or(io::ErrorKind::WouldBlock)?;
        // What says nothing is nobody's business.
        heard.extend(codec::read(&buffer[..length]));
    }
    Ok(())
}
