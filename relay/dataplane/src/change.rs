//! Changes of the table: each part goes to its path, and a route that changes paths is handed over at a time
//! that both paths go by.
//!
//! A tap gets a packet before the program at tc does, and both see the same timestamp. So both paths have such
//! a route for a while, and each packet is relayed by one of them: what arrived before that time by the
//! former, all else by the new one. Packets that XDP would take go on to tc meanwhile. Workers of an earlier
//! process hand over to those of this one in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bpf::rcu;
use compile::diff::TableDiff;
use compile::table::{Path, Route, RouteKey, Table};

use crate::kernel::shadow;
use crate::userspace::Userspace;
use crate::{Dataplane, Error};

/// From when the time is set until it comes, so that both paths know it before; and as long after it, until
/// nothing that arrived before it waits for its core.
const LEAD: Duration = Duration::from_millis(20);
/// Longest that workers are waited for which have not yet judged what arrived before.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often they are checked meanwhile.
const STEP: Duration = Duration::from_millis(1);
/// The time of a hand-over that has none yet.
const NOT_YET: u64 = u64::MAX;

/// Routes that change paths, each with the path that it gets.
type Moving = BTreeMap<RouteKey, Path>;

impl Dataplane {
    /// Makes the paths execute exactly `table`, changing only what differs from what they execute.
    ///
    /// # Errors
    ///
    /// [`Error::Capacity`], [`Error::GateRoom`] and [`Error::Unavailable`] before anything is changed.
    pub fn sync(&mut self, table: &Table) -> Result<(), Error> {
        self.check(table.routes.iter())?;
        let mut moving = self.moving(&table.routes);
        if self.userspace.as_ref().is_some_and(Userspace::inherits) {
            let paths = table.routes.iter().map(|(key, route)| (*key, route.path));
            moving.extend(paths.filter(|(_, path)| *path == Path::Userspace));
        } else {
            // No worker relays anything that the kernel path could get.
            moving.retain(|_, path| *path == Path::Userspace);
        }
        let synced = self
            .begin_moving(&moving)
            .and_then(|()| self.sync_paths(table, &moving));
        self.end_moving(&moving);
        synced?;
        let routes = table.routes.iter();
        let on_workers = routes.filter(|(_, route)| route.path == Path::Userspace);
        self.userspace_routes = on_workers.map(|(key, _)| *key).collect();
        self.publish_activity();
        self.quiet.clear();
        self.keep_quiet(table.routes.iter().map(|(key, route)| (key, Some(route))));
        Ok(())
    }

    fn sync_paths(&mut self, table: &Table, moving: &Moving) -> Result<(), Error> {
        let routes = table.routes.iter();
        let to_kernel = routes.filter(|(key, _)| moving.get(*key) == Some(&Path::Kernel));
        let coming = TableDiff {
            set: to_kernel
                .map(|(key, route)| (*key, route.clone()))
                .collect(),
            ..TableDiff::default()
        };
        if let Some(kernel) = self.kernel.as_mut().filter(|_| !coming.set.is_empty()) {
            kernel.apply(&coming)?;
        }
        if let Some(userspace) = &mut self.userspace {
            userspace.sync(table)?;
        }
        self.hand_over(moving);
        if let Some(userspace) = &self.userspace {
            userspace.forget_numbers_of_paused()?;
        }
        if let Some(kernel) = &mut self.kernel {
            let own = shadow::own_table(table);
            shadow::or_without(table, &own, |table| kernel.sync(table))?;
        }
        Ok(())
    }

    /// Applies a difference, all or nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Capacity`], [`Error::GateRoom`] and [`Error::Unavailable`] before anything is changed.
    pub fn apply(&mut self, diff: &TableDiff) -> Result<(), Error> {
        self.check(diff.set.iter().map(|(key, route)| (key, route)))?;
        let on_workers = share(diff, Path::Userspace, &self.userspace_routes);
        if let Some(userspace) = &mut self.userspace {
            userspace.prepare(&on_workers)?;
        }
        let moving = self.moving(diff.set.iter().map(|(key, route)| (key, route)));
        let applied = self
            .begin_moving(&moving)
            .and_then(|()| self.meet(diff, &on_workers, &moving))
            .and_then(|()| self.apply_to_paths(diff, (diff, &on_workers)));
        self.end_moving(&moving);
        applied?;
        self.publish_activity();
        for key in &diff.removed {
            self.userspace_routes.remove(key);
        }
        for (key, route) in &diff.set {
            match route.path {
                Path::Kernel => self.userspace_routes.remove(key),
                Path::Userspace => self.userspace_routes.insert(*key),
            };
        }
        let removed = diff.removed.iter().map(|key| (key, None));
        let set = diff.set.iter().map(|(key, route)| (key, Some(route)));
        self.keep_quiet(removed.chain(set));
        Ok(())
    }

    /// Applies `here` to the kernel path, and of `whole` to the userspace path what is its own.
    fn apply_to_paths(
        &mut self,
        whole: &TableDiff,
        (here, on_workers): (&TableDiff, &TableDiff),
    ) -> Result<(), Error> {
        if let Some(kernel) = &mut self.kernel {
            let own = share(here, Path::Kernel, &self.userspace_routes);
            shadow::or_without(here, &own, |diff| kernel.apply(diff))?;
        }
        if let Some(userspace) = &mut self.userspace {
            userspace.apply(on_workers, whole)?;
        }
        Ok(())
    }

    /// Those of `routes` that one path gets from the other.
    fn moving<'a>(&self, routes: impl IntoIterator<Item = (&'a RouteKey, &'a Route)>) -> Moving {
        let (Some(kernel), Some(_)) = (&self.kernel, &self.userspace) else {
            return Moving::new();
        };
        let paths = routes.into_iter().map(|(key, route)| (*key, route.path));
        paths
            .filter(|(key, path)| kernel.path_of(key).is_some_and(|former| former != *path))
            .collect()
    }

    /// Tells both paths which routes change paths; packets are still the former path's.
    fn begin_moving(&mut self, moving: &Moving) -> Result<(), Error> {
        if moving.is_empty() {
            return Ok(());
        }
        self.gates.hand_over(NOT_YET);
        let turns = || moving.iter().map(|(key, path)| (key, *path));
        if let Some(kernel) = &mut self.kernel {
            kernel.set_turns(turns());
        }
        if let Some(userspace) = &mut self.userspace {
            userspace.begin_turns(turns());
        }
        rcu::wait().map_err(Error::Grace)
    }

    /// Applies a difference but for what the former paths of `moving` lose by it, and hands over.
    fn meet(
        &mut self,
        diff: &TableDiff,
        on_workers: &TableDiff,
        moving: &Moving,
    ) -> Result<(), Error> {
        if moving.is_empty() {
            return Ok(());
        }
        let stays = |key: &RouteKey, path: Path| moving.get(key) != Some(&path);
        let (mut here, mut there) = (diff.clone(), on_workers.clone());
        here.set.retain(|(key, _)| stays(key, Path::Userspace));
        there.removed.retain(|key| stays(key, Path::Kernel));
        self.apply_to_paths(diff, (&here, &there))?;
        self.hand_over(moving);
        Ok(())
    }

    /// Makes packets the new paths' that arrive from a moment on which is shortly ahead; returns when the former
    /// ones have no more to do.
    fn hand_over(&mut self, moving: &Moving) {
        if moving.is_empty() {
            self.end_predecessors();
            return;
        }
        let _stamps = sys::udp::ask_for_stamps();
        if let Some(userspace) = &self.userspace {
            userspace.relieve_predecessors();
        }
        sleep(LEAD);
        let lead_ns = LEAD.as_nanos() as u64;
        let judged_ns = sys::clock::monotonic_ns() + 2 * lead_ns;
        self.gates.hand_over(sys::clock::realtime_ns() + lead_ns);
        self.end_predecessors();
        sleep(2 * LEAD);
        if let Err(error) = rcu::wait() {
            tracing::warn!("packets of routes that change paths may be lost: {error}");
        }
        let start = Instant::now();
        let judged = || self.userspace.as_ref().map(Userspace::judged_ns);
        while judged().is_some_and(|until_ns| until_ns < judged_ns) {
            if start.elapsed() > PATIENCE {
                tracing::warn!(
                    "packets of routes that change paths are lost: workers are too slow"
                );
                break;
            }
            sleep(STEP);
        }
    }

    /// Ends workers of an earlier process, which relay until the time of a hand-over if it is shortly ahead.
    fn end_predecessors(&mut self) {
        if let Some(userspace) = &mut self.userspace {
            userspace.end_predecessors();
        }
    }

    fn end_moving(&mut self, moving: &Moving) {
        if let Some(kernel) = &mut self.kernel {
            kernel.set_turns(std::iter::empty());
        }
        if moving.is_empty() {
            return;
        }
        if let Some(userspace) = &mut self.userspace {
            userspace.end_turns();
        }
        // For no packet the time that has passed becomes one to come.
        if rcu::wait().is_ok() {
            self.gates.hand_over(NOT_YET);
        }
    }
}

/// The part of a difference that concerns `path`: a route that moves to another path is removed
/// here. A key that neither path has counts as the kernel path's, which ignores the removal of missing
/// keys.
fn share(diff: &TableDiff, path: Path, userspace: &BTreeSet<RouteKey>) -> TableDiff {
    let here = |key: &RouteKey| userspace.contains(key) == (path == Path::Userspace);
    let moved = diff
        .set
        .iter()
        .filter(|(key, route)| route.path != path && here(key))
        .map(|(key, _)| *key);
    TableDiff {
        removed: diff
            .removed
            .iter()
            .filter(|key| here(key))
            .copied()
            .chain(moved)
            .collect(),
        set: diff
            .set
            .iter()
            .filter(|(_, route)| route.path == path)
            .cloned()
            .collect(),
        own: diff.own.clone(),
        budget: diff.budget,
    }
}
