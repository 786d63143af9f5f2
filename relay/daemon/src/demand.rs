//! Outputs on demand: who listens on their interfaces, by IGMP and MLD.
//!
//! `igmp` decides and does no I/O; `driver` has the sockets and the clock. What is listened to
//! goes to the supervisor as one value, made anew with each change; who listens is read where it is kept.

mod driver;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compile::host::{Host, Interface};
use igmp::listeners::Listeners;
use igmp::router::Setting;
use observe::events::Events;
use rules::demand::{Admission, Listening};
use rules::net::{Ifindex, Prefix};
use tokio::sync::watch;

use crate::abort_on_panic;
use driver::Driver;
use record::Record;

/// How much longer than a change takes to carry out the next one waits: a flood of them leaves most of the
/// time to others.
const REST: u32 = 4;

/// The interfaces that outputs on demand lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links(pub(crate) BTreeMap<Ifindex, Link>);

/// What the driver is given.
#[derive(Debug, Default)]
struct DriverInput {
    links: Links,
    /// What was listened to before this process; `None` before the supervisor knows.
    recorded: Option<Arc<Listening>>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    name: String,
    up: bool,
    addresses: Vec<IpAddr>,
    may_ask: bool,
    ranges: BTreeSet<Prefix>,
    listeners: Vec<(Prefix, Admission)>,
}

impl Link {
    pub(crate) fn of(interface: &Interface) -> Self {
        Self {
            name: interface.name.clone(),
            up: interface.up,
            addresses: interface.addresses.clone(),
            may_ask: false,
            ranges: BTreeSet::new(),
            listeners: Vec::new(),
        }
    }

    /// Notes an output.
    pub(crate) fn add(&mut self, range: Prefix, may_ask: bool, listeners: Option<&Admission>) {
        self.ranges.insert(range);
        // One that names nobody permits all.
        self.listeners
            .push((range, listeners.cloned().unwrap_or_default()));
        self.may_ask |= may_ask;
    }

    /// What one family's router has to know.
    fn setting(&self, ipv4: bool) -> Setting {
        let own = self
            .addresses
            .iter()
            .copied()
            .find(|address| match address {
                IpAddr::V4(_) => ipv4,
                // MLD is for the link alone (RFC 3810 section 5).
                IpAddr::V6(address) => !ipv4 && address.is_unicast_link_local(),
            });
        let ranges = self.ranges.iter().copied();
        Setting {
            own: own.filter(|_| self.up),
            may_ask: self.may_ask,
            ranges: ranges
                .filter(|range| range.address.is_ipv4() == ipv4)
                .collect(),
            listeners: match self
                .listeners
                .iter()
                .any(|(_, may)| *may != Admission::default())
            {
                true => self
                    .listeners
                    .iter()
                    .filter(|(range, _)| range.address.is_ipv4() == ipv4)
                    .cloned()
                    .collect(),
                false => Vec::new(),
            },
        }
    }
}

/// Forgets what a daemon that is gone has written down.
pub(crate) fn end_left(directory: &Path) {
    Record::new(directory).remove();
}

/// The supervisor's end of the driver.
#[derive(Debug)]
pub(crate) struct Demand {
    told: watch::Sender<DriverInput>,
    recorded: Arc<Listening>,
    listening: watch::Receiver<Arc<Listening>>,
    listeners: Listeners,
    record: Record,
    rest_until: Instant,
}

impl Demand {
    /// Starts the driver, which has nothing to do until it is given interfaces.
    pub(crate) fn start(directory: &Path, events: Events) -> Self {
        let (sender_of_links, told) = watch::channel(DriverInput::default());
        let (sender, listening) = watch::channel(Arc::default());
        let listeners = Listeners::default();
        let record = Record::new(directory);
        let driver = Driver::new(listeners.clone(), record.clone(), events, sender);
        abort_on_panic::spawn(driver.run(told));
        Self {
            told: sender_of_links,
            recorded: Arc::default(),
            listening,
            listeners,
            record,
            rest_until: Instant::now(),
        }
    }

    /// Who listens.
    pub(crate) const fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Begins with what was listened to on this host's interfaces when a daemon before was there last.
    pub(crate) fn begin(&mut self, host: &Host) -> Listening {
        let recorded = self.record.read(host);
        self.recorded = Arc::new(recorded.clone());
        recorded
    }

    /// Sets the interfaces.
    pub(crate) fn set_links(&self, links: Links) {
        self.told.send_if_modified(|told| {
            let differs = told.recorded.is_none() || told.links != links;
            told.links = links;
            told.recorded
                .get_or_insert_with(|| Arc::clone(&self.recorded));
            differs
        });
    }

    /// Waits until something else is listened to. Nothing is lost if it is called off.
    pub(crate) async fn next_change(&mut self) -> Arc<Listening> {
        tokio::time::sleep_until(self.rest_until.into()).await;
        if self.listening.changed().await.is_err() {
            // The driver ends with the process alone.
            std::future::pending::<()>().await;
        }
        self.listening.borrow_and_update().clone()
    }

    /// Notes how long it took to carry a change out.
    pub(crate) fn carried_out(&mut self, took: Duration) {
        self.rest_until = Instant::now() + took * REST;
    }

    /// Writes down what is listened to, for the next daemon.
    pub(crate) fn save(&self) {
        self.record.write(&self.listeners.lock());
    }

    /// Forgets what is written down.
    pub(crate) fn remove(&self) {
        self.record.remove();
    }
}
