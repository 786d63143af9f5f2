//! `packet`'s reference as an executor of the table.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use compile::table::{Route, Table};
use dataplane::explain::{plain_limit, plain_own, plain_route};
use packet::fragment_cache::FragmentCache;
use packet::parse::Link;
use packet::reference as plain;
use packet::verdict::Verdict;
use rules::net::Ifindex;

use crate::case::{Expected, OPEN, Outlet, Packet};

/// One clock for all references, so that the fragment cache can pass from one to the next.
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The reference with the names of its counters.
pub(crate) struct Reference {
    table: plain::Reference,
    /// Per route.
    names: Vec<Names>,
    started: Instant,
}

/// The names under which a route's packets are counted.
pub(crate) struct Names {
    rule: String,
    input: Option<String>,
    /// The index of each output.
    outputs: Vec<u64>,
}

impl Names {
    pub(crate) fn of(route: &Route) -> Self {
        Self {
            rule: route.rule.clone(),
            input: route.input.clone(),
            outputs: route.outputs.iter().map(|output| output.index).collect(),
        }
    }
}

impl Reference {
    pub(crate) fn of(table: &Table) -> Self {
        Self::remembering(table, FragmentCache::default())
    }

    /// The same, with the ports of earlier first fragments.
    pub(crate) fn remembering(table: &Table, memory: FragmentCache) -> Self {
        let routes = table.routes.iter();
        Self {
            table: plain::Reference {
                routes: routes
                    .clone()
                    .map(|(key, route)| plain_route(key, route, is_shut(route)))
                    .collect(),
                own_addresses: plain_own(table),
                fragments: memory,
                budget: table.budget.map(plain_limit),
                whole_for_host: false,
            },
            names: routes.map(|(_, route)| Names::of(route)).collect(),
            started: *STARTED,
        }
    }

    /// The same where packets that the host takes too are not cut, as on the kernel path.
    pub(crate) fn whole_for_host(mut self, whole: bool) -> Self {
        self.table.whole_for_host = whole;
        self
    }

    /// The ports of first fragments.
    pub(crate) fn into_memory(self) -> FragmentCache {
        self.table.fragments
    }

    pub(crate) fn execute(
        &mut self,
        ingress: Ifindex,
        packet: &Packet,
        socket_bound: impl Fn(u16) -> bool,
    ) -> Expected {
        let outcome = self.table.execute(
            (ingress.0, Link::Ethernet),
            &packet.frame,
            packet.meta,
            socket_bound,
            u64::try_from(self.started.elapsed().as_nanos()).expect("not for centuries"),
        );
        let names = outcome.route.map(|route| &self.names[route]);
        expected(outcome, names)
    }
}

/// Converts an outcome, under the names that it is counted by.
pub(crate) fn expected(outcome: plain::Outcome, names: Option<&Names>) -> Expected {
    let mut copies = outcome.copies.into_iter();
    let outlets = outcome.outputs.iter().map(|verdict| match verdict {
        Verdict::Dropped(reason) => Outlet::Dropped(*reason),
        _ => {
            let copy = copies.next().expect("a copy per forwarded output");
            if copy.packets < outcome.packets {
                return Outlet::First {
                    interface: Ifindex(copy.interface),
                    frame: copy.frame,
                    packets: copy.packets,
                    bytes: copy.bytes,
                    rest: copy.rest,
                };
            }
            Outlet::Sent {
                interface: Ifindex(copy.interface),
                frame: copy.frame,
            }
        }
    });
    let outputs: BTreeMap<u64, Outlet> = match names {
        Some(names) => names.outputs.iter().copied().zip(outlets).collect(),
        None => BTreeMap::new(),
    };
    Expected {
        verdict: outcome.verdict,
        rule: names.map(|names| names.rule.clone()),
        input: names.and_then(|names| names.input.clone()),
        passed_up: outcome.passed_up,
        packets: outcome.packets,
        bytes: outcome.bytes,
        limited: outcome.limited,
        outputs,
    }
}

fn is_shut(route: &Route) -> bool {
    route.share.as_deref().is_some_and(|share| share != OPEN)
}
