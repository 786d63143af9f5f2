//! The joined memberships, kept equal to the wanted ones.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rules::net::Ifindex;
use sys::membership::{Error, Listed, Membership, Memberships};

use super::wanted::of_any;

/// The joined memberships and those that failed.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    set: Memberships,
    failed: BTreeMap<Membership, String>,
    /// Memberships no longer wanted, and when they are left.
    lingering: BTreeMap<Membership, Instant>,
    /// The generation of the rules for which lingering was last checked.
    generation: u64,
    /// The most memberships that may be held while some linger; 0: no limit set.
    most: usize,
    /// When the kernel's lists were last read, and how long that took.
    listed: Option<(Instant, Duration)>,
    /// Whether the host's network has changed since.
    is_doubtful: bool,
}

/// Reading the kernel's lists takes at most one in this many parts of the time: 20,000 groups take some
/// tenths of a second, and are therefore not compared every second.
const REST: u32 = 50;
/// The same while the host's network is unchanged: lost memberships are rare then.
const LONG_REST: u32 = 5_000;

impl Joined {
    /// Joins wanted memberships that are not joined yet, and leaves none. All or nothing: if a join fails,
    /// those made before it are undone.
    pub(crate) fn require(&mut self, wanted: &BTreeSet<Membership>) -> Result<(), Error> {
        let mut made = Vec::new();
        self.lingering
            .retain(|membership, _| !wanted.contains(membership));
        let missing = wanted
            .iter()
            .filter(|membership| !self.set.holds(membership));
        self.make_room(missing.count());
        for membership in wanted {
            // A join that failed before this change does not fail the change.
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

    /// Joins and leaves until exactly `wanted` is joined; failures are recorded and tried again by the
    /// next call.
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

    /// Makes the next check due sooner: the host's network has changed.
    pub(crate) const fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// Returns whether it is time to compare the memberships with the kernel's lists.
    pub(crate) fn is_check_due(&self) -> bool {
        let rest = if self.is_doubtful { REST } else { LONG_REST };
        !self.set.is_empty()
            && self
                .listed
                .is_none_or(|(at, took)| at.elapsed() >= took * rest)
    }

    /// If a check is due, gives up memberships that the kernel has lost, so that the next
    /// [`Joined::settle`] joins them again; returns how many. An interface may have been recreated, or
    /// have been without addresses of the family for a moment, without a notification.
    pub(crate) fn give_up_missing(&mut self) -> usize {
        if !self.is_check_due() {
            return 0;
        }
        let listed = self.list();
        listed.map_or(0, |listed| self.give_up(&self.set.missing(&listed)))
    }

    /// Takes over memberships of an earlier run's sockets that were not recorded, so that they can be
    /// left; then gives up those that the kernel has lost.
    pub(crate) fn take_stock(&mut self) {
        if self.set.sockets().next().is_none() {
            return;
        }
        let Some(listed) = self.list() else { return };
        let memberships = self.set.claim_listed(&listed);
        if memberships > 0 {
            tracing::info!(
                memberships,
                "found memberships that nobody had written down"
            );
        }
        self.give_up(&self.set.missing(&listed));
    }

    /// Reads the kernel's lists.
    fn list(&mut self) -> Option<Listed> {
        self.is_doubtful = false;
        let start = Instant::now();
        let listed = self.set.listed();
        self.listed = Some((start, start.elapsed()));
        listed
            .inspect_err(|error| tracing::warn!(%error, "cannot read what is joined"))
            .ok()
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

    /// Leaves memberships, last joined first: the kernel searches a device's list from its newest entry
    /// on, and 10,000 groups are left 20 times as fast as in the other order.
    pub(crate) fn leave(&mut self, memberships: &BTreeSet<Membership>) {
        for membership in memberships.iter().rev() {
            if !self.lingering.contains_key(membership) {
                self.set.leave(*membership);
            }
        }
    }

    /// Limits the memberships while some linger.
    pub(crate) fn at_most(&mut self, memberships: usize) {
        self.most = memberships;
    }

    /// Lets memberships linger when they are left, each for its own time.
    pub(crate) fn linger(&mut self, memberships: BTreeMap<Membership, Duration>) {
        let now = Instant::now();
        let held = memberships
            .into_iter()
            .filter(|(held, _)| self.set.holds(held));
        self.lingering
            .extend(held.map(|(held, time)| (held, now + time)));
        self.make_room(0);
    }

    /// Leaves memberships that have lingered for their time or that other rules no longer let linger.
    pub(crate) fn end_lingering(&mut self, generation: u64, may: impl Fn(&Membership) -> bool) {
        let now = Instant::now();
        let has_other_rules = std::mem::replace(&mut self.generation, generation) != generation;
        let is_over =
            |held: &Membership, until: &mut Instant| *until <= now || has_other_rules && !may(held);
        let over: Vec<Membership> = self
            .lingering
            .extract_if(.., is_over)
            .map(|(held, _)| held)
            .collect();
        for membership in over.into_iter().rev() {
            self.set.leave(membership);
        }
    }

    /// Makes room for new memberships by leaving lingering ones, those that would end first.
    fn make_room(&mut self, new: usize) {
        while self.most > 0 && self.set.len() + new > self.most {
            let first = self.lingering.iter().min_by_key(|(_, until)| **until);
            let Some(first) = first.map(|(held, _)| *held) else {
                return;
            };
            self.lingering.remove(&first);
            self.set.leave(first);
        }
    }

    /// Drops the memberships of links that were deleted; a link that has the index now is another one.
    pub(crate) fn renew(&mut self, links: &BTreeSet<Ifindex>) {
        if links.is_empty() {
            return;
        }
        let is_on_link = |held: &Membership| links.contains(&Ifindex(held.interface));
        let held: Vec<Membership> = self.held().filter(is_on_link).collect();
        for membership in held {
            self.set.leave(membership);
        }
    }

    /// Rejoins the memberships of a link that came up again.
    pub(crate) fn rejoin(&mut self, link: Ifindex) {
        for error in self.set.rejoin(link.0) {
            self.failed.extend(failure(error));
        }
    }

    /// Returns whether the packets of a membership are requested, perhaps by one for any source.
    pub(crate) fn holds(&self, membership: &Membership) -> bool {
        self.set.holds(membership) || self.set.holds(&of_any(membership))
    }

    /// Why a membership could not be joined.
    pub(crate) fn failure(&self, membership: &Membership) -> Option<&str> {
        self.failed
            .get(membership)
            .or_else(|| self.failed.get(&of_any(membership)))
            .map(String::as_str)
    }

    /// The joined memberships.
    pub(crate) const fn set(&self) -> &Memberships {
        &self.set
    }

    /// Takes over a socket of an earlier run.
    pub(crate) fn adopt(&mut self, number: u32, socket: OwnedFd, claims: Vec<Membership>) {
        if let Err(error) = self.set.adopt(number, socket, claims) {
            tracing::warn!(%error, "memberships of an earlier run");
        }
    }

    /// Returns whether some join failed and should be tried again.
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
