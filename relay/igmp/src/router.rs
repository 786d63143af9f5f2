//! The router's part of IGMP or MLD on one link: RFC 3376 section 6, RFC 3810 section 7, and Multicast
//! Router Discovery (RFC 4286) so that snooping switches send reports here too.
//!
//! Pure: it takes the time and the received messages, and returns what to send and who listens. Its state
//! is bounded; what exceeds the bounds is refused and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rules::demand::{Admission, Groups, SourceFilter};
use rules::net::Prefix;

use crate::codec::{Message, Query, Received, Record, RecordKind, Report, RouterMessage, Version};
use crate::group::{Group, Host, QuerierRole, Refused};
use crate::timers::Timers;

/// The most groups of one family that are tracked on one link.
pub const GROUPS_MAX: usize = 4096;
/// The most entries of hosts of one family that are tracked on one link: each group of a host counts, and
/// each source that it names.
pub const ENTRIES_MAX: usize = 131_072;
/// The time between advertisements (RFC 4286 section 3.3.1), and between the first of them.
const ADVERTISEMENT_S: u8 = 20;
const FIRST_ADVERTISEMENTS: u8 = 3;
const FIRST_ADVERTISEMENT: Duration = Duration::from_secs(2);
/// The time after an advertisement before a solicitation is answered.
const SOLICITED: Duration = Duration::from_secs(1);

/// The querier of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Querier {
    /// This relay, with the source address of its queries.
    Own(IpAddr),
    /// Another router, with its address.
    Other(IpAddr),
    /// No query was received.
    Nobody,
}

/// The configuration of a link for one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The source address of queries.
    pub own: Option<IpAddr>,
    /// Whether this relay may be the querier.
    pub may_ask: bool,
    /// Groups that outputs lead to; others are tracked only if this relay may be the querier.
    pub ranges: Vec<Prefix>,
    /// Which hosts may join which of them; if several apply to a group, one that permits it is enough.
    pub listeners: Vec<(Prefix, Admission)>,
}

/// The router of one family on a link; by default unconfigured and without groups.
#[derive(Debug, Default)]
pub struct Router {
    setting: Setting,
    timers: Timers,
    /// The other querier, and until when it is taken to be present.
    other: Option<(IpAddr, Instant)>,
    next_query: Option<Instant>,
    startup_queries: u8,
    next_advertisement: Option<Instant>,
    advertisements: u8,
    advertised: Option<Instant>,
    groups: BTreeMap<IpAddr, GroupEntry>,
    /// The groups by the time at which their next timer expires.
    due: BTreeSet<(Instant, IpAddr)>,
    wanted: Groups,
    has_changed: bool,
    entries: usize,
    refused: u64,
    barred: u64,
    reports: u64,
    outbox: Vec<RouterMessage>,
}

/// A group, with what the router derives from it.
#[derive(Debug, Default)]
struct GroupEntry {
    group: Group,
    /// Its key in the router's `due`.
    due: Option<Instant>,
    /// Its share of the router's `entries`.
    size: usize,
}

impl Router {
    /// Configures the link; groups that still concern it stay.
    pub fn set(&mut self, now: Instant, setting: Setting) {
        if setting == self.setting {
            return;
        }
        let could_ask = self.may_ask();
        let own = self.setting.own;
        self.setting = setting;
        if own != self.setting.own || !could_ask && self.may_ask() {
            // A query also reveals other queriers soon: one with a lower address answers with its own.
            self.renew(now);
        }
        let groups: Vec<IpAddr> = self.groups.keys().copied().collect();
        for group in groups {
            if !self.concerns(group) {
                self.forget(group);
            }
        }
    }

    /// Restores the groups that were listened to before this process started.
    pub fn restore(&mut self, now: Instant, groups: &Groups, ipv4: bool) {
        let of_family = groups.iter().filter(|(group, _)| group.is_ipv4() == ipv4);
        for (group, filter) in of_family.take(GROUPS_MAX) {
            if self.concerns(*group) && !self.groups.contains_key(group) {
                let entry = GroupEntry {
                    group: Group::restored(filter, now, &self.timers),
                    ..GroupEntry::default()
                };
                self.groups.insert(*group, entry);
                self.touch(*group, |_, _, _| {});
            }
        }
    }

    /// Queries all hosts anew, as after a time without reception.
    pub fn renew(&mut self, now: Instant) {
        let has_address = self.setting.own.is_some();
        self.next_query = has_address.then_some(now);
        self.startup_queries = self.timers.robustness.saturating_sub(1);
        self.next_advertisement = has_address.then_some(now);
        self.advertisements = 0;
    }

    /// The source address of queries.
    pub const fn own(&self) -> Option<IpAddr> {
        self.setting.own
    }

    /// Returns whether outputs lead to groups of its family.
    pub const fn is_used(&self) -> bool {
        !self.setting.ranges.is_empty()
    }

    /// Processes a message. Call [`Router::poll`] only once all waiting messages are processed: if the
    /// process is late, a host's timely answer still waits in the socket and must keep the group.
    pub fn receive(&mut self, now: Instant, received: &Received) {
        match &received.message {
            Message::Query(query) => self.receive_query(now, received.from, query),
            Message::Report(report) => self.receive_report(now, received.from, report),
            Message::RouterSolicitation => {
                let soonest = self.advertised.map_or(now, |at| (at + SOLICITED).max(now));
                self.next_advertisement = self.next_advertisement.map(|next| next.min(soonest));
            }
        }
    }

    /// Processes expired timers.
    pub fn poll(&mut self, now: Instant) {
        if self.other.is_some_and(|(_, until)| until <= now) {
            self.other = None;
            self.timers = Timers::default();
            if self.may_ask() {
                self.next_query = Some(now);
            }
        }
        let is_querier = matches!(self.querier(), Querier::Own(_));
        if is_querier && self.next_query.is_some_and(|at| at <= now) {
            self.send_general_query();
            let interval = match self.startup_queries.checked_sub(1) {
                Some(remaining) => {
                    self.startup_queries = remaining;
                    self.timers.startup_interval()
                }
                None => self.timers.query_interval,
            };
            self.next_query = Some(now + interval);
        }
        if self.next_advertisement.is_some_and(|at| at <= now) {
            self.advertise(now);
        }
        while let Some((at, group)) = self.due.first().copied()
            && at <= now
        {
            self.touch(group, |state, timers, outbox| {
                let queries = state.poll(now, group, timers).into_iter();
                outbox.extend(queries.map(RouterMessage::Query));
            });
        }
    }

    /// When the next timer expires.
    pub fn due(&self) -> Option<Instant> {
        let is_querier = matches!(self.querier(), Querier::Own(_));
        let query = self.next_query.filter(|_| is_querier);
        let other = self.other.map(|(_, until)| until);
        let group = self.due.first().map(|(at, _)| *at);
        let all = [query, other, group, self.next_advertisement];
        all.into_iter().flatten().min()
    }

    /// Takes the messages to send from the own address.
    pub fn outbox(&mut self) -> Vec<RouterMessage> {
        std::mem::take(&mut self.outbox)
    }

    /// The groups with listeners, and their sources.
    pub const fn wanted(&self) -> &Groups {
        &self.wanted
    }

    /// Returns whether [`Router::wanted`] has changed since the last call.
    pub fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// The querier of the link.
    pub fn querier(&self) -> Querier {
        let own = self.setting.own.filter(|_| self.setting.may_ask);
        match (self.other, own) {
            (Some((address, _)), _) => Querier::Other(address),
            (None, Some(own)) => Querier::Own(own),
            (None, None) => Querier::Nobody,
        }
    }

    /// The groups of a range with their listening hosts.
    pub fn hosts(&self, range: Prefix) -> impl Iterator<Item = (IpAddr, &BTreeMap<IpAddr, Host>)> {
        let groups = self.groups.range(range.address..=range.last());
        groups.map(|(group, entry)| (*group, entry.group.hosts()))
    }

    /// The number of reports received.
    pub const fn reports(&self) -> u64 {
        self.reports
    }

    /// The number of groups, hosts and sources that exceeded a limit.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The number of records refused because the host may not ask for the group, or not for so many.
    pub const fn barred(&self) -> u64 {
        self.barred
    }

    /// Returns whether a host may join a group, or stay in it.
    fn admits(&self, host: IpAddr, record: &Record) -> bool {
        let group = record.group;
        let is_leave = matches!(record.kind, RecordKind::ToInclude | RecordKind::Block);
        let listeners = self.setting.listeners.iter();
        let mut of_group = listeners
            .filter(|(range, _)| range.contains(group))
            .peekable();
        if is_leave && record.sources.is_empty() || of_group.peek().is_none() {
            return true;
        }
        let listens = |entry: &GroupEntry| entry.group.hosts().contains_key(&host);
        of_group.any(|(range, admission)| {
            let groups = || self.groups.range(range.address..=range.last());
            let others = || groups().filter(|(other, _)| **other != group);
            let has_room = |most: Option<u16>, count: &dyn Fn() -> usize| {
                most.is_none_or(|most| count() < most.into())
            };
            admission.admits(host)
                && has_room(admission.groups_each, &|| {
                    others().filter(|(_, entry)| listens(entry)).count()
                })
                && has_room(admission.groups_all, &|| others().count())
        })
    }

    const fn may_ask(&self) -> bool {
        self.setting.may_ask && self.setting.own.is_some()
    }

    fn concerns(&self, group: IpAddr) -> bool {
        self.setting.may_ask || self.is_led_to(group)
    }

    fn is_led_to(&self, group: IpAddr) -> bool {
        let mut ranges = self.setting.ranges.iter();
        ranges.any(|range| range.contains(group))
    }

    fn send_general_query(&mut self) {
        self.outbox.push(RouterMessage::Query(Query {
            version: Version::V3,
            group: None,
            sources: Vec::new(),
            response: self.timers.query_response,
            suppress: false,
            robustness: self.timers.robustness,
            interval: self.timers.query_interval,
        }));
    }

    fn advertise(&mut self, now: Instant) {
        let interval = self.timers.query_interval.as_secs();
        self.outbox.push(RouterMessage::Advertisement {
            interval_s: ADVERTISEMENT_S,
            query_interval_s: u16::try_from(interval).unwrap_or(u16::MAX),
            robustness: self.timers.robustness.into(),
        });
        self.advertised = Some(now);
        self.advertisements = self.advertisements.saturating_add(1);
        let wait = if self.advertisements < FIRST_ADVERTISEMENTS {
            FIRST_ADVERTISEMENT
        } else {
            Duration::from_secs(ADVERTISEMENT_S.into())
        };
        self.next_advertisement = Some(now + wait);
    }

    /// Elects the querier, and follows its queries (RFC 3376 sections 6.6.1 and 6.6.2).
    fn receive_query(&mut self, now: Instant, from: IpAddr, query: &Query) {
        // A query of a snooping switch does not take part in the election (RFC 4541 section 2.1.1).
        if from.is_unspecified() {
            return;
        }
        let rival = match (self.may_ask(), self.setting.own, self.other) {
            (_, _, Some((other, _))) => Some(other),
            (true, own, None) => own,
            (false, ..) => None,
        };
        if rival.is_some_and(|rival| from > rival) {
            return;
        }
        if query.robustness > 0 {
            self.timers.robustness = query.robustness;
        }
        if !query.interval.is_zero() {
            self.timers.query_interval = query.interval;
        }
        if query.group.is_none() {
            self.timers.query_response = query.response;
        }
        self.other = Some((from, now + self.timers.other_querier()));
        let Some(group) = query.group.filter(|_| !query.suppress) else {
            return;
        };
        let sources: BTreeSet<IpAddr> = query.sources.iter().copied().collect();
        self.touch(group, |state, timers, _| {
            state.lower((now, timers), sources.is_empty(), &sources);
        });
    }

    fn receive_report(&mut self, now: Instant, from: IpAddr, report: &Report) {
        self.reports += 1;
        let querier = match self.querier() {
            Querier::Own(_) => QuerierRole::Own,
            Querier::Other(_) => QuerierRole::Other,
            Querier::Nobody => QuerierRole::Nobody,
        };
        for record in &report.records {
            if !self.concerns(record.group) {
                continue;
            }
            if !self.admits(from, record) {
                self.barred += 1;
                continue;
            }
            if !self.groups.contains_key(&record.group) {
                // Groups that no output leads to get half of the room.
                let most = if self.is_led_to(record.group) {
                    GROUPS_MAX
                } else {
                    GROUPS_MAX / 2
                };
                if self.groups.len() >= most {
                    self.refused += 1;
                    continue;
                }
                self.groups.insert(record.group, GroupEntry::default());
            }
            let has_room = self.entries < ENTRIES_MAX;
            let mut refused = Refused::default();
            self.touch(record.group, |state, timers, outbox| {
                let host = (from, report.version);
                refused = state.apply((now, timers), host, record, (querier, has_room));
                let queries = state.poll(now, record.group, timers).into_iter();
                outbox.extend(queries.map(RouterMessage::Query));
            });
            self.refused += refused.hosts + refused.sources;
        }
    }

    /// Changes a group, if it is tracked, and updates what is derived from it.
    fn touch(
        &mut self,
        group: IpAddr,
        change: impl FnOnce(&mut Group, &Timers, &mut Vec<RouterMessage>),
    ) {
        let Some(entry) = self.groups.get_mut(&group) else {
            return;
        };
        change(&mut entry.group, &self.timers, &mut self.outbox);
        if let Some(at) = entry.due.take() {
            self.due.remove(&(at, group));
        }
        self.entries -= entry.size;
        entry.size = entry.group.size();
        self.entries += entry.size;
        entry.due = entry.group.due(&self.timers);
        let filter = entry.group.filter();
        match entry.due {
            Some(at) => drop(self.due.insert((at, group))),
            None => drop(self.groups.remove(&group)),
        }
        self.publish(group, filter);
    }

    fn publish(&mut self, group: IpAddr, filter: Option<SourceFilter>) {
        let before = match filter {
            Some(filter) if self.wanted.get(&group) == Some(&filter) => return,
            Some(filter) => self.wanted.insert(group, filter).map(|_| ()).or(Some(())),
            None => self.wanted.remove(&group).map(|_| ()),
        };
        self.has_changed |= before.is_some();
    }

    fn forget(&mut self, group: IpAddr) {
        let Some(entry) = self.groups.remove(&group) else {
            return;
        };
        self.entries -= entry.size;
        if let Some(at) = entry.due {
            self.due.remove(&(at, group));
        }
        self.publish(group, None);
    }
}

#[cfg(test)]
mod tests;
