//! The memberships that are joined, held equal to what is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rules::net::Ifindex;
use sys::membership::{Error, Listed, Membership, Memberships};

use super::wanted::of_any;

/// What is joined and what could not be.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    set: Memberships,
    failed: BTreeMap<Membership, String>,
    /// What nobody wants any more and is left by then.
    lingering: BTreeMap<Membership, Instant>,
    /// Of the rules, when it was last looked at who may linger.
    generation: u64,
    /// More than so many memberships are held by nothing that lingers; 0: not known.
    most: usize,
    /// When the kernel's lists were last read, and how long that took.
    looked: Option<(Instant, Duration)>,
    /// Whether something happened to the host's network since.
    is_doubtful: bool,
}

/// Reading the kernel's lists takes at most one part of so many of the time: 20,000 groups take some
/// tenths of a second, and are therefore not compared every second.
const REST: u32 = 50;
/// The same while no notification of the host's network comes: lost ones are rare.
const LONG_REST: u32 = 5_000;

impl Joined {
    /// Joins what is wanted and not joined yet; nothing is left. All or nothing: if a join fails,
    /// those made before it are undone.
    pub(crate) fn require(&mut self, wanted: &BTreeSet<Membership>) -> Result<(), Error> {
        let mut made = Vec::new();
        self.lingering
            .retain(|membership, _| !wanted.contains(membership));
        let coming = wanted
            .iter()
            .filter(|membership| !self.set.holds(membership));
        self.make_room(coming.count());
        for membership in wanted {
            // What failed before this change is not this change's fault.
            if self.set.holds(membership) || self.failed.contains_key(membership) {
                continue;
            }
            if let Err(error) = self.set.join(*membership) {
                for membership in made {
                    self.set.leave(membership);
                }
                return Err(error);
            }
            made.push(*membership);
        }
        Ok(())
    }

    /// Joins and leaves until exactly `wanted` is joined; what fails is remembered and tried again
    /// by the next call.
    pub(crate) fn settle(&mut self, wanted: &BTreeSet<Membership>) {
        self.lingering
            .retain(|membership, _| !wanted.contains(membership));
        let errors = if self.lingering.is_empty() {
            self.set.reconcile(wanted)
        } else {
            let held = self.lingering.keys().filter(|held| self.set.holds(held));
            self.set
                .reconcile(&wanted.iter().chain(held).copied().collect())
        };
        self.failed = errors.into_iter().filter_map(failure).collect();
    }

    /// Has what is joined looked at sooner: something happened to the host's network.
    pub(crate) const fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// Says whether it is time to compare what is held with what is there.
    pub(crate) fn is_look_due(&self) -> bool {
        let rest = if self.is_doubtful { REST } else { LONG_REST };
        !self.set.is_empty()
            && self
                .looked
                .is_none_or(|(at, took)| at.elapsed() >= took * rest)
    }

    /// Gives up what is held and not there, if it is time to look, so that the next [`Joined::settle`]
    /// joins it again, and says how much that was: an interface may have been made anew, or have been
    /// without addresses of the family for a moment, while nobody was told.
    pub(crate) fn give_up_missing(&mut self) -> usize {
        if !self.is_look_due() {
            return 0;
        }
        let listed = self.look();
        listed.map_or(0, |listed| self.give_up(&self.set.missing(&listed)))
    }

    /// Takes over what the sockets of an earlier run joined beside what was written down, so that it
    /// can be left; then gives up what is not there.
    pub(crate) fn take_stock(&mut self) {
        if self.set.sockets().next().is_none() {
            return;
        }
        let Some(listed) = self.look() else { return };
        let memberships = self.set.claim_listed(&listed);
        if memberships > 0 {
            tracing::info!(
                memberships,
                "found memberships that nobody had written down"
            );
        }
        self.give_up(&self.set.missing(&listed));
    }

    /// What the kernel lists.
    fn look(&mut self) -> Option<Listed> {
        self.is_doubtful = false;
        let start = Instant::now();
        let listed = self.set.listed();
        self.looked = Some((start, start.elapsed()));
        let told = listed.inspect_err(|error| tracing::warn!(%error, "cannot read what is joined"));
        told.ok()
    }

    fn give_up(&mut self, missing: &[Membership]) -> usize {
        if let Some(first) = missing.first() {
            tracing::warn!(
                memberships = missing.len(),
                group = %first.group,
                interface = first.interface,
                "what was joined is gone from its interface; joining again"
            );
        }
        for membership in missing.iter().rev() {
            self.set.leave(*membership);
        }
        missing.len()
    }

    /// Leaves what is not wanted any more. Last joined first: the kernel searches a device's list
    /// from its newest entry on, and 10,000 groups are left 20 times as fast as the other way round.
    pub(crate) fn leave(&mut self, memberships: &BTreeSet<Membership>) {
        for membership in memberships.iter().rev() {
            if !self.lingering.contains_key(membership) {
                self.set.leave(*membership);
            }
        }
    }

    /// Holds at most so many where something lingers.
    pub(crate) fn at_most(&mut self, memberships: usize) {
        self.most = memberships;
    }

    /// Has what is left next stay for a time, each its own.
    pub(crate) fn linger(&mut self, memberships: BTreeMap<Membership, Duration>) {
        let now = Instant::now();
        let held = memberships
            .into_iter()
            .filter(|(held, _)| self.set.holds(held));
        self.lingering
            .extend(held.map(|(held, time)| (held, now + time)));
        self.make_room(0);
    }

    /// Leaves what has lingered for its time or, with other rules, may linger no more.
    pub(crate) fn end_lingering(&mut self, generation: u64, may: impl Fn(&Membership) -> bool) {
        let now = Instant::now();
        let has_others = std::mem::replace(&mut self.generation, generation) != generation;
        let is_over =
            |held: &Membership, until: &mut Instant| *until <= now || has_others && !may(held);
        let over: Vec<Membership> = self
            .lingering
            .extract_if(.., is_over)
            .map(|(held, _)| held)
            .collect();
        for membership in over.into_iter().rev() {
            self.set.leave(membership);
        }
    }

    /// Leaves of what lingers that which would end first, for as many as come.
    fn make_room(&mut self, coming: usize) {
        while self.most > 0 && self.set.len() + coming > self.most {
            let first = self.lingering.iter().min_by_key(|(_, until)| **until);
            let Some(first) = first.map(|(held, _)| *held) else {
                return;
            };
            self.lingering.remove(&first);
            self.set.leave(first);
        }
    }

    /// Forgets what was joined on links that were deleted; a link that has the number now is
    /// another one.
    pub(crate) fn renew(&mut self, links: &BTreeSet<Ifindex>) {
        if links.is_empty() {
            return;
        }
        let here = |held: &Membership| links.contains(&Ifindex(held.interface));
        let held: Vec<Membership> = self.held().filter(here).collect();
        for membership in held {
            self.set.leave(membership);
        }
    }

    /// Tells a link that came back what is joined on it.
    pub(crate) fn rejoin(&mut self, link: Ifindex) {
        for error in self.set.rejoin(link.0) {
            self.failed.extend(failure(error));
        }
    }

    /// Says whether packets of a membership are asked for.
    pub(crate) fn holds(&self, membership: &Membership) -> bool {
        self.set.holds(membership) || self.set.holds(&of_any(membership))
    }

    /// Why a membership could not be joined.
    pub(crate) fn failure(&self, membership: &Membership) -> Option<&str> {
        let failed = self.failed.get(membership);
        let failed = failed.or_else(|| self.failed.get(&of_any(membership)));
        failed.map(String::as_str)
    }

    /// What is joined.
    pub(crate) const fn set(&self) -> &Memberships {
        &self.set
    }

    /// Takes over a socket of an earlier run.
    pub(crate) fn adopt(&mut self, number: u32, socket: OwnedFd, claims: Vec<Membership>) {
        if let Err(error) = self.set.adopt(number, socket, claims) {
            tracing::warn!(%error, "memberships of an earlier run");
        }
    }

    /// Says whether some join failed and should be tried again.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.failed.is_empty()
    }

    fn held(&self) -> impl Iterator<Item = Membership> + '_ {
        self.set.sockets().flat_map(|held| held.memberships)
    }
}

fn failure(error: Error) -> Option<(Membership, String)> {
    match &error {
        Error::Join { membership, .. } => Some((*membership, error.to_string())),
        _ => {
            tracing::error!(%error, "memberships");
            None
        }
    }
}
