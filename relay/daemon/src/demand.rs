//! Outputs on demand: the listeners on their interfaces, by IGMP and MLD.
//!
//! `igmp` decides and does no I/O; `driver` has the sockets and the clock. The groups with listeners go to
//! the supervisor as one value, rebuilt with each change; the listening hosts are read from the routers.

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

/// The pause before the next change, as a multiple of the time the last one took: many changes leave most
/// of the time to other work.
const REST: u32 = 4;

/// The interfaces that outputs on demand lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links(pub(crate) BTreeMap<Ifindex, Link>);

/// The supervisor's input to the driver.
#[derive(Debug, Default)]
struct DriverInput {
    links: Links,
    /// What was listened to before this process started; `None` until the supervisor has read it.
    recorded: Option<Arc<Listening>>,
}

/// An interface that outputs on demand lead to.
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

    /// Adds an output.
    pub(crate) fn add(&mut self, range: Prefix, may_ask: bool, listeners: Option<&Admission>) {
        self.ranges.insert(range);
        // The default admits every host.
        self.listeners
            .push((range, listeners.cloned().unwrap_or_default()));
        self.may_ask |= may_ask;
    }

    /// The configuration of one family's router.
    fn setting(&self, ipv4: bool) -> Setting {
        let own = own_address(&self.addresses, ipv4);
        let is_of_family = |range: &Prefix| range.address.is_ipv4() == ipv4;
        let mut listeners = Vec::new();
        let is_default = |admission: &Admission| *admission == Admission::default();
        if !self
            .listeners
            .iter()
            .all(|(_, admission)| is_default(admission))
        {
            listeners.clone_from(&self.listeners);
            listeners.retain(|(range, _)| is_of_family(range));
        }
        Setting {
            own: own.filter(|_| self.up),
            may_ask: self.may_ask,
            ranges: self.ranges.iter().copied().filter(is_of_family).collect(),
            listeners,
        }
    }
}

/// The address, of those of an interface, that messages of IGMP or MLD are sent from.
pub(crate) fn own_address(addresses: &[IpAddr], ipv4: bool) -> Option<IpAddr> {
    let mut addresses = addresses.iter().copied();
    addresses.find(|address| match address {
        IpAddr::V4(_) => ipv4,
        // MLD is link-local (RFC 3810 section 5).
        IpAddr::V6(address) => !ipv4 && address.is_unicast_link_local(),
    })
}

/// Removes the record of an ended daemon.
pub(crate) fn cleanup(directory: &Path) {
    Record::new(directory).remove();
}

/// The supervisor's end of the driver.
#[derive(Debug)]
pub(crate) struct Demand {
    input: watch::Sender<DriverInput>,
    recorded: Arc<Listening>,
    listening: watch::Receiver<Arc<Listening>>,
    listeners: Listeners,
    record: Record,
    rest_until: Instant,
}

impl Demand {
    /// Starts the driver, which is idle until interfaces are set.
    pub(crate) fn start(directory: &Path, events: Events) -> Self {
        let (input, driver_input) = watch::channel(DriverInput::default());
        let (sender, listening) = watch::channel(Arc::default());
        let listeners = Listeners::default();
        let record = Record::new(directory);
        let driver = Driver::new(listeners.clone(), record.clone(), events, sender);
        abort_on_panic::spawn(driver.run(driver_input));
        Self {
            input,
            recorded: Arc::default(),
            listening,
            listeners,
            record,
            rest_until: Instant::now(),
        }
    }

    /// The listening hosts.
    pub(crate) const fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Restores what was listened to on this host's interfaces when an earlier daemon last ran.
    pub(crate) fn restore(&mut self, host: &Host) -> Listening {
        let recorded = self.record.read(host);
        self.recorded = Arc::new(recorded.clone());
        recorded
    }

    /// Sets the interfaces.
    pub(crate) fn set_links(&self, links: Links) {
        self.input.send_if_modified(|input| {
            let differs = input.recorded.is_none() || input.links != links;
            input.links = links;
            input
                .recorded
                .get_or_insert_with(|| Arc::clone(&self.recorded));
            differs
        });
    }

    /// Waits for the next change in what is listened to. Cancel-safe.
    pub(crate) async fn next_change(&mut self) -> Arc<Listening> {
        tokio::time::sleep_until(self.rest_until.into()).await;
        if self.listening.changed().await.is_err() {
            // The driver ends only with the process.
            std::future::pending::<()>().await;
        }
        self.listening.borrow_and_update().clone()
    }

    /// Sets the pause after a change that took this long.
    pub(crate) fn rest_after(&mut self, took: Duration) {
        self.rest_until = Instant::now() + took * REST;
    }

    /// Writes the record of what is listened to, for the next daemon.
    pub(crate) fn save(&self) {
        self.record.write(&self.listeners.lock());
    }

    /// Removes the record.
    pub(crate) fn remove(&self) {
        self.record.remove();
    }
}
