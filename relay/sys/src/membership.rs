//! IGMPv3 and MLDv2 memberships, spread over as many sockets as the per-socket limits require: 20
//! groups (`igmp_max_memberships`) and 10 sources of a group (`igmp_max_msf`) by default.
//!
//! The limits are determined by running into them, so a host that raised them gets fewer sockets. The sockets
//! are never bound: no datagram reaches them and no socket lookup finds them. A set can be assembled from
//! sockets that another process opened, because memberships last as long as any process holds the socket.

mod listed;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

pub use listed::{Listed, igmp_versions};
use socket::{Room, Socket};

/// One group on one interface, from any source or from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// Index of the interface.
    pub interface: u32,
    /// The group; [`ALL`] for all at once.
    pub group: IpAddr,
    /// The source; `None` for any.
    pub source: Option<IpAddr>,
}

/// In place of a group: the interface takes all groups (`allmulticast`), and no report is sent.
pub const ALL: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Why a membership is missing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused the join.
    #[error("cannot join {}: {source}{}", shown(.membership), hint(.source))]
    Join {
        /// What was to be joined.
        membership: Membership,
        /// The kernel's error.
        source: io::Error,
    },
    /// No socket to join with.
    #[error("cannot open a socket for memberships: {0}")]
    Open(#[source] io::Error),
    /// A descriptor that is no socket for memberships.
    #[error("cannot take over a descriptor as a membership socket: {0}")]
    Adopt(#[source] io::Error),
}

/// How many changes of a set are recorded one by one.
const RECENT: usize = 1024;

/// The most queries of a socket for a group by [`Memberships::claim_listed`]: start-up waits for them.
const CHECKS_MAX: usize = 100_000;

/// The memberships this process holds.
#[derive(Debug, Default)]
pub struct Memberships {
    sockets: BTreeMap<u32, Socket>,
    /// Those not known to be full.
    with_room: BTreeSet<u32>,
    held: BTreeMap<Membership, u32>,
    next: u32,
    revision: u64,
    /// The changes that led to the last revisions.
    recent: VecDeque<Change>,
}

/// A membership that was added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Number of the socket.
    pub number: u32,
    /// The membership.
    pub membership: Membership,
    /// Whether it was added.
    pub joined: bool,
}

/// One socket of the set, to be held beyond this process.
#[derive(Debug)]
pub struct Held<'a> {
    /// Number of the socket within the set; never used twice.
    pub number: u32,
    /// The socket.
    pub socket: BorrowedFd<'a>,
    /// What is joined through it.
    pub memberships: Vec<Membership>,
}

impl Memberships {
    /// Makes an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over a socket that another process joined with and numbered `number`. Those of `claims` that the
    /// kernel confirms are recorded.
    ///
    /// # Errors
    /// [`Error::Adopt`] where `socket` is not one for memberships, or of another network namespace; `number` will
    /// not be used again all the same.
    pub fn adopt(
        &mut self,
        number: u32,
        socket: OwnedFd,
        claims: impl IntoIterator<Item = Membership>,
    ) -> Result<(), Error> {
        self.next = self.next.max(number);
        let mut socket = Socket::adopt(socket).map_err(Error::Adopt)?;
        self.revision += 1;
        self.recent.clear();
        for claim in claims {
            if !self.held.contains_key(&claim) && socket.confirm(claim) {
                self.held.insert(claim, number);
            }
        }
        self.sockets.insert(number, socket);
        self.with_room.insert(number);
        Ok(())
    }

    /// Takes over what the adopted sockets joined and no claim named, and returns how much that was: a process may
    /// be killed between a join or a leave and its record.
    pub fn claim_listed(&mut self, listed: &Listed) -> usize {
        let mut unclaimed: Vec<Membership> = listed.iter().copied().collect();
        unclaimed.retain(|group| !self.held.contains_key(group));
        // Groups that are held in part are mostly recorded already: they go last.
        unclaimed.sort_by_key(|group| self.has_sources(group));
        let most = CHECKS_MAX / self.sockets.len().max(1);
        let before = self.held.len();
        for Membership {
            interface, group, ..
        } in unclaimed.into_iter().take(most)
        {
            for (number, socket) in &mut self.sockets {
                if socket.is_ipv4() == group.is_ipv4() {
                    for membership in socket.claim(interface, group) {
                        self.held.entry(membership).or_insert(*number);
                    }
                }
            }
        }
        let claimed = self.held.len() - before;
        if claimed > 0 {
            self.revision += 1;
            self.recent.clear();
        }
        claimed
    }

    /// Joins; does nothing if it is joined already.
    ///
    /// # Errors
    /// [`Error::Join`] with the kernel's error, at once: `ENODEV` for an interface that does not exist, `EINVAL`
    /// for an address that is no group.
    pub fn join(&mut self, membership: Membership) -> Result<(), Error> {
        if self.held.contains_key(&membership) {
            return Ok(());
        }
        let refused = |source| Error::Join { membership, source };
        for number in self.candidates(&membership) {
            let socket = self.sockets.get_mut(&number);
            let Some(socket) = socket.filter(|socket| socket.may_take(&membership)) else {
                continue;
            };
            if socket.join(membership).map_err(refused)? == Room::Available {
                self.held.insert(membership, number);
                self.note(number, membership, true);
                return Ok(());
            }
            if socket.is_full() {
                self.with_room.remove(&number);
            }
        }
        let mut socket = Socket::open(membership.group).map_err(Error::Open)?;
        if socket.join(membership).map_err(refused)? == Room::None {
            return Err(refused(io::Error::from_raw_os_error(libc::ENOBUFS)));
        }
        self.next += 1;
        self.sockets.insert(self.next, socket);
        self.with_room.insert(self.next);
        self.held.insert(membership, self.next);
        self.note(self.next, membership, true);
        Ok(())
    }

    /// The sockets that may take a membership: those that other sources of the group are joined through,
    /// and those with room. There may be thousands of others.
    fn candidates(&self, membership: &Membership) -> Vec<u32> {
        let group = Membership {
            source: None,
            ..*membership
        };
        let same = |held: &Membership| {
            (held.interface, held.group) == (membership.interface, membership.group)
        };
        let from_group = self.held.range(group..);
        let of_group = from_group.take_while(|(held, _)| same(held));
        let mut numbers: BTreeSet<u32> = of_group.map(|(_, number)| *number).collect();
        numbers.extend(&self.with_room);
        numbers.into_iter().collect()
    }

    /// Leaves, even if the interface no longer exists; does nothing if it is not joined.
    pub fn leave(&mut self, membership: Membership) {
        let Some(number) = self.held.remove(&membership) else {
            return;
        };
        self.note(number, membership, false);
        if let Some(socket) = self.sockets.get_mut(&number) {
            socket.leave(membership);
            self.with_room.insert(number);
            if socket.is_empty() {
                self.sockets.remove(&number);
                self.with_room.remove(&number);
            }
        }
    }

    /// Joins what is wanted and not held, then leaves what is held and not wanted: a group that only changes its
    /// sources is never left in between. Returns every failed join.
    pub fn reconcile(&mut self, wanted: &BTreeSet<Membership>) -> Vec<Error> {
        let failed = wanted
            .iter()
            .map(|membership| self.join(*membership))
            .filter_map(Result::err)
            .collect();
        let unwanted = self.held.keys().filter(|held| !wanted.contains(held));
        // Last joined first: the kernel searches a device's list from its newest entry on.
        for membership in unwanted.copied().rev().collect::<Vec<_>>() {
            self.leave(membership);
        }
        failed
    }

    /// Leaves and joins everything on an interface, so that routers and switches receive new reports: for a link
    /// that regains its carrier without having gone down, or is added again with its number.
    pub fn rejoin(&mut self, interface: u32) -> Vec<Error> {
        let here = |membership: &&Membership| membership.interface == interface;
        let memberships: Vec<Membership> = self.held.keys().filter(here).copied().collect();
        for membership in &memberships {
            self.leave(*membership);
        }
        let again = memberships
            .into_iter()
            .map(|membership| self.join(membership));
        again.filter_map(Result::err).collect()
    }

    /// Returns whether a membership is held.
    pub fn holds(&self, membership: &Membership) -> bool {
        self.held.contains_key(membership)
    }

    /// The sources that a group is joined from, none for any; `None` where it is not joined.
    pub fn sources(&self, interface: u32, group: IpAddr) -> Option<Vec<IpAddr>> {
        let any = Membership {
            interface,
            group,
            source: None,
        };
        let from_group = self.held.range(any..).map(|(held, _)| held);
        let mut of_group =
            from_group.take_while(|held| (held.interface, held.group) == (interface, group));
        let first = of_group.next()?;
        Some(match first.source {
            None => Vec::new(),
            Some(source) => std::iter::once(source)
                .chain(of_group.filter_map(|held| held.source))
                .collect(),
        })
    }

    /// Lists what is held and not joined: a socket continues to list a group when its interface is removed or was
    /// without addresses of the family for a moment, even when another one is added with the number.
    pub fn missing(&self, listed: &Listed) -> Vec<Membership> {
        let missing = self.held.keys().filter(|held| !listed.has(held));
        missing.copied().collect()
    }

    /// Counts the memberships.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether nothing is joined.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The sockets, and what is joined through each.
    pub fn sockets(&self) -> impl Iterator<Item = Held<'_>> {
        self.sockets.iter().map(|(number, socket)| Held {
            number: *number,
            socket: socket.as_fd(),
            memberships: socket.memberships(),
        })
    }

    /// The socket of that number, if something is joined through it.
    pub fn socket(&self, number: u32) -> Option<BorrowedFd<'_>> {
        self.sockets.get(&number).map(Socket::as_fd)
    }

    /// Grows with every membership that is added or removed.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// What was added and removed since `revision`, oldest first; `None` where that is too long ago.
    pub fn changes_since(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        let missed = usize::try_from(self.revision.checked_sub(revision)?).ok()?;
        let seen = self.recent.len().checked_sub(missed)?;
        Some(self.recent.iter().skip(seen))
    }

    /// The kernel's lists of the families of the sockets, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel's lists cannot be read.
    pub fn listed(&self) -> io::Result<Listed> {
        let has = |ipv4| self.sockets.values().any(|socket| socket.is_ipv4() == ipv4);
        Listed::read(has(true), has(false))
    }

    /// Returns whether some source of a group is held.
    fn has_sources(&self, group: &Membership) -> bool {
        let next = self.held.range(*group..).next();
        next.is_some_and(|(held, _)| (held.interface, held.group) == (group.interface, group.group))
    }

    fn note(&mut self, number: u32, membership: Membership, joined: bool) {
        self.revision += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Change {
            number,
            membership,
            joined,
        });
    }
}

impl Drop for Memberships {
    /// Last opened first: the kernel searches a device's list from its newest entry on, and 20,000
    /// groups of 1,000 sockets are left in 3 s instead of 72.
    fn drop(&mut self) {
        while self.sockets.pop_last().is_some() {}
    }
}

fn shown(membership: &Membership) -> String {
    let Membership {
        interface, group, ..
    } = membership;
    match membership.source {
        None => format!("{group} on interface {interface}"),
        Some(source) => format!("{source}@{group} on interface {interface}"),
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            " (net.ipv4.igmp_max_memberships, igmp_max_msf or net.core.optmem_max is 0 or very small)"
        }
        Some(libc::ENODEV) => " (the interface is gone, or its MTU is too small for the protocol)",
        _ => "",
    }
}
