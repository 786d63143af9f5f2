//! A multicast router's state of one group on one link: RFC 3376 sections 6 and 7.3, RFC 3810 sections
//! 7 and 8.3. Hosts of old versions are supported; listening hosts are tracked by address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use rules::demand::SourceFilter;

use crate::codec::{Query, Record, RecordKind, Version};
use crate::timers::Timers;

/// The most sources that are tracked for one group.
pub const SOURCES_MAX: usize = 64;
/// The most sources that are tracked for one host.
const HOST_SOURCES_MAX: usize = 16;

/// Who sends queries on the link, as far as the group's timers depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuerierRole {
    /// This router.
    Own,
    /// Another: after a leave, its queries decide.
    Other,
    /// Nobody: a leave counts once no listening host is registered.
    Nobody,
}

/// The state of a group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Until when some host listens to all but certain sources (filter mode EXCLUDE).
    exclude_until: Option<Instant>,
    /// Sources with the end of their timers; `None`: excluded by all hosts (only in mode EXCLUDE).
    sources: BTreeMap<IpAddr, Option<Instant>>,
    hosts: BTreeMap<IpAddr, Host>,
    /// Until when a host of IGMPv1, and one of IGMPv2 or MLDv1, is assumed to be present.
    v1_until: Option<Instant>,
    v2_until: Option<Instant>,
    pending: PendingQueries,
}

/// A listening host, as it reported itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// When it first reported.
    pub since: Instant,
    /// When it last reported.
    pub seen: Instant,
    /// The protocol version of its last report.
    pub version: Version,
    /// The sources it listens to.
    pub filter: SourceFilter,
}

/// Queries about the group that are still to be sent, by how often.
#[derive(Clone, Debug, Default)]
struct PendingQueries {
    at: Option<Instant>,
    group: u8,
    sources: BTreeMap<IpAddr, u8>,
}

/// The parts of a record that exceeded a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Sources that are not tracked.
    pub sources: u64,
    /// Hosts that are not tracked.
    pub hosts: u64,
}

impl Group {
    /// Restores a group that was listened to before this process started, as if just reported.
    pub fn restored(filter: &SourceFilter, now: Instant, timers: &Timers) -> Self {
        let until = now + timers.membership();
        let sources = filter.sources().iter().take(SOURCES_MAX);
        Self {
            exclude_until: filter.passes_others().then_some(until),
            sources: sources
                .map(|source| (*source, (!filter.passes_others()).then_some(until)))
                .collect(),
            ..Self::default()
        }
    }

    /// The sources that hosts listen to; `None` if there are none.
    pub fn filter(&self) -> Option<SourceFilter> {
        let sources = self.sources.iter();
        if self.exclude_until.is_some() {
            let excluded = sources.filter(|(_, until)| until.is_none());
            return Some(SourceFilter::Exclude(excluded.map(|(s, _)| *s).collect()));
        }
        let included: BTreeSet<IpAddr> = sources.map(|(source, _)| *source).collect();
        (!included.is_empty()).then_some(SourceFilter::Include(included))
    }

    /// The listening hosts by address.
    pub const fn hosts(&self) -> &BTreeMap<IpAddr, Host> {
        &self.hosts
    }

    /// The number of hosts and of their sources, which a limit bounds.
    pub fn size(&self) -> usize {
        let hosts = self.hosts.values();
        hosts.map(|host| 1 + host.filter.sources().len()).sum()
    }

    /// When the next timer expires.
    pub fn due(&self, timers: &Timers) -> Option<Instant> {
        let sources = self.sources.values().filter_map(|until| *until);
        let hosts = self
            .hosts
            .values()
            .map(|host| host.seen + timers.membership());
        let own = [self.exclude_until, self.pending.at];
        sources.chain(hosts).chain(own.into_iter().flatten()).min()
    }

    /// Applies a record that `from` sent; `has_room` for one more host.
    pub fn apply(
        &mut self,
        (now, timers): (Instant, &Timers),
        (from, version): (IpAddr, Version),
        record: &Record,
        (querier, has_room): (QuerierRole, bool),
    ) -> Refused {
        let old_until = now + timers.membership();
        let is_join = matches!(record.kind, RecordKind::IsExclude);
        match version {
            Version::V1 if is_join => self.v1_until = Some(old_until),
            Version::V2 if is_join => self.v2_until = Some(old_until),
            _ => {}
        }
        let refused = Refused {
            hosts: self.note_host(now, (from, version), record, has_room),
            sources: 0,
        };
        let is_v1 = self.v1_until.is_some_and(|until| until > now);
        let is_old = is_v1 || self.v2_until.is_some_and(|until| until > now);
        // Hosts of old versions would not answer the query for it (RFC 3376 section 7.3.2).
        let is_leave = version != Version::V3 && record.kind == RecordKind::ToInclude;
        if is_old && record.kind == RecordKind::Block || is_v1 && is_leave {
            return refused;
        }
        let sources: BTreeSet<IpAddr> = match (is_old, record.kind) {
            (true, RecordKind::ToExclude | RecordKind::IsExclude) => BTreeSet::new(),
            _ => record.sources.iter().copied().collect(),
        };
        let previous: BTreeSet<IpAddr> = self.sources.keys().copied().collect();
        let to_query = self.change((now, timers), record.kind, &sources);
        let refused = Refused {
            sources: self.trim(&previous),
            ..refused
        };
        self.schedule_queries((now, timers), to_query, querier);
        refused
    }

    /// Changes mode and sources by the tables of RFC 3376 section 6.4. Returns what to query: whether the
    /// group, and which of its sources.
    fn change(
        &mut self,
        (now, timers): (Instant, &Timers),
        kind: RecordKind,
        named: &BTreeSet<IpAddr>,
    ) -> (bool, BTreeSet<IpAddr>) {
        let until = now + timers.membership();
        let previous = std::mem::take(&mut self.sources);
        let all: BTreeSet<IpAddr> = previous.keys().copied().collect();
        let is_excluded = |source: &IpAddr| previous.get(source) == Some(&None);
        let both = |which: &dyn Fn(&IpAddr) -> bool| -> BTreeSet<IpAddr> {
            named
                .iter()
                .filter(|source| which(source))
                .copied()
                .collect()
        };
        let unnamed = |which: &dyn Fn(&IpAddr) -> bool| -> BTreeSet<IpAddr> {
            let others = all.difference(named);
            others.filter(|source| which(source)).copied().collect()
        };
        let nothing = (false, BTreeSet::new());
        match (kind, self.exclude_until) {
            (RecordKind::IsInclude | RecordKind::Allow, _) => {
                self.sources = previous;
                self.sources
                    .extend(named.iter().map(|source| (*source, Some(until))));
                nothing
            }
            (RecordKind::ToInclude, exclude) => {
                let to_query = unnamed(&|source| !is_excluded(source));
                self.sources = previous;
                self.sources
                    .extend(named.iter().map(|source| (*source, Some(until))));
                (exclude.is_some(), to_query)
            }
            (RecordKind::IsExclude | RecordKind::ToExclude, exclude) => {
                let to_query = match exclude {
                    None => both(&|source| all.contains(source)),
                    Some(_) => both(&|source| !is_excluded(source)),
                };
                // In mode INCLUDE a new source is excluded at once.
                let new = exclude.map(|group_until| match kind {
                    RecordKind::ToExclude => group_until,
                    _ => until,
                });
                let timer = |source: &IpAddr| previous.get(source).copied().unwrap_or(new);
                self.sources = named
                    .iter()
                    .map(|source| (*source, timer(source)))
                    .collect();
                self.exclude_until = Some(until);
                match kind {
                    RecordKind::ToExclude => (false, to_query),
                    _ => nothing,
                }
            }
            (RecordKind::Block, None) => {
                let to_query = both(&|source| all.contains(source));
                self.sources = previous;
                (false, to_query)
            }
            (RecordKind::Block, Some(group_until)) => {
                let to_query = both(&|source| !is_excluded(source));
                self.sources = previous;
                for source in named {
                    self.sources.entry(*source).or_insert(Some(group_until));
                }
                (false, to_query)
            }
        }
    }

    /// Removes sources above the limit, new ones before `previous` ones; returns how many.
    fn trim(&mut self, previous: &BTreeSet<IpAddr>) -> u64 {
        let over = self.sources.len().saturating_sub(SOURCES_MAX);
        let sources = self.sources.keys();
        let new = sources.filter(|source| !previous.contains(source));
        let refused: Vec<IpAddr> = new.rev().take(over).copied().collect();
        self.sources.retain(|source, _| !refused.contains(source));
        refused.len() as u64
    }

    /// Registers a host's report. Returns how many hosts exceeded the limit: one or none.
    fn note_host(
        &mut self,
        now: Instant,
        (from, version): (IpAddr, Version),
        record: &Record,
        has_room: bool,
    ) -> u64 {
        let registered = self.hosts.get(&from);
        if registered.is_none() && !has_room {
            return 1;
        }
        let since = registered.map_or(now, |host| host.since);
        let named = || record.sources.iter().copied().take(HOST_SOURCES_MAX);
        let none = || SourceFilter::Include(BTreeSet::new());
        let previous = registered.map_or_else(none, |host| host.filter.clone());
        let mut filter = match (record.kind, previous) {
            (RecordKind::IsInclude | RecordKind::ToInclude, _) => {
                SourceFilter::Include(named().collect())
            }
            (RecordKind::IsExclude | RecordKind::ToExclude, _) => {
                SourceFilter::Exclude(named().collect())
            }
            (RecordKind::Allow, SourceFilter::Include(mut sources))
            | (RecordKind::Block, SourceFilter::Exclude(mut sources)) => {
                sources.extend(named());
                match record.kind {
                    RecordKind::Allow => SourceFilter::Include(sources),
                    _ => SourceFilter::Exclude(sources),
                }
            }
            (RecordKind::Allow | RecordKind::Block, mut filter) => {
                let (SourceFilter::Include(sources) | SourceFilter::Exclude(sources)) = &mut filter;
                sources.retain(|source| !record.sources.contains(source));
                filter
            }
        };
        let (SourceFilter::Include(sources) | SourceFilter::Exclude(sources)) = &mut filter;
        while sources.len() > HOST_SOURCES_MAX {
            sources.pop_last();
        }
        if filter == none() {
            self.hosts.remove(&from);
            return 0;
        }
        let host = Host {
            since,
            seen: now,
            version,
            filter,
        };
        self.hosts.insert(from, host);
        0
    }

    /// Lowers the timers of what hosts may no longer listen to, and schedules queries for it
    /// (RFC 3376 section 6.6.3).
    fn schedule_queries(
        &mut self,
        (now, timers): (Instant, &Timers),
        (group, sources): (bool, BTreeSet<IpAddr>),
        querier: QuerierRole,
    ) {
        match querier {
            QuerierRole::Other => return,
            QuerierRole::Nobody if !self.hosts.is_empty() => return,
            QuerierRole::Nobody | QuerierRole::Own => {}
        }
        if !group && sources.is_empty() {
            return;
        }
        self.lower((now, timers), group, &sources);
        if querier == QuerierRole::Own {
            let pending = &mut self.pending;
            pending.at = Some(now);
            if group {
                pending.group = timers.robustness;
            }
            for source in sources {
                pending.sources.insert(source, timers.robustness);
            }
        }
    }

    /// Lowers the timers of the group, or of some of its sources, to the last member time.
    pub fn lower(
        &mut self,
        (now, timers): (Instant, &Timers),
        group: bool,
        sources: &BTreeSet<IpAddr>,
    ) {
        let until = now + timers.last_member();
        if group {
            self.exclude_until = self.exclude_until.map(|previous| previous.min(until));
        }
        for source in sources {
            if let Some(Some(timer)) = self.sources.get_mut(source) {
                *timer = (*timer).min(until);
            }
        }
    }

    /// Removes what has expired; returns the queries that are due.
    pub fn poll(&mut self, now: Instant, address: IpAddr, timers: &Timers) -> Vec<Query> {
        let is_over = |until: &Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(&self.exclude_until) {
            // Sources that a host includes stay (RFC 3376 section 6.5).
            self.exclude_until = None;
            self.sources
                .retain(|_, until| until.is_some_and(|until| until > now));
        } else if self.exclude_until.is_some() {
            let over = self.sources.values_mut().filter(|until| is_over(until));
            over.for_each(|until| *until = None);
        } else {
            self.sources.retain(|_, until| !is_over(until));
        }
        self.hosts
            .retain(|_, host| host.seen + timers.membership() > now);
        if !is_over(&self.pending.at) {
            return Vec::new();
        }
        self.due_queries(now, address, timers)
    }

    fn due_queries(&mut self, now: Instant, address: IpAddr, timers: &Timers) -> Vec<Query> {
        let soon = now + timers.last_member();
        let query = |sources: Vec<IpAddr>, suppress| Query {
            version: Version::V3,
            group: Some(address),
            sources,
            response: timers.last_member_response,
            suppress,
            robustness: timers.robustness,
            interval: timers.query_interval,
        };
        let mut queries = Vec::new();
        let pending = &mut self.pending;
        if pending.group > 0 {
            pending.group -= 1;
            let is_renewed = self.exclude_until.is_some_and(|until| until > soon);
            queries.push(query(Vec::new(), is_renewed));
        }
        let is_renewed = |source: &IpAddr| {
            let until = self.sources.get(source).copied().flatten();
            until.is_some_and(|until| until > soon)
        };
        let (renewed, lowered): (Vec<IpAddr>, Vec<IpAddr>) =
            pending.sources.keys().copied().partition(is_renewed);
        for (sources, suppress) in [(renewed, true), (lowered, false)] {
            if !sources.is_empty() {
                queries.push(query(sources, suppress));
            }
        }
        pending.sources.retain(|_, repeats| {
            *repeats -= 1;
            *repeats > 0
        });
        let is_done = pending.group == 0 && pending.sources.is_empty();
        pending.at = (!is_done).then_some(now + timers.last_member_response);
        queries
    }
}
