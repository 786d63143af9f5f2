//! The route of a fragment whose ports are unknown: that of its group, with a mark where the exact routes
//! of the group belong to several rules. The program looks up ranges itself.

use std::collections::BTreeMap;

use bpf::Maps;
use bpf::layout::{GROUP_OF_SEVERAL, GroupKey};
use bpf::map::HashMap;

use crate::error::Error;
use crate::kernel::key::Key;

/// The routes behind the map. There may be ten thousand groups, most of one port.
#[derive(Debug)]
pub(super) struct Groups {
    map: HashMap<GroupKey, u32>,
    /// The exact routes by group and port, each with its index and its rule's counter.
    routes: BTreeMap<(GroupKey, u16), (u32, u32)>,
    /// Groups that may differ from the map, and what it holds of each.
    changed: BTreeMap<GroupKey, Option<u32>>,
}

impl Groups {
    pub(super) fn over(maps: &Maps) -> Self {
        Self {
            map: maps.group_routes.clone(),
            routes: BTreeMap::new(),
            changed: BTreeMap::new(),
        }
    }

    /// Takes over the content of the map; what is not noted before the next publishing is removed.
    pub(super) fn adopt(&mut self) -> Result<(), Error> {
        let entries = self.map.entries()?.into_iter();
        self.changed = entries.map(|(group, value)| (group, Some(value))).collect();
        Ok(())
    }

    /// Notes index and counter of an exact route, or its removal.
    pub(super) fn note(&mut self, key: Key, route: Option<(u32, u32)>) {
        let Some((group, port)) = group_of(key) else {
            return;
        };
        if !self.changed.contains_key(&group) {
            self.changed.insert(group, self.value(group));
        }
        match route {
            Some(route) => self.routes.insert((group, port), route),
            None => self.routes.remove(&(group, port)),
        };
    }

    /// Updates the map to what was noted.
    pub(super) fn publish(&mut self) -> Result<(), Error> {
        let (mut keys, mut values, mut stale) = (Vec::new(), Vec::new(), Vec::new());
        for (group, before) in std::mem::take(&mut self.changed) {
            match self.value(group) {
                Some(value) if before != Some(value) => {
                    keys.push(group);
                    values.push(value);
                }
                None if before.is_some() => stale.push(group),
                _ => {}
            }
        }
        self.map.remove(&stale)?;
        Ok(self.map.insert(&keys, &values)?)
    }

    /// The index of the route of the lowest port, marked if another port's belongs to another rule.
    fn value(&self, group: GroupKey) -> Option<u32> {
        let mut routes = self.routes.range((group, 0)..=(group, u16::MAX));
        let (_, (index, counter)) = routes.next()?;
        let is_shared = routes.any(|(_, (_, other))| other != counter);
        Some(if is_shared {
            index | GROUP_OF_SEVERAL
        } else {
            *index
        })
    }
}

fn group_of(key: Key) -> Option<(GroupKey, u16)> {
    let mut group = GroupKey {
        ifindex: key.ifindex(),
        ..GroupKey::default()
    };
    match key {
        Key::V4(key) => {
            group.source[..4].copy_from_slice(&key.source);
            group.group[..4].copy_from_slice(&key.group);
            Some((group, u16::from_be_bytes(key.port)))
        }
        Key::V6(key) => {
            group.source = key.source;
            group.group = key.group;
            Some((group, u16::from_be_bytes(key.port)))
        }
        Key::Range(_) => None,
    }
}
