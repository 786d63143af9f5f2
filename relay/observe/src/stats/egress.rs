//! What devices and their queues drop behind MCR, read once a second while it relays and when somebody
//! asks, and when that begins and ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use api::reply::{EgressStats, Event};
use compile::host::{Host, Interface};
use host::{EgressCounters, connect, read_egress};
use parking_lot::Mutex;
use rtnetlink::Handle;
use rules::net::Ifindex;

use crate::alarms::{Alarm, Alarms, Row};
use crate::events::event;
use crate::events::kind::{DROPS_BEGAN, DROPS_ENDED};
use crate::view::View;

/// Time between two readings, a little less than two samples' so that every other one reads.
const INTERVAL_NS: u64 = 900_000_000;
/// The same while nothing is relayed and nobody asks.
const IDLE_INTERVAL_NS: u64 = 9_900_000_000;

type Counter = fn(&EgressCounters) -> u64;

/// Who drops: its counter, what goes on, and what to do about it.
static BY: [(Counter, &str, &str); 3] = [
    (
        |counted| counted.device_dropped,
        "the device drops packets",
        LINK,
    ),
    (
        |counted| counted.device_errors,
        "the device cannot send packets",
        LINK,
    ),
    (
        |counted| counted.queue_dropped,
        "its queue drops packets",
        QUEUE,
    ),
];
/// For so many readings in which packets were dropped a link may send next to nothing.
const REFUSALS: u32 = 2;
const LINK: &str = "look at ip -s -s link show {} and at what it is connected to";
const QUEUE: &str =
    "look at tc -s qdisc show dev {}; lengthen the queue, raise its rate, or send less";

/// Packets that are dropped, and by whom, at an interface.
pub(crate) static DROPS: Row<(u64, usize)> = Row {
    faults: &["a queue or device drops behind MCR"],
    metrics: &[
        "mcr_egress_device_dropped_packets_total",
        "mcr_egress_device_errors_total",
        "mcr_egress_queue_dropped_packets_total",
    ],
    kind: DROPS_BEGAN,
    condition: |(packets, _)| (*packets, Alarm::growth()),
    begins: |(packets, by)| {
        let (_, what, remedy) = BY[*by];
        let others = "those of rules may be among them";
        format!("{what} behind MCR, {packets} so far; {others}: {remedy}")
    },
    remedy: "",
    ends: Some((DROPS_ENDED, |(_, by), standing| {
        format!("no longer {}: {}", BY[*by].1, standing.total())
    })),
    stands: None,
};

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
    alarms: Alarms<(Ifindex, usize)>,
    /// Links that send next to nothing of what they are handed: for how many readings, and how much they
    /// dropped meanwhile.
    refuse: BTreeMap<Ifindex, (u32, u64)>,
}

impl Egress {
    /// Opens a netlink socket where there is none; until then nothing is known of devices. Where it cannot
    /// be opened the host's follower complains.
    pub(super) fn connect(&self) {
        let mut inner = self.0.lock();
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
            let mut inner = self.0.lock();
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
            Ok(counted) => self.0.lock().take(now_ns, counted, &view.host),
            Err(error) => {
                tracing::debug!(%error, "cannot read what devices drop");
                self.0.lock().handle = None;
                Vec::new()
            }
        }
    }

    pub(super) fn stats(&self, host: &Host) -> Vec<EgressStats> {
        let inner = self.0.lock();
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

    /// Why an output is degraded that leaves by a link which sends next to nothing.
    pub(super) fn refusal(&self, link: &Interface) -> Option<String> {
        let (readings, dropped) = *self.0.lock().refuse.get(&link.index)?;
        let name = &link.name;
        (readings >= REFUSALS).then(|| {
            format!(
                "{name} drops what it is handed, {dropped} packets so far: {}",
                LINK.replace("{}", name)
            )
        })
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

    /// What had been dropped when a link came into use is not reported.
    fn take(
        &mut self,
        now_ns: u64,
        counted: BTreeMap<Ifindex, EgressCounters>,
        host: &Host,
    ) -> Vec<Event> {
        let read = |link: &Ifindex, by: usize| {
            let counters = counted.get(link).zip(self.counted.get(link));
            let of = BY[by].0;
            let packets = counters.map(|(now, before)| of(now).saturating_sub(of(before)));
            (packets.unwrap_or_default(), by)
        };
        let all = counted
            .keys()
            .flat_map(|link| [0, 1, 2].map(|by| (*link, by)));
        let levels = all.map(|(link, by)| ((link, by), (DROPS.condition)(&read(&link, by))));
        let turns = self.alarms.sample(now_ns, levels).into_iter();
        let events = turns.filter_map(|((link, by), turn)| {
            let name = &host.interfaces.get(&link)?.name;
            let (kind, what) = DROPS.told(&read(&link, by), &turn)?;
            let what = what.replace("{}", name);
            Some(Event {
                part: Some(BY[by].1.to_owned()),
                ..event(kind, name, format!("interface {name}: {what}"))
            })
        });
        let events = events.collect();
        self.note_refusals(&counted);
        self.counted = counted;
        events
    }

    /// Of a link that was handed nothing since nothing new is known.
    fn note_refusals(&mut self, counted: &BTreeMap<Ifindex, EgressCounters>) {
        self.refuse.retain(|link, _| counted.contains_key(link));
        for (link, now) in counted {
            let Some(before) = self.counted.get(link) else {
                continue;
            };
            let lost = |of: &EgressCounters| of.device_dropped + of.device_errors;
            let dropped = lost(now).saturating_sub(lost(before));
            let sent = now.sent.saturating_sub(before.sent);
            // Nine of ten: what else a host sends there may leave.
            if dropped > 9 * sent {
                let (readings, all) = self.refuse.entry(*link).or_default();
                (*readings, *all) = (*readings + 1, *all + dropped);
            } else if sent > 0 {
                self.refuse.remove(link);
            }
        }
    }
}
