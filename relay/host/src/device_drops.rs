//! Drops behind MCR: what devices and their queues drop of all packets that this host hands to them.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use rules::net::Ifindex;

use super::Error;
use super::bridge::Bridge;

/// Packets that a device and its queue sent and did not send, since the device exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressCounters {
    /// Packets that the device sent.
    pub sent: u64,
    /// Packets that the device dropped (`tx_dropped`); for the loopback interface also those that the
    /// host did not receive (`rx_dropped`), mostly because of a full backlog.
    pub device_dropped: u64,
    /// Packets that it could not send (`tx_errors`).
    pub device_errors: u64,
    /// Packets that its queueing discipline dropped; the kernel's counter has 32 bits.
    pub queue_dropped: u64,
    /// How it treats multicast, if it is a bridge.
    pub bridge: Option<Bridge>,
}

/// Reads the counters of these links; links that do not exist are omitted.
///
/// # Errors
/// The kernel's answer, if it refuses the list of queueing disciplines.
pub async fn read_egress(
    handle: &Handle,
    links: &BTreeSet<Ifindex>,
) -> Result<BTreeMap<Ifindex, EgressCounters>, Error> {
    let mut all = BTreeMap::new();
    for link in links {
        let answer = handle.link().get().match_index(link.0).execute();
        // The kernel answers with an error if there is no such link.
        if let Ok(Some(message)) = Box::pin(answer).try_next().await {
            all.insert(*link, of_link(&message));
        }
    }
    if all.is_empty() {
        return Ok(all);
    }
    let dump = |source| Error::Dump {
        what: "queueing disciplines",
        source,
    };
    let request = handle.qdisc().get().execute();
    let qdiscs: Vec<TcMessage> = request.try_collect().await.map_err(dump)?;
    // The root includes its classes and the queues of a device with several.
    for qdisc in qdiscs
        .iter()
        .filter(|qdisc| qdisc.header.parent == TcHandle::ROOT)
    {
        let link = Ifindex(qdisc.header.index as u32);
        if let Some(counters) = all.get_mut(&link) {
            counters.queue_dropped += of_queue(qdisc);
        }
    }
    Ok(all)
}

fn of_link(message: &LinkMessage) -> EgressCounters {
    let loops = message.header.flags.contains(LinkFlags::Loopback);
    let stats = first!(message.attributes, LinkAttribute::Stats64(stats) => stats);
    stats.map_or_else(EgressCounters::default, |stats| EgressCounters {
        sent: stats.tx_packets,
        device_dropped: stats.tx_dropped + if loops { stats.rx_dropped } else { 0 },
        device_errors: stats.tx_errors,
        queue_dropped: 0,
        bridge: Bridge::of(message),
    })
}

fn of_queue(message: &TcMessage) -> u64 {
    let stats = first!(message.attributes, TcAttribute::Stats2(stats) => stats);
    let queues = stats.into_iter().flatten().filter_map(|part| match part {
        TcStats2::Queue(queue) => Some(u64::from(queue.drops)),
        _ => None,
    });
    queues.sum()
}
