//! Stream health on the userspace path: inspects the packets of watched routes and adds what it
//! found to the shared counters once a batch.
//!
//! A packet's time is that of its batch. Nothing here changes what becomes of a packet.

use std::collections::BTreeMap;

use compile::table::RouteKey;
use packet::datagram::{Datagram, Part};
use packet::health::Watch;
use packet::verdict::{DropReason, Verdict};
use rules::health::Inspect;

use crate::counters::HealthCounters;
use crate::inspection::content;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::layout::RuleSlot;
use crate::userspace::shared::messages::CountedRoute;

/// What is watched.
#[derive(Default)]
pub(super) struct Watches {
    /// Routes, by their index in the table.
    routes: Vec<Option<Watched>>,
    /// Rules whose lines are merged, by slot.
    rules: BTreeMap<u32, Watched>,
    /// Those with packets in this batch.
    changed: Vec<Subject>,
}

/// Names what is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A route by itself.
    Route(u32),
    /// What passes of all lines of a rule.
    Rule(RuleSlot),
}

impl Subject {
    /// The subject that the packets of a route belong to.
    pub(super) const fn of(index: u32, counted: &CountedRoute) -> Self {
        match counted.leg {
            Some(_) => Self::Rule(counted.rule),
            None => Self::Route(index),
        }
    }
}

struct Watched {
    rule: RuleSlot,
    inspect: Inspect,
    watch: Watch,
    recorded: HealthCounters,
    has_changed: bool,
}

impl Watches {
    /// Begins to watch a route if it requests that; one that is already watched alike continues.
    /// Not hot: it allocates.
    pub(super) fn begin(&mut self, index: u32, key: &RouteKey, counted: &CountedRoute) {
        let what = Subject::of(index, counted);
        if what != Subject::Route(index) {
            self.end(index);
        }
        let Some(inspect) = counted.inspect() else {
            return self.end(index);
        };
        let same = |before: &Watched| before.inspect == inspect && before.rule == counted.rule;
        if self.find(what).is_some_and(|before| same(before)) {
            return;
        }
        let range = !key.groups.is_host() || !key.ports.is_single();
        let content = content(inspect, range);
        let watched = Watched {
            rule: counted.rule,
            inspect,
            watch: Watch::new(content, inspect.clock_hz),
            recorded: HealthCounters::default(),
            has_changed: false,
        };
        match what {
            Subject::Rule(rule) => {
                self.rules.insert(rule.0, watched);
            }
            Subject::Route(index) => {
                let index = index as usize;
                if index >= self.routes.len() {
                    self.routes.resize_with(index + 1, || None);
                }
                self.routes[index] = Some(watched);
            }
        }
        self.make_room();
    }

    /// Ends watching rules that none of `remaining` belongs to.
    pub(super) fn end_others(&mut self, remaining: impl Iterator<Item = Subject> + Clone) {
        let is_remaining = |rule: &u32| {
            remaining
                .clone()
                .any(|what| what == Subject::Rule(RuleSlot(*rule)))
        };
        self.rules.retain(|rule, _| is_remaining(rule));
    }

    #[inline]
    fn find(&mut self, what: Subject) -> Option<&mut Watched> {
        match what {
            Subject::Route(index) => self.routes.get_mut(index as usize)?.as_mut(),
            Subject::Rule(rule) => self.rules.get_mut(&rule.0),
        }
    }

    /// Ends watching a route.
    pub(super) fn end(&mut self, index: u32) {
        if let Some(watched) = self.routes.get_mut(index as usize) {
            *watched = None;
        }
        self.make_room();
    }

    /// Inspects the payload of a packet of what is watched, every segment of a super-packet.
    #[inline]
    pub(super) fn observe(
        &mut self,
        what: Subject,
        (datagram, payload): (&Datagram, &[u8]),
        verdict: Verdict,
        now_ns: u64,
    ) {
        let is_judged = match verdict {
            Verdict::Forwarded | Verdict::Passed => true,
            Verdict::Dropped(reason) => reason == DropReason::RateLimited,
        };
        let Some(watched) = self.find(what) else {
            return;
        };
        if !is_judged {
            if verdict == Verdict::Dropped(DropReason::Standby) {
                // Its packets are not inspected, so its sequence begins anew.
                watched.watch.rtp.is_followed = false;
            }
            return;
        }
        let is_fresh = !std::mem::replace(&mut watched.has_changed, true);
        watched.watch.record_arrival(now_ns);
        if datagram.part == Part::Whole {
            let segment = datagram.gso.map_or(0, |gso| usize::from(gso.size));
            if segment == 0 {
                watched.watch.inspect(payload, now_ns);
            } else {
                for segment in payload.chunks(segment) {
                    watched.watch.inspect(segment, now_ns);
                }
            }
        }
        if is_fresh {
            self.changed.push(what);
        }
    }

    /// Records what the batch added.
    #[inline]
    pub(super) fn record(&mut self, counters: &SharedCounters) {
        for at in 0..self.changed.len() {
            let Some(what) = self.changed.get(at).copied() else {
                break;
            };
            let Some(watched) = self.find(what) else {
                continue;
            };
            watched.has_changed = false;
            let seen = counters_of(&watched.watch);
            counters.record_health(watched.rule, &seen.since(&watched.recorded));
            watched.recorded = seen;
        }
        self.changed.clear();
    }

    fn make_room(&mut self) {
        // Room for all, so that no packet causes the list to grow.
        let routes = self.routes.iter().flatten().count();
        self.changed.reserve(routes + self.rules.len());
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
