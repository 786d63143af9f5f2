//! What devices and their queues drop behind MCR, read once a second while it relays and when somebody
//! asks, and when that begins and ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use api::reply::{EgressStats, Event};
use model::host::Host;
use model::net::Ifindex;
use rtnetlink::Handle;

use super::growth::{Ended, Growth};
use crate::events::{egress_drops_began, egress_drops_ended};
use crate::host::{EgressCounters, connect, read_egress};
use crate::view::View;

/// Time between two readings, a little less than two samples' so that every other one reads.
const INTERVAL_NS: u64 = 900_000_000;
/// The same while nothing is relayed and nobody asks.
const IDLE_INTERVAL_NS: u64 = 9_900_000_000;

/// Who dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EgressDrops {
    Device,
    Errors,
    Queue,
}

impl EgressDrops {
    const ALL: [Self; 3] = [Self::Device, Self::Errors, Self::Queue];

    const fn of(self, counters: &EgressCounters) -> u64 {
        match self {
            Self::Device => counters.device_dropped,
            Self::Errors => counters.device_errors,
            Self::Queue => counters.queue_dropped,
        }
    }

    /// What goes on, said of the interface.
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Self::Device => "the device drops packets",
            Self::Errors => "the device cannot send packets",
            Self::Queue => "its queue drops packets",
        }
    }

    /// What to do about it.
    pub(crate) fn remedy(self, interface: &str) -> String {
        match self {
            Self::Device | Self::Errors => {
                format!("look at ip -s -s link show {interface} and at what it is connected to")
            }
            Self::Queue => format!(
                "look at tc -s qdisc show dev {interface}; lengthen the queue, raise its rate, or \
                 send less"
            ),
        }
    }
}

/// The devices that outputs leave by.
#[derive(Clone, Debug, Default)]
pub(super) struct Egress(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    handle: Option<Handle>,
    read_ns: u64,
    /// Of which view the links are.
    view: Weak<View>,
    links: BTreeSet<Ifindex>,
    counted: BTreeMap<Ifindex, EgressCounters>,
    growth: Growth<(Ifindex, EgressDrops)>,
}

impl Egress {
    /// Opens a netlink socket where there is none; until then nothing is known of devices. Where it cannot
    /// be opened the host's follower complains.
    pub(super) fn connect(&self) {
        let mut inner = self.lock();
        if inner.handle.is_none() {
            inner.handle = connect().ok();
        }
    }

    /// Reads what has been dropped, if it is time to, which it is seldom while the relay `is_idle`;
    /// returns the events that follow from it.
    pub(super) async fn sample(&self, now_ns: u64, view: &Arc<View>, is_idle: bool) -> Vec<Event> {
        let interval_ns = if is_idle {
            IDLE_INTERVAL_NS
        } else {
            INTERVAL_NS
        };
        let (handle, links) = {
            let mut inner = self.lock();
            if now_ns.saturating_sub(inner.read_ns) < interval_ns {
                return Vec::new();
            }
            inner.read_ns = now_ns;
            inner.follow(view);
            let Some(handle) = inner.handle.clone() else {
                return Vec::new();
            };
            (handle, inner.links.clone())
        };
        match read_egress(&handle, &links).await {
            Ok(counted) => self.lock().take(now_ns, counted, &view.host),
            Err(error) => {
                tracing::debug!(%error, "cannot read what devices drop");
                self.lock().handle = None;
                Vec::new()
            }
        }
    }

    pub(super) fn stats(&self, host: &Host) -> Vec<EgressStats> {
        let inner = self.lock();
        let stats = inner.counted.iter().filter_map(|(link, counted)| {
            Some(EgressStats {
                interface: host.interfaces.get(link)?.name.clone(),
                device_dropped: counted.device_dropped,
                device_errors: counted.device_errors,
                queue_dropped: counted.queue_dropped,
            })
        });
        stats.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes the links over from a view that is another one than before.
    fn follow(&mut self, view: &Arc<View>) {
        let now = Arc::downgrade(view);
        if self.view.ptr_eq(&now) {
            return;
        }
        self.view = now;
        let outputs = view.states.values().flat_map(|state| &state.rule.outputs);
        self.links = outputs.filter_map(|output| output.link).collect();
    }

    /// What had been dropped when a link came into use is no news.
    fn take(
        &mut self,
        now_ns: u64,
        counted: BTreeMap<Ifindex, EgressCounters>,
        host: &Host,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (index, now) in &counted {
            let (Some(before), Some(link)) = (self.counted.get(index), host.interfaces.get(index))
            else {
                continue;
            };
            for what in EgressDrops::ALL {
                let packets = what.of(now).saturating_sub(what.of(before));
                if self.growth.note(now_ns, (*index, what), packets) {
                    events.push(egress_drops_began(link, what, packets));
                }
            }
        }
        for ((index, what), Ended { packets, over_ns }) in self.growth.take_ended(now_ns) {
            if let Some(link) = host.interfaces.get(&index) {
                events.push(egress_drops_ended(link, what, packets, over_ns));
            }
        }
        self.counted = counted;
        events
    }
}
