//! Who is next for each share: every relay computes the same from what etcd holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::keys::{BeatMonitor, RelayEntry, SessionNumber, ShareEntry};
use crate::member::{FleetEvent, Member, faulty};
use crate::placement::{Candidate, Loads, order};

/// So many relays stand in line for a share.
const LINE_MAX: usize = 8;

/// How long a plan rests for each share and relay in it, in ns: so planning takes a small part of the time,
/// however much happens. Tests have small fleets.
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
    /// Whom this relay lists as its monitors.
    pub(super) monitors: Vec<BeatMonitor>,
    /// Who is to list this relay.
    pub(super) monitored: BTreeSet<String>,
    /// Relays with a session and which it is: those that monitors were chosen among.
    pub(super) live: Vec<(String, SessionNumber)>,
    /// Whether `shares` are those of the rules.
    pub(super) has_rules: bool,
    /// All relays that etcd knows, by name, and their weights: what each share's order comes of. Who of
    /// them takes shares now is seen as they are looked through.
    relays: Vec<(Arc<str>, u32)>,
    /// The sets of roles that shares need.
    needs: Vec<BTreeSet<String>>,
}

/// What is planned for a share.
#[derive(Debug, Default, Clone, serde::Deserialize, serde::Serialize)]
pub(super) struct Planned {
    /// Who holds it, with a session that has not ended.
    pub(super) holder: Option<Arc<str>>,
    /// Its place in [`Plan::relays`].
    holder_place: Option<usize>,
    /// Who is to take it; never the holder.
    pub(super) standby: Option<Arc<str>>,
    /// The standby could forward it well.
    pub(super) is_fit: bool,
    /// The standby receives more of its rules than the holder.
    pub(super) hears_more: bool,
    /// Somebody receives it.
    is_heard: bool,
    /// Relays that receive less of it than another does, and what.
    pub(super) lacking: BTreeMap<Arc<str>, String>,
    /// While nobody holds it, how many relays are to take it rather than this one.
    pub(super) rank: Option<u64>,
    /// Only this relay has the roles that it needs.
    pub(super) sole: bool,
    /// Place of the roles in [`Plan::needs`].
    needs: usize,
    /// Places in [`Plan::relays`], the first first.
    order: Vec<usize>,
}

/// Relays as they stand, by their places in [`Plan::relays`].
struct Relays<'a> {
    /// This relay's place.
    me: Option<usize>,
    /// Their entries; `None`: its session has ended.
    entries: Vec<Option<&'a RelayEntry>>,
    /// What each may take; 0: nothing.
    weights: Vec<u32>,
    /// How many shares each holds.
    held: Vec<u64>,
    /// Who has each of [`Plan::needs`].
    able: Vec<Able>,
}

/// Who has a set of roles.
struct Able {
    /// By place: relays that take shares.
    takers: Vec<bool>,
    /// This relay, and no other that lives.
    sole: bool,
}

impl Relays<'_> {
    /// What they hold and may take of all `shares`, if what `holder` has is to be taken by others.
    fn loads(&self, holder: Option<usize>, shares: usize) -> Loads {
        let weights = self.weights.iter().enumerate();
        let others = weights.map(|(place, weight)| if Some(place) == holder { 0 } else { *weight });
        let mut loads = Loads::new(others, shares);
        for (place, held) in self.held.iter().enumerate() {
            loads.hold(place, *held);
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
        let is_mine = |name: &Option<Arc<str>>| name.as_deref() == Some(me);
        let install = self
            .plan
            .shares
            .iter()
            .filter(|(_, planned)| is_mine(&planned.standby) || is_mine(&planned.holder));
        self.plan.install = install.map(|(share, _)| share.clone()).collect();
        self.note_vacant();
        self.note_standbys();
        let size = self.plan.shares.len() * self.plan.relays.len();
        self.plan.rests_until = self.now + size as u64 * REST;
        self.plan.made += 1;
    }

    /// Keeps each share's order of relays: only other relays or weights make another.
    fn order_relays(&mut self) {
        let known = self
            .replica
            .relays()
            .map(|(name, entry)| (name, entry.weight));
        let before = self.plan.relays.iter();
        let before = before.map(|(name, weight)| (&**name, *weight));
        let has_order = known.clone().eq(before);
        if has_order && self.plan.has_rules {
            return;
        }
        self.plan.relays = known.map(|(name, weight)| (name.into(), weight)).collect();
        let relays = self.plan.relays.iter();
        let relays: Vec<_> = relays
            .map(|(name, weight)| Candidate {
                name,
                weight: *weight,
            })
            .collect();
        let mut before = std::mem::take(&mut self.plan.shares);
        let mut needs: BTreeMap<&BTreeSet<String>, usize> = BTreeMap::new();
        for (share, roles) in &self.rules.shares {
            let next = needs.len();
            let mut planned = before.remove(share).unwrap_or_default();
            planned.needs = *needs.entry(roles).or_insert(next);
            planned.holder = None;
            if !has_order || planned.order.is_empty() {
                planned.order = order(share, &relays);
            }
            self.plan.shares.insert(share.clone(), planned);
        }
        let mut needs: Vec<_> = needs.into_iter().collect();
        needs.sort_unstable_by_key(|(_, place)| *place);
        self.plan.needs = needs.into_iter().map(|(roles, _)| roles.clone()).collect();
        self.plan.has_rules = true;
    }

    fn plan_shares(&mut self) {
        let own = self.own_entry();
        let mut shares = std::mem::take(&mut self.plan.shares);
        // Both are in the order of the names: a thousand shares are gone through, not looked up.
        let mut known = self.replica.shares.iter().peekable();
        for (share, planned) in &mut shares {
            while known.next_if(|(name, _)| *name < share).is_some() {}
            let known = known.next_if(|(name, _)| *name == share);
            let holder = known.and_then(|(_, known)| self.holder(&known.value));
            if holder != planned.holder.as_deref() {
                planned.holder_place = holder.and_then(|name| self.place(name));
                planned.holder = holder.map(Arc::from);
            }
        }
        let relays = self.relays(&own, &shares);
        let total = shares.len();
        let mut loads = BTreeMap::new();
        let mut sole = Vec::new();
        let mut begun = BTreeSet::new();
        for (share, planned) in &mut shares {
            let holder = planned.holder.as_ref().and(planned.holder_place);
            let loads = loads.entry(holder);
            let loads = loads.or_insert_with(|| relays.loads(holder, total));
            let (was_sole, was_heard) = (planned.sole, planned.is_heard);
            self.plan_share(share, planned, holder, &relays, loads);
            if planned.is_heard && !was_heard {
                begun.insert(share.clone());
            }
            if planned.sole && !was_sole {
                sole.push(share.clone());
            }
        }
        self.plan.shares = shares;
        self.source_begins(&begun);
        for share in sole {
            self.tell(FleetEvent::Sole { share });
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
        let able = |place: &usize| takers[*place] && Some(*place) != holder;
        let lacking = self.lacking(share, &relays.entries);
        let lacks = |place: &usize| lacking.contains_key(&self.plan.relays[*place].0);
        let is_unfit = |place: &usize| {
            relays.entries[*place].is_none_or(|entry| entry.unfit.contains_key(share))
        };
        let is_fit = |place: &usize| !is_unfit(place) && !lacks(place);
        let able = planned.order.iter().copied().filter(able);
        let fit = able.clone().filter(is_fit);
        let wish = self.replica.moved_to(share);
        let wish = wish.and_then(|wish| self.place(&wish.value.relay));
        // An operator's wish counts whatever the load.
        let first = loads.take(fit.clone().filter(|place| Some(*place) == wish));
        // Where the holder hears nothing either, one that has not tried may.
        let has_tried = |place: &usize| {
            let heard = relays.entries[*place].and_then(|entry| entry.heard.get(share));
            heard == Some(&0)
        };
        let first = first.or_else(|| loads.take(fit.clone().filter(|place| !has_tried(place))));
        let first = first.or_else(|| loads.take(fit.clone()));
        // One that is not fit comes later, one that hears less than another last, but before nobody.
        let unfit = able
            .clone()
            .filter(|place| is_unfit(place) && !lacks(place));
        let lacking_ones = able.filter(lacks);
        let first = first.or_else(|| loads.take(unfit.clone()));
        let first = first.or_else(|| loads.take(lacking_ones.clone()));
        let rank = planned.holder.is_none().then(|| {
            let others = fit.chain(unfit).chain(lacking_ones);
            let others = others.filter(|place| Some(*place) != first);
            let mut line = first.into_iter().chain(others).take(LINE_MAX);
            line.position(|place| Some(place) == relays.me)
        });
        planned.rank = rank.flatten().map(|rank| rank as u64);
        planned.is_fit = first.as_ref().is_some_and(is_fit);
        let heard = |place: usize| relays.entries[place]?.heard.get(share).copied();
        let holder_heard = holder.and_then(heard);
        planned.hears_more = first.and_then(heard) > holder_heard && holder_heard.is_some();
        planned.standby = first.map(|place| Arc::clone(&self.plan.relays[place].0));
        planned.sole = *sole;
        planned.is_heard = relays
            .entries
            .iter()
            .flatten()
            .any(|entry| entry.heard.get(share).is_some_and(|heard| *heard > 0));
        planned.lacking = lacking;
    }

    /// Relays that receive less of a share than another does, and what.
    fn lacking(&self, share: &str, entries: &[Option<&RelayEntry>]) -> BTreeMap<Arc<str>, String> {
        let names = self.plan.relays.iter().map(|(name, _)| name);
        let live = names
            .zip(entries)
            .filter_map(|(name, entry)| Some((name, (*entry)?)));
        let heard = live
            .clone()
            .filter_map(|(name, e)| Some((*e.heard.get(share)?, &**name)));
        let Some(most) = heard.max() else {
            return BTreeMap::new();
        };
        let lacking = live.filter_map(|(name, e)| Some((Arc::clone(name), lacks(e, share, most)?)));
        lacking.collect()
    }

    /// How the relays stand, `own` being this one's entry.
    fn relays<'a>(&'a self, own: &'a RelayEntry, shares: &BTreeMap<String, Planned>) -> Relays<'a> {
        let me = self.config.relay.as_str();
        let mut relays = Relays {
            me: self.place(me),
            entries: Vec::new(),
            weights: Vec::new(),
            held: vec![0; self.plan.relays.len()],
            able: Vec::new(),
        };
        for (name, weight) in &self.plan.relays {
            let entry = self.replica.relay(name).filter(|entry| !entry.fenced);
            let entry = entry.map(|entry| if **name == *me { own } else { entry });
            let garbled = self.fencing.is_garbled(name);
            let drained = self.replica.is_drained(name);
            let takes = entry.is_some() && !garbled && !drained && !self.fencing.is_silent(name);
            relays.entries.push(entry);
            relays.weights.push(if takes { *weight } else { 0 });
        }
        let held = shares.values().filter(|share| share.holder.is_some());
        for place in held.filter_map(|share| share.holder_place) {
            relays.held[place] += 1;
        }
        for roles in &self.plan.needs {
            let has = |entry: &RelayEntry| entry.roles.is_superset(roles);
            let has = relays.entries.iter().map(|entry| entry.is_some_and(has));
            let has: Vec<bool> = has.collect();
            let takers = has.iter().zip(&relays.weights);
            let takers = takers.map(|(has, weight)| *has && *weight > 0).collect();
            let mut others = has.iter().enumerate();
            let others = others.any(|(place, has)| *has && Some(place) != relays.me);
            let sole = self.config.roles.is_superset(roles) && !others;
            relays.able.push(Able { takers, sole });
        }
        relays
    }

    /// Where a relay stands among those that are known.
    fn place(&self, relay: &str) -> Option<usize> {
        let relays = &self.plan.relays;
        relays
            .binary_search_by(|(name, _)| (**name).cmp(relay))
            .ok()
    }

    /// Whom a share's entry names, if its session has not ended as far as is known.
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
        let ended = self.replica.has_ended(&entry.relay, entry.session);
        (!ended).then_some(&entry.relay)
    }

    /// Whether this relay's session holds a share, and at which revision of its key.
    pub(super) fn holds(&self, share: &str) -> Option<u64> {
        let known = self.replica.shares.get(share)?;
        let session: SessionNumber = self.session.number;
        let own = known.value.relay == self.config.relay && known.value.session == session;
        (own && self.session.has_begun()).then_some(known.modified)
    }

    /// Has the data plane prepare what this relay holds or is next for.
    pub(super) fn install(&mut self) {
        if self.gates.installing.as_ref() != Some(&self.plan.install)
            && self.session.phase != super::PhaseName::Starting
        {
            let shares = self.plan.install.clone();
            self.gates.installing = Some(shares.clone());
            self.out.push(super::Command::Install { shares });
        }
    }

    /// What others are to know of this relay.
    pub(super) fn own_entry(&self) -> RelayEntry {
        RelayEntry {
            session: self.session.number,
            peer: self.config.peer,
            roles: self.config.roles.clone(),
            weight: self.config.weight,
            version: self.config.version.clone(),
            generation: self.rules.generation,
            unfit: self.own_unfit(),
            heard: self.own_heard(),
            fenced: false,
            since: self.calendar(),
        }
    }
}

/// Why an entry's relay serves a share worse than the one that receives most of it, if it does.
fn lacks(entry: &RelayEntry, share: &str, (most, best): (u32, &str)) -> Option<String> {
    let heard = *entry.heard.get(share)?;
    (heard < most).then(|| match heard {
        0 => format!("receives nothing of it, and {best} does"),
        heard => format!("receives {heard} of the rules of which {best} receives {most}"),
    })
}
