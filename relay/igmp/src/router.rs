//! The router's part of IGMP or MLD on one link: RFC 3376 section 6, RFC 3810 section 7, and Multicast
//! Router Discovery (RFC 4286) so that snooping switches send reports here too.
//!
//! Pure: it is given the time and what was received, and says what to send and who listens. What it
//! remembers is bounded; what it refuses for that it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rules::demand::{Admission, Groups, SourceFilter};
use rules::net::Prefix;

use crate::codec::{Message, Query, Received, Record, RecordKind, Report, RouterMessage, Version};

use crate::group::{Group, Host, QuerierRole, Refused};
use crate::timers::Timers;

/// The most groups of one family that are remembered on one link.
pub const GROUPS_MAX: usize = 4096;
/// The most that is remembered of hosts on one link and of one family: each of their groups counts, and
/// each source that they name.
pub const ENTRIES_MAX: usize = 131_072;
/// Between advertisements (RFC 4286 section 3.3.1), and the first of them.
const ADVERTISEMENT_S: u8 = 20;
const FIRST_ADVERTISEMENTS: u8 = 3;
const FIRST_ADVERTISEMENT: Duration = Duration::from_secs(2);
/// No solicitation is answered sooner after an advertisement.
const SOLICITED: Duration = Duration::from_secs(1);

/// Who asks on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Querier {
    /// This relay, by the address that it asks from.
    Own(IpAddr),
    /// Another router, by its address.
    Other(IpAddr),
    /// Nobody that was heard.
    Nobody,
}

/// How a link is set up for one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The address that questions are asked from.
    pub own: Option<IpAddr>,
    /// Whether this relay may be the querier.
    pub may_ask: bool,
    /// Groups that outputs lead to; of others nothing is remembered unless this relay may be the querier.
    pub ranges: Vec<Prefix>,
    /// Who may ask for which of them; of several for one group one that permits it is enough.
    pub listeners: Vec<(Prefix, Admission)>,
}

/// A link, as far as one family goes; by default nothing is known of it.
#[derive(Debug, Default)]
pub struct Router {
    setting: Setting,
    timers: Timers,
    /// The other querier, and until when it counts.
    other: Option<(IpAddr, Instant)>,
    next_query: Option<Instant>,
    startup_left: u8,
    next_advertisement: Option<Instant>,
    advertisements: u8,
    advertised: Option<Instant>,
    groups: BTreeMap<IpAddr, Known>,
    /// When something happens to which group by itself.
    due: BTreeSet<(Instant, IpAddr)>,
    wanted: Groups,
    has_changed: bool,
    entries: usize,
    refused: u64,
    barred: u64,
    reports: u64,
    outbox: Vec<RouterMessage>,
}

/// A group, with what is known of it elsewhere.
#[derive(Debug, Default)]
struct Known {
    group: Group,
    /// Under what it stands in `due`.
    due: Option<Instant>,
    /// What it adds to `entries`.
    size: usize,
}

impl Router {
    /// Sets the link up; what is remembered and still concerns it stays.
    pub fn set(&mut self, now: Instant, setting: Setting) {
        if setting == self.setting {
            return;
        }
        let asked = self.may_ask();
        let own = self.setting.own;
        self.setting = setting;
        if own != self.setting.own || !asked && self.may_ask() {
            // Also to hear soon who is there: whoever has a lower address says so.
            self.begin(now);
        }
        let gone: Vec<IpAddr> = self.groups.keys().copied().collect();
        for group in gone {
            if !self.concerns(group) {
                self.forget(group);
            }
        }
    }

    /// Takes over what was listened to before this process.
    pub fn restore(&mut self, now: Instant, groups: &Groups, ipv4: bool) {
        let groups = groups.iter().filter(|(group, _)| group.is_ipv4() == ipv4);
        for (group, filter) in groups.take(GROUPS_MAX) {
            if self.concerns(*group) && !self.groups.contains_key(group) {
                let known = Known {
                    group: Group::restored(filter, now, &self.timers),
                    ..Known::default()
                };
                self.groups.insert(*group, known);
                self.touch(*group, |_, _, _| {});
            }
        }
    }

    /// Asks anew who is there, as after a time of hearing nothing.
    pub fn renew(&mut self, now: Instant) {
        self.begin(now);
    }

    /// The address that questions are asked from.
    pub const fn own(&self) -> Option<IpAddr> {
        self.setting.own
    }

    /// Says whether outputs lead to groups of its family.
    pub const fn is_used(&self) -> bool {
        !self.setting.ranges.is_empty()
    }

    /// Takes a message; [`Router::poll`] does what follows by itself, once all that waited is taken. In a
    /// process that is late, messages have waited in the socket: who answered in time keeps the group.
    pub fn heard(&mut self, now: Instant, heard: &Received) {
        match &heard.message {
            Message::Query(query) => self.heard_query(now, heard.from, query),
            Message::Report(report) => self.heard_report(now, heard.from, report),
            Message::RouterSolicitation => {
                let soonest = self.advertised.map_or(now, |at| (at + SOLICITED).max(now));
                let next = self.next_advertisement.map(|next| next.min(soonest));
                self.next_advertisement = next;
            }
        }
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Instant) {
        if self.other.is_some_and(|(_, until)| until <= now) {
            self.other = None;
            self.timers = Timers::default();
            if self.may_ask() {
                self.next_query = Some(now);
            }
        }
        let asks = matches!(self.querier(), Querier::Own(_));
        if asks && self.next_query.is_some_and(|at| at <= now) {
            self.ask_all();
            let interval = match self.startup_left.checked_sub(1) {
                Some(left) => {
                    self.startup_left = left;
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
            self.touch(group, |known, timers, outbox| {
                let queries = known.poll(now, group, timers).into_iter();
                outbox.extend(queries.map(RouterMessage::Query));
            });
        }
    }

    /// When something happens by itself.
    pub fn due(&self) -> Option<Instant> {
        let asks = matches!(self.querier(), Querier::Own(_));
        let query = self.next_query.filter(|_| asks);
        let other = self.other.map(|(_, until)| until);
        let group = self.due.first().map(|(at, _)| *at);
        let all = [query, other, group, self.next_advertisement];
        all.into_iter().flatten().min()
    }

    /// What is to be sent, from the own address.
    pub fn outbox(&mut self) -> Vec<RouterMessage> {
        std::mem::take(&mut self.outbox)
    }

    /// What is listened to.
    pub const fn wanted(&self) -> &Groups {
        &self.wanted
    }

    /// Says whether that has changed since it was asked last.
    pub fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Who asks.
    pub fn querier(&self) -> Querier {
        let own = self.setting.own.filter(|_| self.setting.may_ask);
        match (self.other, own) {
            (Some((address, _)), _) => Querier::Other(address),
            (None, Some(own)) => Querier::Own(own),
            (None, None) => Querier::Nobody,
        }
    }

    /// The groups of a range with who listens.
    pub fn hosts(&self, range: Prefix) -> impl Iterator<Item = (IpAddr, &BTreeMap<IpAddr, Host>)> {
        let groups = self.groups.range(range.address..=range.last());
        groups.map(|(group, known)| (*group, known.group.hosts()))
    }

    /// How many reports were heard.
    pub const fn reports(&self) -> u64 {
        self.reports
    }

    /// How much was not remembered because there was no room.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// How much was refused of hosts that may not ask, or not for so much.
    pub const fn barred(&self) -> u64 {
        self.barred
    }

    /// Says whether a host may ask for a group, or go on to.
    fn admits(&self, host: IpAddr, record: &Record) -> bool {
        let group = record.group;
        let leaves = matches!(record.kind, RecordKind::ToInclude | RecordKind::Block);
        let mut of_group = self.setting.listeners.iter();
        let mut of_group = of_group
            .by_ref()
            .filter(|(range, _)| range.contains(group))
            .peekable();
        if leaves && record.sources.is_empty() || of_group.peek().is_none() {
            return true;
        }
        let listens = |known: &Known| known.group.hosts().contains_key(&host);
        of_group.any(|(range, may)| {
            let known = || self.groups.range(range.address..=range.last());
            let others = || known().filter(|(other, _)| **other != group);
            let is_there = |most: Option<u16>, count: &dyn Fn() -> usize| {
                most.is_none_or(|most| count() < most.into())
            };
            may.admits(host)
                && is_there(may.groups_each, &|| {
                    others().filter(|(_, known)| listens(known)).count()
                })
                && is_there(may.groups_all, &|| others().count())
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

    fn begin(&mut self, now: Instant) {
        let can = self.setting.own.is_some();
        self.next_query = can.then_some(now);
        self.startup_left = self.timers.robustness.saturating_sub(1);
        self.next_advertisement = can.then_some(now);
        self.advertisements = 0;
    }

    fn ask_all(&mut self) {
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

    /// Elects, and follows the querier's questions (RFC 3376 sections 6.6.1 and 6.6.2).
    fn heard_query(&mut self, now: Instant, from: IpAddr, query: &Query) {
        // A switch that asks for itself does not take part (RFC 4541 section 2.1.1).
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
        let asked: BTreeSet<IpAddr> = query.sources.iter().copied().collect();
        self.touch(group, |known, timers, _| {
            known.lower((now, timers), asked.is_empty(), &asked);
        });
    }

    fn heard_report(&mut self, now: Instant, from: IpAddr, report: &Report) {
        self.reports += 1;
        let asker = match self.querier() {
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
                // What outputs lead to has the larger part of the room.
                let most = if self.is_led_to(record.group) {
                    GROUPS_MAX
                } else {
                    GROUPS_MAX / 2
                };
                if self.groups.len() >= most {
                    self.refused += 1;
                    continue;
                }
                self.groups.insert(record.group, Known::default());
            }
            let room = self.entries < ENTRIES_MAX;
            let mut refused = Refused::default();
            self.touch(record.group, |known, timers, outbox| {
                let host = (from, report.version);
                refused = known.take((now, timers), host, record, (asker, room));
                let queries = known.poll(now, record.group, timers).into_iter();
                outbox.extend(queries.map(RouterMessage::Query));
            });
            self.refused += refused.hosts + refused.sources;
        }
    }

    /// Changes a group, if it is known, and draws the consequences.
    fn touch(
        &mut self,
        group: IpAddr,
        change: impl FnOnce(&mut Group, &Timers, &mut Vec<RouterMessage>),
    ) {
        let Some(known) = self.groups.get_mut(&group) else {
            return;
        };
        change(&mut known.group, &self.timers, &mut self.outbox);
        if let Some(at) = known.due.take() {
            self.due.remove(&(at, group));
        }
        self.entries -= known.size;
        known.size = known.group.size();
        self.entries += known.size;
        known.due = known.group.due(&self.timers);
        let filter = known.group.filter();
        match known.due {
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
        let Some(known) = self.groups.remove(&group) else {
            return;
        };
        self.entries -= known.size;
        if let Some(at) = known.due {
            self.due.remove(&(at, group));
        }
        self.publish(group, None);
    }
}

#[cfg(test)]
mod tests;
