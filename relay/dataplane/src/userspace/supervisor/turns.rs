//! Routes that change paths, or pass from workers of an earlier supervisor to ours.

use std::collections::HashMap;

use compile::table::{Path, RouteKey};

use super::Userspace;
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
