//! Stream health on the userspace path: inspects the packets of watched routes and adds what it
//! found to the shared counters once a batch.
//!
//! A packet's time is that of its batch. Nothing here changes what becomes of a packet.

use model::health::Inspect;
use model::table::RouteKey;
use packet::datagram::{Datagram, Part};
use packet::health::Watch;
use packet::verdict::{DropReason, Verdict};

use crate::counters::HealthCounters;
use crate::inspection::content;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::layout::RuleSlot;
use crate::userspace::shared::messages::CountedRoute;

/// The watched routes, by their index in the table.
#[derive(Default)]
pub(super) struct Watches {
    watched: Vec<Option<Watched>>,
    /// Those that packets of this batch took.
    touched: Vec<u32>,
}

struct Watched {
    rule: RuleSlot,
    inspect: Inspect,
    watch: Watch,
    recorded: HealthCounters,
    is_touched: bool,
}

impl Watches {
    /// Begins to watch a route if it asks for that; one that is watched alike already goes on.
    /// Not hot: it allocates.
    pub(super) fn begin(&mut self, index: u32, key: &RouteKey, counted: &CountedRoute) {
        let Some(inspect) = counted.route.inspect else {
            return self.end(index);
        };
        let at = index as usize;
        if at >= self.watched.len() {
            self.watched.resize_with(at + 1, || None);
        }
        let same = |before: &Watched| before.inspect == inspect && before.rule == counted.rule;
        if self.watched[at].as_ref().is_some_and(same) {
            return;
        }
        let range = !key.groups.is_host() || !key.ports.is_single();
        let content = content(inspect, range);
        self.watched[at] = Some(Watched {
            rule: counted.rule,
            inspect,
            watch: Watch::new(content, inspect.clock_hz),
            recorded: HealthCounters::default(),
            is_touched: false,
        });
        self.make_room();
    }

    /// Ends watching a route.
    pub(super) fn end(&mut self, index: u32) {
        if let Some(watched) = self.watched.get_mut(index as usize) {
            *watched = None;
        }
        self.make_room();
    }

    /// Looks at a packet of a watched route; every segment of a super-packet is looked at.
    #[inline]
    pub(super) fn observe(
        &mut self,
        index: u32,
        (datagram, bytes): (&Datagram, &[u8]),
        verdict: Verdict,
        now_ns: u64,
    ) {
        let is_judged = match verdict {
            Verdict::Forwarded | Verdict::Passed => true,
            Verdict::Dropped(reason) => reason == DropReason::RateLimited,
        };
        let Some(Some(watched)) = self.watched.get_mut(index as usize) else {
            return;
        };
        if !is_judged {
            if verdict == Verdict::Dropped(DropReason::Standby) {
                // Packets of it are not looked at: it begins anew.
                watched.watch.rtp.is_followed = false;
            }
            return;
        }
        if !watched.is_touched {
            watched.is_touched = true;
            self.touched.push(index);
        }
        watched.watch.record_arrival(now_ns);
        if datagram.part != Part::Whole {
            return;
        }
        let start = datagram.udp_offset + packet::udp::HEADER;
        let payload = bytes.get(start..).unwrap_or_default();
        let payload = payload.get(..datagram.payload_bytes()).unwrap_or(payload);
        let segment = datagram.gso.map_or(0, |gso| usize::from(gso.size));
        if segment == 0 {
            return watched.watch.inspect(payload, now_ns);
        }
        for segment in payload.chunks(segment) {
            watched.watch.inspect(segment, now_ns);
        }
    }

    /// Tells what the batch brought.
    #[inline]
    pub(super) fn record(&mut self, counters: &SharedCounters) {
        for index in self.touched.drain(..) {
            let Some(Some(watched)) = self.watched.get_mut(index as usize) else {
                continue;
            };
            watched.is_touched = false;
            let seen = counters_of(&watched.watch);
            counters.record_health(watched.rule, &seen.since(&watched.recorded));
            watched.recorded = seen;
        }
    }

    fn make_room(&mut self) {
        // Room for all, so that no packet makes the list grow.
        self.touched.reserve(self.watched.iter().flatten().count());
    }
}

fn counters_of(watch: &Watch) -> HealthCounters {
    let (rtp, ts) = (&watch.rtp, &watch.ts);
    HealthCounters {
        arrivals: watch.arrivals,
        rtp_packets: rtp.packets,
        lost: rtp.lost,
        reordered: rtp.reordered,
        duplicated: rtp.duplicated,
        restarts: rtp.restarts,
        ssrc_changes: rtp.ssrc_changes,
        jitter_ns: rtp.jitter_ns_16 >> 4,
        source: rtp.is_followed.then_some((rtp.ssrc, rtp.payload_type)),
        ts_packets: ts.packets,
        continuity_errors: ts.continuity_errors,
        transport_errors: ts.transport_errors,
        sync_errors: ts.sync_errors,
        pids: ts.pids,
        unrecognised: watch.unrecognised,
    }
}
