//! Routes that change paths, or pass from workers of an earlier supervisor to ours.

use std::collections::HashMap;

use compile::table::{Path, RouteKey};

use super::Userspace;
use super::error::Error;
use crate::userspace::shared::messages::{TableChange, Turn};

impl Userspace {
    /// Declares which routes change paths from now on, each with the path that it gets; routes may follow.
    pub(crate) fn begin_turns<'a>(&mut self, moving: impl Iterator<Item = (&'a RouteKey, Path)>) {
        let turn = |path| match path {
            Path::Kernel => Turn::Until,
            Path::Userspace => Turn::Since,
        };
        self.turns = moving.map(|(key, path)| (*key, turn(path))).collect();
        let mut change = TableChange::default();
        for (key, turn) in &self.turns {
            if let Some(counted) = self.counted.get_mut(key) {
                counted.turn = Some(*turn);
                change.set.push((*key, counted.clone()));
            }
        }
        if !change.set.is_empty() {
            self.change_workers(&change);
        }
    }

    /// Ends that: no route changes paths any more.
    pub(crate) fn end_turns(&mut self) {
        self.turns = HashMap::new();
        let counted = self.counted.values_mut();
        counted.for_each(|counted| counted.turn = None);
        self.change_workers(&TableChange {
            ends_turns: true,
            ..TableChange::default()
        });
    }

    /// Returns whether workers of an earlier supervisor still forward.
    pub(crate) const fn inherits(&self) -> bool {
        self.pool.has_predecessors()
    }

    /// Gives back the memory of merged rules that are off, where nothing of their streams is in flight.
    ///
    /// # Errors
    /// That memory's.
    pub(crate) fn forget_numbers_of_paused(&self) -> Result<(), Error> {
        self.pool.control.merges.forget_numbers_of_paused()
    }

    /// Has workers of an earlier supervisor go by the time of the hand-over, which is not set yet.
    pub(crate) fn relieve_predecessors(&self) {
        self.pool.relieve_predecessors();
    }

    /// Ends workers of an earlier supervisor, once ours are ready or not needed.
    pub(crate) fn end_predecessors(&mut self) {
        self.pool.end_predecessors();
        self.settle();
    }

    fn change_workers(&mut self, change: &TableChange) {
        let interfaces = self.pool.interfaces().clone();
        self.pool
            .change(change, &interfaces, &self.counted, &self.common);
    }

    /// Until when workers have judged all that arrived, by `CLOCK_MONOTONIC`.
    pub(crate) fn judged_ns(&self) -> u64 {
        self.pool.judged_ns()
    }
}
