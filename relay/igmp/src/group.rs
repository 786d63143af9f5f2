//! What a multicast router knows of one group on one link: RFC 3376 sections 6 and 7.3, RFC 3810 sections
//! 7 and 8.3. Hosts of old versions are tolerated; who listens is known by address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use rules::demand::SourceFilter;

use crate::codec::{Query, Record, RecordKind, Version};

use crate::timers::Timers;

/// The most sources that are remembered of one group.
pub const SOURCES_MAX: usize = 64;
/// The most sources that are remembered of what one host said.
const HOST_SOURCES_MAX: usize = 16;

/// Who asks on the link, as far as the group's timers depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuerierRole {
    /// This router.
    Own,
    /// Another: what leaves is left to its questions.
    Other,
    /// Nobody: what leaves is gone when no host is known that stays.
    Nobody,
}

/// A group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Until when some host listens to all but certain sources (filter mode EXCLUDE).
    exclude_until: Option<Instant>,
    /// Sources: listened to until then, or with `None` excluded by everybody (in mode EXCLUDE alone).
    sources: BTreeMap<IpAddr, Option<Instant>>,
    hosts: BTreeMap<IpAddr, Host>,
    /// Until when a host of IGMPv1, and one of IGMPv2 or MLDv1, is taken to be there.
    v1_until: Option<Instant>,
    v2_until: Option<Instant>,
    asking: Asking,
}

/// A host that listens, as it said itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// When it said so first.
    pub since: Instant,
    /// When it said so last.
    pub seen: Instant,
    /// Which version it spoke.
    pub version: Version,
    /// To which sources.
    pub filter: SourceFilter,
}

/// Questions about the group that are still to be asked.
#[derive(Clone, Debug, Default)]
struct Asking {
    at: Option<Instant>,
    group_left: u8,
    sources_left: BTreeMap<IpAddr, u8>,
}

/// What of a record there was no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Sources that are not remembered.
    pub sources: u64,
    /// Hosts that are not.
    pub hosts: u64,
}

impl Group {
    /// Takes over what was listened to before this process; it counts as if somebody had just said so.
    pub fn restored(filter: &SourceFilter, now: Instant, timers: &Timers) -> Self {
        let until = now + timers.membership();
        let timer = filter.sources().iter().take(SOURCES_MAX);
        Self {
            exclude_until: filter.passes_others().then_some(until),
            sources: timer
                .map(|source| (*source, (!filter.passes_others()).then_some(until)))
                .collect(),
            ..Self::default()
        }
    }

    /// What is listened to; `None` if nothing is.
    pub fn filter(&self) -> Option<SourceFilter> {
        let sources = self.sources.iter();
        if self.exclude_until.is_some() {
            let excluded = sources.filter(|(_, until)| until.is_none());
            return Some(SourceFilter::Exclude(excluded.map(|(s, _)| *s).collect()));
        }
        let included: BTreeSet<IpAddr> = sources.map(|(source, _)| *source).collect();
        (!included.is_empty()).then_some(SourceFilter::Include(included))
    }

    /// Who listens, by address.
    pub const fn hosts(&self) -> &BTreeMap<IpAddr, Host> {
        &self.hosts
    }

    /// What is remembered of hosts, for a bound.
    pub fn size(&self) -> usize {
        let sizes = self
            .hosts
            .values()
            .map(|host| 1 + host.filter.sources().len());
        sizes.sum()
    }

    /// When something happens by itself.
    pub fn due(&self, timers: &Timers) -> Option<Instant> {
        let sources = self.sources.values().filter_map(|until| *until);
        let hosts = self
            .hosts
            .values()
            .map(|host| host.seen + timers.membership());
        let own = [self.exclude_until, self.asking.at];
        sources.chain(hosts).chain(own.into_iter().flatten()).min()
    }

    /// Takes what `from` says; with `room` for one more host.
    pub fn take(
        &mut self,
        (now, timers): (Instant, &Timers),
        (from, version): (IpAddr, Version),
        record: &Record,
        (asker, room): (QuerierRole, bool),
    ) -> Refused {
        let old_until = now + timers.membership();
        let is_join = matches!(record.kind, RecordKind::IsExclude);
        match version {
            Version::V1 if is_join => self.v1_until = Some(old_until),
            Version::V2 if is_join => self.v2_until = Some(old_until),
            _ => {}
        }
        let refused = Refused {
            hosts: self.note_host(now, (from, version), record, room),
            sources: 0,
        };
        let is_v1 = self.v1_until.is_some_and(|until| until > now);
        let is_old = is_v1 || self.v2_until.is_some_and(|until| until > now);
        // Hosts of old versions would not speak up when others say so (RFC 3376 section 7.3.2).
        let is_leave = version != Version::V3 && record.kind == RecordKind::ToInclude;
        if is_old && record.kind == RecordKind::Block || is_v1 && is_leave {
            return refused;
        }
        let named = record.sources.iter().copied();
        let sources: BTreeSet<IpAddr> = match (is_old, record.kind) {
            (true, RecordKind::ToExclude | RecordKind::IsExclude) => BTreeSet::new(),
            _ => named.collect(),
        };
        let known: BTreeSet<IpAddr> = self.sources.keys().copied().collect();
        let asked = self.change((now, timers), record.kind, &sources);
        let refused = Refused {
            sources: self.trim(&known),
            ..refused
        };
        self.ask((now, timers), asked, asker);
        refused
    }

    /// Changes mode and sources as the tables of RFC 3376 section 6.4 say. Returns what is to be asked:
    /// whether the group, and which of its sources.
    fn change(
        &mut self,
        (now, timers): (Instant, &Timers),
        kind: RecordKind,
        named: &BTreeSet<IpAddr>,
    ) -> (bool, BTreeSet<IpAddr>) {
        let until = now + timers.membership();
        let known = std::mem::take(&mut self.sources);
        let all: BTreeSet<IpAddr> = known.keys().copied().collect();
        let is_excluded = |source: &IpAddr| known.get(source) == Some(&None);
        let both = |which: &dyn Fn(&IpAddr) -> bool| -> BTreeSet<IpAddr> {
            named
                .iter()
                .filter(|source| which(source))
                .copied()
                .collect()
        };
        let unnamed = |which: &dyn Fn(&IpAddr) -> bool| -> BTreeSet<IpAddr> {
            let unnamed = all.difference(named);
            unnamed.filter(|source| which(source)).copied().collect()
        };
        let nothing = (false, BTreeSet::new());
        match (kind, self.exclude_until) {
            (RecordKind::IsInclude | RecordKind::Allow, _) => {
                self.sources = known;
                self.sources
                    .extend(named.iter().map(|source| (*source, Some(until))));
                nothing
            }
            (RecordKind::ToInclude, exclude) => {
                let asked = unnamed(&|source| !is_excluded(source));
                self.sources = known;
                self.sources
                    .extend(named.iter().map(|source| (*source, Some(until))));
                (exclude.is_some(), asked)
            }
            (RecordKind::IsExclude | RecordKind::ToExclude, exclude) => {
                let asked = match exclude {
                    None => both(&|source| all.contains(source)),
                    Some(_) => both(&|source| !is_excluded(source)),
                };
                // A source that was not known is excluded at once where none was before.
                let new = exclude.map(|group_until| match kind {
                    RecordKind::ToExclude => group_until,
                    _ => until,
                });
                let timer = |source: &IpAddr| known.get(source).copied().unwrap_or(new);
                self.sources = named
                    .iter()
                    .map(|source| (*source, timer(source)))
                    .collect();
                self.exclude_until = Some(until);
                match kind {
                    RecordKind::ToExclude => (false, asked),
                    _ => nothing,
                }
            }
            (RecordKind::Block, None) => {
                let asked = both(&|source| all.contains(source));
                self.sources = known;
                (false, asked)
            }
            (RecordKind::Block, Some(group_until)) => {
                let asked = both(&|source| !is_excluded(source));
                self.sources = known;
                for source in named {
                    self.sources.entry(*source).or_insert(Some(group_until));
                }
                (false, asked)
            }
        }
    }

    /// Lets no more sources be remembered than there is room for, those that were `known` first; says how
    /// many are not.
    fn trim(&mut self, known: &BTreeSet<IpAddr>) -> u64 {
        let over = self.sources.len().saturating_sub(SOURCES_MAX);
        let new = self.sources.keys().filter(|source| !known.contains(source));
        let refused: Vec<IpAddr> = new.rev().take(over).copied().collect();
        self.sources.retain(|source, _| !refused.contains(source));
        refused.len() as u64
    }

    /// Remembers what a host said. Says how many there was no room for: one or none.
    fn note_host(
        &mut self,
        now: Instant,
        (from, version): (IpAddr, Version),
        record: &Record,
        room: bool,
    ) -> u64 {
        let known = self.hosts.get(&from);
        if known.is_none() && !room {
            return 1;
        }
        let since = known.map_or(now, |host| host.since);
        let named = || record.sources.iter().copied().take(HOST_SOURCES_MAX);
        let before = known.map(|host| host.filter.clone());
        let before = before.unwrap_or_else(|| SourceFilter::Include(BTreeSet::new()));
        let mut filter = match (record.kind, before) {
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
        if filter == SourceFilter::Include(BTreeSet::new()) {
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

    /// Lowers the timers of what may be listened to no more, and asks who still does
    /// (RFC 3376 section 6.6.3).
    fn ask(
        &mut self,
        (now, timers): (Instant, &Timers),
        (group, sources): (bool, BTreeSet<IpAddr>),
        asker: QuerierRole,
    ) {
        let is_left = |hosts: &BTreeMap<IpAddr, Host>| hosts.is_empty();
        match asker {
            QuerierRole::Other => return,
            QuerierRole::Nobody if !is_left(&self.hosts) => return,
            QuerierRole::Nobody | QuerierRole::Own => {}
        }
        if !group && sources.is_empty() {
            return;
        }
        self.lower((now, timers), group, &sources);
        if asker == QuerierRole::Own {
            let asking = &mut self.asking;
            asking.at = Some(now);
            if group {
                asking.group_left = timers.robustness;
            }
            let sources = sources
                .into_iter()
                .map(|source| (source, timers.robustness));
            asking.sources_left.extend(sources);
        }
    }

    /// Lets the group, or some of its sources, end after the last member's time if nobody speaks up.
    pub fn lower(
        &mut self,
        (now, timers): (Instant, &Timers),
        group: bool,
        sources: &BTreeSet<IpAddr>,
    ) {
        let until = now + timers.last_member();
        if group {
            self.exclude_until = self.exclude_until.map(|known| known.min(until));
        }
        for source in sources {
            if let Some(Some(known)) = self.sources.get_mut(source) {
                *known = (*known).min(until);
            }
        }
    }

    /// Lets end what is over; returns the questions that are due.
    pub fn poll(&mut self, now: Instant, address: IpAddr, timers: &Timers) -> Vec<Query> {
        let is_over = |until: &Option<Instant>| until.is_some_and(|until| until <= now);
        if is_over(&self.exclude_until) {
            // Those that somebody includes stay (RFC 3376 section 6.5).
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
        if !is_over(&self.asking.at) {
            return Vec::new();
        }
        self.questions(now, address, timers)
    }

    fn questions(&mut self, now: Instant, address: IpAddr, timers: &Timers) -> Vec<Query> {
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
        let asking = &mut self.asking;
        if asking.group_left > 0 {
            asking.group_left -= 1;
            let is_renewed = self.exclude_until.is_some_and(|until| until > soon);
            queries.push(query(Vec::new(), is_renewed));
        }
        let is_renewed = |source: &IpAddr| {
            let until = self.sources.get(source).copied().flatten();
            until.is_some_and(|until| until > soon)
        };
        let asked = asking.sources_left.keys().copied();
        let (renewed, lowered): (Vec<IpAddr>, Vec<IpAddr>) = asked.partition(is_renewed);
        for (sources, suppress) in [(renewed, true), (lowered, false)] {
            if !sources.is_empty() {
                queries.push(query(sources, suppress));
            }
        }
        asking.sources_left.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let is_done = asking.group_left == 0 && asking.sources_left.is_empty();
        asking.at = (!is_done).then_some(now + timers.last_member_response);
        queries
    }
}
