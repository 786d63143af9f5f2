//! The holder and the standby of each share: every relay computes the same from the contents of etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::keys::{BeatMonitor, RelayEntry, SessionNumber, ShareEntry};
use crate::member::{FleetEvent, Member, PhaseName, faulty};
use crate::placement::{Candidate, Loads, order};

/// How many relays of a share's order may claim it.
const RANKED_MAX: usize = 8;

/// How long a plan is left as it is for each share and relay in it, in ns: so planning takes a small part of
/// the time, however much happens. Tests have small fleets.
const REST: u64 = if cfg!(test) { 1_000_000 } else { 3_000 };

/// The plan.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Plan {
    /// How often it was made.
    pub(super) made: u64,
    /// When it may be made again.
    pub(super) rests_until: u64,
    pub(super) shares: BTreeMap<String, Planned>,
    /// Shares that this relay is to have compiled and joined.
    pub(super) install: BTreeSet<String>,
    /// The monitors that this relay lists.
    pub(super) monitors: Vec<BeatMonitor>,
    /// The relays that are to list this one as a monitor.
    pub(super) monitored: BTreeSet<String>,
    /// Relays with a session, and its number: monitors were chosen among these.
    pub(super) live: Vec<(String, SessionNumber)>,
    /// Whether `shares` are those of the rules.
    pub(super) has_rules: bool,
    /// All relays in etcd, by name, and their weights: each share's order follows from them. Which of them
    /// take shares now is decided later.
    relays: Vec<(Arc<str>, u32)>,
    /// The sets of roles that shares need.
    needs: Vec<BTreeSet<String>>,
}

/// The plan for a share.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Planned {
    /// Its holder, if that one's session has not ended.
    pub(super) holder: Option<Arc<str>>,
    /// The holder's index in [`Plan::relays`].
    holder_index: Option<usize>,
    /// The relay that is to take it next; never the holder.
    pub(super) standby: Option<Arc<str>>,
    /// Whether the standby could forward it well.
    pub(super) is_fit: bool,
    /// Whether the standby receives more of its rules than the holder.
    pub(super) receives_more: bool,
    /// Whether any relay receives it.
    is_received: bool,
    /// Relays that receive less of it than another does, and what.
    pub(super) lacking: BTreeMap<Arc<str>, String>,
    /// While nobody holds it, how many relays are to take it before this one.
    pub(super) rank: Option<u64>,
    /// Whether only this relay has the roles that it needs.
    pub(super) sole: bool,
    /// Index of its roles in [`Plan::needs`].
    needs: usize,
    /// Indices in [`Plan::relays`], the preferred relay first.
    order: Vec<usize>,
}

/// The current state of the relays, by their indices in [`Plan::relays`].
struct Relays<'a> {
    /// This relay's index.
    me: Option<usize>,
    /// Their entries; `None`: the session has ended.
    entries: Vec<Option<&'a RelayEntry>>,
    /// How much each may take; 0: nothing.
    weights: Vec<u32>,
    /// How many shares each holds.
    held: Vec<u64>,
    /// The relays that have each of [`Plan::needs`].
    able: Vec<Able>,
}

/// The relays that have a set of roles.
struct Able {
    /// By index: whether the relay takes shares.
    takers: Vec<bool>,
    /// Whether this relay has them, and no other live one.
    sole: bool,
}

impl Relays<'_> {
    /// The loads with which others than `holder` may take shares, of `shares` in all.
    fn loads(&self, holder: Option<usize>, shares: usize) -> Loads {
        let weights = self.weights.iter().enumerate();
        let others = weights.map(|(index, weight)| if Some(index) == holder { 0 } else { *weight });
        let mut loads = Loads::new(others, shares);
        for (index, held) in self.held.iter().enumerate() {
            loads.hold(index, *held);
        }
        loads
    }
}

impl Member {
    pub(super) fn replan(&mut self) {
        self.plan_monitors();
        self.order_relays();
        self.plan_shares();
        let me = self.config.relay.as_str();
        let is_me = |name: &Option<Arc<str>>| name.as_deref() == Some(me);
        let stays: BTreeSet<String> = match &self.gates.installing {
            Some(installing) if !self.takes_part() => installing.clone(),
            _ => BTreeSet::new(),
        };
        let shares = self.plan.shares.iter();
        self.plan.install = shares
            .filter(|(share, it)| is_me(&it.standby) || is_me(&it.holder) || stays.contains(*share))
            .map(|(share, _)| share.clone())
            .collect();
        self.note_contested();
        self.note_vacant();
        self.note_standbys();
        let size = self.plan.shares.len() * self.plan.relays.len();
        self.plan.rests_until = self.now + size as u64 * REST;
        self.plan.made += 1;
    }

    /// Updates each share's order of relays, which changes only with the relays and their weights.
    fn order_relays(&mut self) {
        let relays = self.replica.relays();
        let pairs = relays.map(|(name, entry)| (name, entry.weight));
        let previous = self.plan.relays.iter();
        let has_order = pairs
            .clone()
            .eq(previous.map(|(name, weight)| (&**name, *weight)));
        if has_order && self.plan.has_rules {
            return;
        }
        self.plan.relays = pairs.map(|(name, weight)| (name.into(), weight)).collect();
        let relays = self.plan.relays.iter();
        let candidates: Vec<_> = relays
            .map(|(name, weight)| Candidate {
                name,
                weight: *weight,
            })
            .collect();
        let mut previous = std::mem::take(&mut self.plan.shares);
        let mut needs: BTreeMap<&BTreeSet<String>, usize> = BTreeMap::new();
        for (share, roles) in &self.rules.shares {
            let next = needs.len();
            let mut planned = previous.remove(share).unwrap_or_default();
            planned.needs = *needs.entry(roles).or_insert(next);
            planned.holder = None;
            if !has_order || planned.order.is_empty() {
                planned.order = order(share, &candidates);
            }
            self.plan.shares.insert(share.clone(), planned);
        }
        let mut sorted: Vec<_> = needs.into_iter().collect();
        sorted.sort_unstable_by_key(|(_, index)| *index);
        self.plan.needs = sorted.into_iter().map(|(roles, _)| roles.clone()).collect();
        self.plan.has_rules = true;
    }

    fn plan_shares(&mut self) {
        let own = self.own_entry();
        let mut shares = std::mem::take(&mut self.plan.shares);
        // Both maps are sorted by name: they are merged, without a look-up for each of a thousand shares.
        let mut entries = self.replica.shares.iter().peekable();
        for (share, planned) in &mut shares {
            while entries.next_if(|(name, _)| *name < share).is_some() {}
            let entry = entries.next_if(|(name, _)| *name == share);
            let holder = entry.and_then(|(_, entry)| self.holder(&entry.value));
            if holder != planned.holder.as_deref() {
                planned.holder_index = holder.and_then(|name| self.index_of(name));
                planned.holder = holder.map(Arc::from);
            }
        }
        let relays = self.relays(&own, &shares);
        let total = shares.len();
        let mut loads = BTreeMap::new();
        let mut sole = Vec::new();
        let mut begun = BTreeSet::new();
        for (share, planned) in &mut shares {
            let holder = planned.holder.as_ref().and(planned.holder_index);
            let of_holder = loads.entry(holder);
            let loads = of_holder.or_insert_with(|| relays.loads(holder, total));
            let (was_sole, was_received) = (planned.sole, planned.is_received);
            self.plan_share(share, planned, holder, &relays, loads);
            if planned.is_received && !was_received {
                begun.insert(share.clone());
            }
            if planned.sole && !was_sole {
                sole.push(share.clone());
            }
        }
        self.plan.shares = shares;
        self.source_begins(&begun);
        for share in sole {
            self.report(FleetEvent::Sole { share });
        }
    }

    fn plan_share(
        &self,
        share: &str,
        planned: &mut Planned,
        holder: Option<usize>,
        relays: &Relays<'_>,
        loads: &mut Loads,
    ) {
        let Able { takers, sole } = &relays.able[planned.needs];
        let is_able = |index: &usize| takers[*index] && Some(*index) != holder;
        let lacking = self.lacking(share, &relays.entries);
        let lacks = |index: &usize| lacking.contains_key(&self.plan.relays[*index].0);
        let is_unfit = |index: &usize| {
            relays.entries[*index].is_none_or(|entry| entry.unfit.contains_key(share))
        };
        let is_fit = |index: &usize| !is_unfit(index) && !lacks(index);
        let able = planned.order.iter().copied().filter(is_able);
        let fit = able.clone().filter(is_fit);
        let wish = self.replica.moved_to(share);
        let wished = wish.and_then(|wish| self.index_of(&wish.value.relay));
        let received = |index: usize| relays.entries[index]?.heard.get(share).copied();
        // If the holder receives nothing either, one that has not tried comes first.
        let has_tried = |index: &usize| received(*index) == Some(0);
        // An unfit relay comes later, one that receives less than another last.
        let unfit = able
            .clone()
            .filter(|index| is_unfit(index) && !lacks(index));
        let lacking_ones = able.filter(lacks);
        // An operator's wish counts whatever the load.
        let first = loads
            .take(fit.clone().filter(|index| Some(*index) == wished))
            .or_else(|| loads.take(fit.clone().filter(|index| !has_tried(index))))
            .or_else(|| loads.take(fit.clone()))
            .or_else(|| loads.take(unfit.clone()))
            .or_else(|| loads.take(lacking_ones.clone()));
        planned.rank = None;
        if planned.holder.is_none() {
            let all = fit.chain(unfit).chain(lacking_ones);
            let others = all.filter(|index| Some(*index) != first);
            let mut ranked = first.into_iter().chain(others).take(RANKED_MAX);
            let rank = ranked.position(|index| Some(index) == relays.me);
            planned.rank = rank.map(|rank| rank as u64);
        }
        planned.is_fit = first.as_ref().is_some_and(is_fit);
        let by_holder = holder.and_then(received);
        planned.receives_more = first.and_then(received) > by_holder && by_holder.is_some();
        planned.standby = first.map(|index| Arc::clone(&self.plan.relays[index].0));
        planned.sole = *sole;
        let mut entries = relays.entries.iter().flatten();
        planned.is_received = entries.any(|entry| entry.heard.get(share).is_some_and(|n| *n > 0));
        planned.lacking = lacking;
    }

    /// Relays that receive less of a share than another does, and what.
    fn lacking(&self, share: &str, entries: &[Option<&RelayEntry>]) -> BTreeMap<Arc<str>, String> {
        let names = self.plan.relays.iter().map(|(name, _)| name);
        let live = names
            .zip(entries)
            .filter_map(|(name, entry)| Some((name, (*entry)?)));
        let received = live
            .clone()
            .filter_map(|(name, e)| Some((*e.heard.get(share)?, &**name)));
        let Some(most) = received.max() else {
            return BTreeMap::new();
        };
        live.filter_map(|(name, e)| Some((Arc::clone(name), lacks(e, share, most)?)))
            .collect()
    }

    /// The current state of the relays, `own` being this one's entry.
    fn relays<'a>(&'a self, own: &'a RelayEntry, shares: &BTreeMap<String, Planned>) -> Relays<'a> {
        let me = self.config.relay.as_str();
        let mut relays = Relays {
            me: self.index_of(me),
            entries: Vec::new(),
            weights: Vec::new(),
            held: vec![0; self.plan.relays.len()],
            able: Vec::new(),
        };
        for (name, weight) in &self.plan.relays {
            let entry = self.replica.relay(name).filter(|entry| !entry.fenced);
            let takes = entry.is_some()
                && !self.fencing.is_garbled(name)
                && !self.replica.is_drained(name)
                && !self.fencing.is_silent(name);
            let is_me = **name == *me;
            relays
                .entries
                .push(entry.map(|entry| if is_me { own } else { entry }));
            relays.weights.push(if takes { *weight } else { 0 });
        }
        let held = shares.values().filter(|share| share.holder.is_some());
        for index in held.filter_map(|share| share.holder_index) {
            relays.held[index] += 1;
        }
        for roles in &self.plan.needs {
            let has_roles = |entry: &RelayEntry| entry.roles.is_superset(roles);
            let (mut takers, mut others_have_roles) = (Vec::new(), false);
            for (index, entry) in relays.entries.iter().enumerate() {
                let is_able = entry.is_some_and(has_roles);
                takers.push(is_able && relays.weights[index] > 0);
                others_have_roles |= is_able && Some(index) != relays.me;
            }
            let sole = self.config.roles.is_superset(roles) && !others_have_roles;
            relays.able.push(Able { takers, sole });
        }
        relays
    }

    /// A relay's index in [`Plan::relays`].
    fn index_of(&self, relay: &str) -> Option<usize> {
        let relays = &self.plan.relays;
        relays
            .binary_search_by(|(name, _)| (**name).cmp(relay))
            .ok()
    }

    /// The relay that a share's entry names, unless its session has ended.
    pub(super) fn holder<'a>(&self, entry: &'a ShareEntry) -> Option<&'a str> {
        if entry.relay == self.config.relay {
            return (entry.session == self.session.number).then_some(&entry.relay);
        }
        if faulty!(self, ClaimUnfenced)
            && self
                .fencing
                .watched(&entry.relay)
                .is_some_and(|w| self.now > w.seen + 400_000_000)
        {
            return None;
        }
        let has_ended = self.replica.has_ended(&entry.relay, entry.session);
        (!has_ended).then_some(&entry.relay)
    }

    /// The revision of a share's key, if this relay's session holds the share.
    pub(super) fn holds(&self, share: &str) -> Option<u64> {
        let entry = self.replica.shares.get(share)?;
        let session: SessionNumber = self.session.number;
        let is_own = entry.value.relay == self.config.relay && entry.value.session == session;
        (is_own && self.session.has_begun()).then_some(entry.modified)
    }

    /// Whether the plan counts with this relay. Between two sessions it does not, and what is installed stays
    /// so, with its counters, until it is known what this relay is to hold or stand by for.
    fn takes_part(&self) -> bool {
        let own = self.replica.relay(&self.config.relay);
        self.session.phase == PhaseName::Left
            || own.is_some_and(|own| !own.fenced && own.session == self.session.number)
    }

    /// Has the data plane prepare the shares that this relay holds or stands by for.
    pub(super) fn install(&mut self) {
        // What a former process left stays so, too.
        let is_decided = self.gates.installing.is_some()
            || self.takes_part()
            || self.session.has_begun() && !self.plan.install.is_empty();
        if self.gates.installing.as_ref() != Some(&self.plan.install)
            && self.session.phase != PhaseName::Starting
            && is_decided
        {
            let shares = self.plan.install.clone();
            self.gates.installing = Some(shares.clone());
            self.out.push(super::Command::Install { shares });
        }
    }

    /// This relay's entry for the others.
    pub(super) fn own_entry(&self) -> RelayEntry {
        RelayEntry {
            session: self.session.number,
            peer: self.config.peer,
            roles: self.config.roles.clone(),
            weight: self.config.weight,
            version: self.config.version.clone(),
            generation: self.rules.generation,
            unfit: self.own_unfit(),
            heard: self.own_received(),
            fenced: false,
            since: self.calendar(),
        }
    }
}

/// Why an entry's relay serves a share worse than the relay that receives most of it, if it does.
fn lacks(entry: &RelayEntry, share: &str, (most, best): (u32, &str)) -> Option<String> {
    let received = *entry.heard.get(share)?;
    (received < most).then(|| match received {
        0 => format!("receives nothing of it, and {best} does"),
        received => format!("receives {received} of the rules of which {best} receives {most}"),
    })
}
