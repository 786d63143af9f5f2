//! Who is next for each share: what every relay works out alike from what etcd holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{BeatMonitor, RelayEntry, SessionNumber};
use crate::member::{FleetEvent, Member, faulty};
use crate::placement::{Candidate, Loads, order};

/// So many relays stand in line for a share.
const LINE_MAX: usize = 8;

/// The plan.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) shares: BTreeMap<String, Planned>,
    /// Shares that this relay is to have compiled and joined.
    pub(super) install: BTreeSet<String>,
    /// Whom this relay lists as its monitors.
    pub(super) monitors: Vec<BeatMonitor>,
    /// Who is to list this relay.
    pub(super) monitored: BTreeSet<String>,
    /// Relays that take shares, with their weights, and the orders that come of them.
    takers: Vec<(String, u32)>,
    orders: BTreeMap<String, Vec<String>>,
}

/// What is planned for a share.
#[derive(Debug, Default)]
pub(super) struct Planned {
    /// Who holds it, with a session that has not ended.
    pub(super) holder: Option<String>,
    /// Who is to take it, the first first; never the holder.
    pub(super) line: Vec<String>,
    /// The first could forward it well.
    pub(super) is_fit: bool,
    /// Only this relay has the roles that it needs.
    pub(super) sole: bool,
}

impl Planned {
    pub(super) fn standby(&self) -> Option<&str> {
        self.line.first().map(String::as_str)
    }
}

impl Member {
    pub(super) fn replan(&mut self) {
        self.plan_monitors();
        self.order_takers();
        let planned = self.planned();
        let before = std::mem::replace(&mut self.plan.shares, planned);
        let new_sole = |(share, planned): (&String, &Planned)| {
            let known = before.get(share).is_some_and(|before| before.sole);
            (planned.sole && !known).then(|| share.clone())
        };
        let sole: Vec<_> = self.plan.shares.iter().filter_map(new_sole).collect();
        for share in sole {
            self.tell(FleetEvent::Sole { share });
        }
        let me = &self.config.relay;
        let mine = |p: &Planned| p.standby() == Some(me) || p.holder.as_ref() == Some(me);
        let install = self.plan.shares.iter().filter(|(_, planned)| mine(planned));
        self.plan.install = install.map(|(share, _)| share.clone()).collect();
        self.note_vacant();
        self.note_standbys();
    }

    /// Keeps each share's order of relays: only other relays or weights make another.
    fn order_takers(&mut self) {
        let live = self
            .book
            .live()
            .filter(|(name, _)| !self.book.is_drained(name));
        let takers: Vec<_> = live
            .map(|(name, entry)| (name.to_owned(), entry.weight))
            .collect();
        if takers != self.plan.takers {
            self.plan.takers = takers;
            self.plan.orders.clear();
        }
        let shares = &self.rules.shares;
        self.plan
            .orders
            .retain(|share, _| shares.contains_key(share));
        let takers = &self.plan.takers;
        for share in shares.keys() {
            self.plan.orders.entry(share.clone()).or_insert_with(|| {
                let takers = takers.iter();
                let takers = takers.map(|(name, weight)| Candidate {
                    name,
                    weight: *weight,
                });
                let names = order(share, takers, None).into_iter();
                names.map(str::to_owned).collect()
            });
        }
    }

    fn planned(&self) -> BTreeMap<String, Planned> {
        let own = self.own_entry();
        let entries: BTreeMap<&str, &RelayEntry> = self
            .book
            .live()
            .map(|(name, entry)| {
                (
                    name,
                    if name == self.config.relay {
                        &own
                    } else {
                        entry
                    },
                )
            })
            .collect();
        let takers = self.plan.takers.iter();
        let takers: Vec<_> = takers
            .map(|(name, weight)| Candidate {
                name,
                weight: *weight,
            })
            .collect();
        let mut groups: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
        for share in self.rules.shares.keys() {
            groups.entry(self.holder(share)).or_default().push(share);
        }
        let mut planned = BTreeMap::new();
        for (holder, shares) in &groups {
            let others = || takers.iter().copied().filter(|c| Some(c.name) != *holder);
            let mut loads = Loads::new(others(), self.rules.shares.len());
            for (other, held) in groups.iter().filter(|(other, _)| *other != holder) {
                held.iter()
                    .filter_map(|_| *other)
                    .for_each(|other| loads.hold(other));
            }
            for share in shares {
                let line = self.line(share, *holder, &entries, &mut loads);
                let first = line.first().and_then(|first| entries.get(first.as_str()));
                let is_fit = first.is_some_and(|entry| !entry.unfit.contains_key(*share));
                let planned_share = Planned {
                    holder: holder.map(str::to_owned),
                    line,
                    is_fit,
                    sole: self.is_sole(share, &entries),
                };
                planned.insert((*share).to_owned(), planned_share);
            }
        }
        planned
    }

    fn line(
        &self,
        share: &str,
        holder: Option<&str>,
        entries: &BTreeMap<&str, &RelayEntry>,
        loads: &mut Loads<'_>,
    ) -> Vec<String> {
        let roles = &self.rules.shares[share];
        let able = |name: &&str| entries[*name].roles.is_superset(roles) && Some(*name) != holder;
        let fit = |name: &&str| !entries[*name].unfit.contains_key(share);
        let moved = self
            .book
            .moved_to(share)
            .map(|known| known.value.relay.as_str());
        let mut line: Vec<&str> = self.plan.orders[share]
            .iter()
            .map(String::as_str)
            .filter(able)
            .collect();
        // An operator's wish counts whatever the load.
        let wish: Vec<_> = line
            .iter()
            .copied()
            .filter(|name| moved == Some(*name) && fit(name))
            .collect();
        let among: Vec<_> = { line.iter().copied() }.filter(fit).collect();
        let among = [&wish, &among, &line]
            .into_iter()
            .find(|among| !among.is_empty());
        let first = among.and_then(|among| loads.take(among));
        // One that is not fit comes last, but before nobody.
        line.sort_by_key(|name| (Some(*name) != first, !fit(name)));
        line.truncate(LINE_MAX);
        line.into_iter().map(str::to_owned).collect()
    }

    fn is_sole(&self, share: &str, entries: &BTreeMap<&str, &RelayEntry>) -> bool {
        let roles = &self.rules.shares[share];
        let can = |entry: &RelayEntry| entry.roles.is_superset(roles);
        let others = entries
            .iter()
            .filter(|(name, _)| **name != self.config.relay);
        self.config.roles.is_superset(roles) && !others.into_iter().any(|(_, entry)| can(entry))
    }

    /// Who holds a share with a session that has not ended, as far as is known.
    fn holder(&self, share: &str) -> Option<&str> {
        let entry = &self.book.shares.get(share)?.value;
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
        let ended = self.book.has_ended(&entry.relay, entry.session);
        (!ended).then_some(&entry.relay)
    }

    /// Whether this relay's session holds a share, and at which revision of its key.
    pub(super) fn holds(&self, share: &str) -> Option<u64> {
        let known = self.book.shares.get(share)?;
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
        let unfit = self.rules.failed.iter().chain(&self.rules.unfit);
        let short = |reason: &String| {
            let clean = reason.chars().filter(|c| !c.is_control());
            clean.take(60).collect::<String>()
        };
        RelayEntry {
            session: self.session.number,
            peer: self.config.peer,
            roles: self.config.roles.clone(),
            weight: self.config.weight,
            version: self.config.version.clone(),
            generation: self.rules.generation,
            unfit: unfit
                .map(|(share, reason)| (share.clone(), short(reason)))
                .collect(),
            fenced: false,
            since: self.calendar(),
        }
    }
}
