//! Drops of devices and their queues behind MCR, and whom bridges pass copies on to: read once a second
//! while it relays and on request, and reported when they begin and end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};

use api::reply::{EgressStats, Event};
use compile::host::{Host, Interface};
use host::bridge::Members;
use host::{EgressCounters, connect, read_egress};
use parking_lot::Mutex;
use rtnetlink::Handle;
use rules::net::Ifindex;
use rules::printable::{count, things};

use crate::alarms::{Alarm, Alarms, Row};
use crate::events::event;
use crate::events::kind::{DROPS_BEGAN, DROPS_ENDED, OUTPUT_HEARD, OUTPUT_UNHEARD};
use crate::view::View;

/// Time between two readings, a little less than that of two samples so that every other sample reads.
const INTERVAL_NS: u64 = 900_000_000;
/// The same while nothing is relayed and nothing is requested.
const IDLE_INTERVAL_NS: u64 = 9_900_000_000;

type Counter = fn(&EgressCounters) -> u64;

/// What drops: its counter, the message, and the remedy.
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
/// For this many readings with drops a link may send next to nothing.
const REFUSALS: u32 = 2;
const LINK: &str = "look at ip -s -s link show {} and at what it is connected to";
const QUEUE: &str =
    "look at tc -s qdisc show dev {}; lengthen the queue, raise its rate, or send less";

/// Packets that are dropped at an interface, and the index in [`BY`] of what drops them.
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
        let packets = count(*packets);
        format!("{what} behind MCR, {packets} so far; {others}: {remedy}")
    },
    remedy: "",
    ends: Some((DROPS_ENDED, |(_, by), standing| {
        format!("no longer {}: {}", BY[*by].1, standing.total())
    })),
    stands: None,
};

/// For this many readings a group may have no members.
const UNHEARD: u64 = 2;

/// An output's group that nobody has joined behind the bridge that it leaves by: for how many readings, and
/// the output.
pub(crate) static NOBODY: Row<(u64, String)> = Row {
    faults: &["nobody behind a snooping bridge joins what an output sends there"],
    metrics: &["mcr_output_unheard"],
    kind: OUTPUT_UNHEARD,
    condition: |(readings, _)| (*readings, Alarm::above(UNHEARD)),
    begins: |(_, output)| format!("output {output} reaches nobody: {NO_PORT}"),
    remedy: "",
    ends: Some((OUTPUT_HEARD, |(_, output), _| {
        format!("output {output}: somebody behind the bridge has joined it")
    })),
    stands: None,
};
const NO_PORT: &str = "nobody behind the bridge that it leaves by has joined it; have the receiver join it \
                       (bridge mdb show lists who has), or take the output away";

/// The devices that outputs leave by.
#[derive(Clone, Debug, Default)]
pub(super) struct Egress(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    handle: Option<Handle>,
    read_ns: u64,
    /// The view that the links are from.
    view: Weak<View>,
    links: BTreeSet<Ifindex>,
    counted: BTreeMap<Ifindex, EgressCounters>,
    alarms: Alarms<(Ifindex, usize)>,
    /// Links that send next to nothing of what they are handed: for how many readings, and the packets that
    /// they dropped meanwhile.
    refuse: BTreeMap<Ifindex, (u32, u64)>,
    /// Groups that nobody behind a bridge has joined: for how many readings.
    unheard: BTreeMap<(Ifindex, IpAddr), u64>,
    nobody: Alarms<(Ifindex, IpAddr)>,
}

impl Egress {
    /// Opens a netlink socket if there is none; until then there are no device counters. If it cannot be
    /// opened, the host's follower reports it.
    pub(super) fn connect(&self) {
        let mut inner = self.0.lock();
        if inner.handle.is_none() {
            inner.handle = connect().ok();
        }
    }

    /// Reads the drops if that is due, which is rarely the case while the relay `is_idle`; returns the
    /// resulting events.
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
            Ok(counted) => {
                let mut inner = self.0.lock();
                let mut events = inner.note_unheard(now_ns, &counted, view);
                events.extend(inner.record(now_ns, counted, &view.host));
                events
            }
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

    /// Why outputs on a link are degraded, if it sends next to nothing.
    pub(super) fn refusal(&self, link: &Interface) -> Option<String> {
        let (readings, dropped) = *self.0.lock().refuse.get(&link.index)?;
        let name = &link.name;
        (readings >= REFUSALS).then(|| {
            format!(
                "{name} drops what it is handed, {} so far: {}",
                things(dropped, "packet"),
                LINK.replace("{}", name)
            )
        })
    }

    /// Why copies to a group reach nobody behind the bridge that they leave by.
    pub(super) fn unheard(&self, link: Ifindex, group: IpAddr) -> Option<&'static str> {
        let readings = self.0.lock().unheard.get(&(link, group)).copied();
        let is_sure = readings.is_some_and(|readings| readings > UNHEARD);
        is_sure.then_some(NO_PORT)
    }
}

impl Inner {
    /// Takes the links from the view, if it is a new one.
    fn follow(&mut self, view: &Arc<View>) {
        let now = Arc::downgrade(view);
        if self.view.ptr_eq(&now) {
            return;
        }
        self.view = now;
        let outputs = view.states.values().flat_map(|state| &state.rule.outputs);
        self.links = outputs.filter_map(|output| output.link).collect();
    }

    /// Records counters; drops from before a link came into use are not reported.
    fn record(
        &mut self,
        now_ns: u64,
        counted: BTreeMap<Ifindex, EgressCounters>,
        host: &Host,
    ) -> Vec<Event> {
        let reading = |link: &Ifindex, by: usize| {
            let counters = counted.get(link).zip(self.counted.get(link));
            let of = BY[by].0;
            let packets = counters.map(|(now, before)| of(now).saturating_sub(of(before)));
            (packets.unwrap_or_default(), by)
        };
        let all = counted
            .keys()
            .flat_map(|link| [0, 1, 2].map(|by| (*link, by)));
        let levels = all.map(|(link, by)| ((link, by), (DROPS.condition)(&reading(&link, by))));
        let edges = self.alarms.sample(now_ns, levels).into_iter();
        let drops = edges.filter_map(|((link, by), edge)| {
            let name = &host.interfaces.get(&link)?.name;
            let (kind, template) = DROPS.report(&reading(&link, by), &edge)?;
            let what = template.replace("{}", name);
            Some(Event {
                part: Some(BY[by].1.to_owned()),
                ..event(kind, name, format!("interface {name}: {what}"))
            })
        });
        let events = drops.collect();
        self.note_refusals(&counted);
        self.counted = counted;
        events
    }

    /// Records which groups of outputs have no members behind bridges.
    fn note_unheard(
        &mut self,
        now_ns: u64,
        counted: &BTreeMap<Ifindex, EgressCounters>,
        view: &View,
    ) -> Vec<Event> {
        let prunes = |link: &Ifindex, ipv4: bool| {
            let bridge = counted.get(link).and_then(|counted| counted.bridge);
            bridge.is_some_and(|bridge| bridge.prunes(ipv4))
        };
        let any_prunes = counted
            .keys()
            .any(|link| prunes(link, true) || prunes(link, false));
        let Some(members) = any_prunes.then(Members::read).flatten() else {
            self.unheard.clear();
            self.nobody = Alarms::default();
            return Vec::new();
        };
        let rules = view
            .rules
            .iter()
            .zip(view.states.values())
            .filter(|(rule, _)| rule.enabled);
        let outputs = rules.flat_map(|(rule, state)| {
            let outputs = rule.outputs.iter().zip(&state.rule.outputs);
            outputs.map(|(spec, output)| (rule.name.as_str(), spec, output))
        });
        let pruned = outputs.filter_map(|(rule, spec, output)| {
            let (group, link) = (spec.to.destination.address, output.link?);
            let is_sent = output.down.is_none() && output.wanted.is_none();
            let is_one = spec.to.is_multicast() && spec.to.destination.is_host();
            let is_pruned =
                is_sent && is_one && !is_flooded(group) && prunes(&link, group.is_ipv4());
            is_pruned.then(|| ((link, group), (rule, &*output.to)))
        });
        let sent: BTreeMap<(Ifindex, IpAddr), (&str, &str)> = pruned.collect();
        let before = std::mem::take(&mut self.unheard);
        self.unheard = sent
            .keys()
            .filter(|(link, group)| !members.has(*link, *group, &view.host))
            .map(|at| (*at, before.get(at).map_or(1, |readings| readings + 1)))
            .collect();
        let reading = |at: &(Ifindex, IpAddr)| {
            (
                self.unheard.get(at).copied().unwrap_or(0),
                sent[at].1.to_owned(),
            )
        };
        let levels = sent
            .keys()
            .map(|at| (*at, (NOBODY.condition)(&reading(at))));
        let edges = self.nobody.sample(now_ns, levels).into_iter();
        let events = edges.filter_map(|(at, edge)| {
            let (rule, output) = sent.get(&at)?;
            let (kind, what) = NOBODY.report(&reading(&at), &edge)?;
            Some(Event {
                part: Some((*output).to_owned()),
                ..event(kind, rule, format!("rule {rule:?}: {what}"))
            })
        });
        events.collect()
    }

    /// Records links that refuse packets; one that was handed nothing since keeps its state.
    fn note_refusals(&mut self, counted: &BTreeMap<Ifindex, EgressCounters>) {
        self.refuse.retain(|link, _| counted.contains_key(link));
        for (link, now) in counted {
            let Some(before) = self.counted.get(link) else {
                continue;
            };
            let lost = |of: &EgressCounters| of.device_dropped + of.device_errors;
            let dropped = lost(now).saturating_sub(lost(before));
            let sent = now.sent.saturating_sub(before.sent);
            // More than nine of ten: other traffic of the host may still leave.
            if dropped > 9 * sent {
                let (readings, all) = self.refuse.entry(*link).or_default();
                (*readings, *all) = (*readings + 1, *all + dropped);
            } else if sent > 0 {
                self.refuse.remove(link);
            }
        }
    }
}

/// Whether bridges flood a group, whoever has joined it (RFC 4541, 2.1.2 and 3).
fn is_flooded(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(group) => group == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    }
}
