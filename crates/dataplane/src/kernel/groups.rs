//! Which route a fragment takes whose ports are not known: that of its group, with a mark where the
//! exact routes of the group belong to several rules. The program looks at ranges by itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bpf::layout::{GROUP_OF_SEVERAL, GroupKey};
use bpf::program::Maps;

use crate::Error;
use crate::kernel::key::Key;

/// What is in the map, and what it is made from.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Per group the ports of its routes, each with its route's index and its rule's counter.
    ports: HashMap<GroupKey, BTreeMap<u16, (u32, u32)>>,
    /// What the map holds.
    published: HashMap<GroupKey, u32>,
    /// Groups that may differ from the map.
    touched: BTreeSet<GroupKey>,
}

impl Groups {
    /// Takes over what is in the map; whatever is not noted before the next publishing goes.
    pub(super) fn adopt(&mut self, maps: &mut Maps) -> Result<(), Error> {
        self.published = maps.group_routes.entries()?.into_iter().collect();
        self.touched.extend(self.published.keys());
        Ok(())
    }

    /// Notes index and counter of an exact route, or that it is gone.
    pub(super) fn note(&mut self, key: Key, route: Option<(u32, u32)>) {
        let Some((group, port)) = group_of(key) else {
            return;
        };
        let ports = self.ports.entry(group).or_default();
        match route {
            Some(route) => ports.insert(port, route),
            None => ports.remove(&port),
        };
        if ports.is_empty() {
            self.ports.remove(&group);
        }
        self.touched.insert(group);
    }

    /// Brings the map to what was noted.
    pub(super) fn publish(&mut self, maps: &mut Maps) -> Result<(), Error> {
        let (mut keys, mut values, mut stale) = (Vec::new(), Vec::new(), Vec::new());
        for group in std::mem::take(&mut self.touched) {
            match self.ports.get(&group).and_then(value) {
                Some(value) if self.published.insert(group, value) != Some(value) => {
                    keys.push(group);
                    values.push(value);
                }
                None if self.published.remove(&group).is_some() => stale.push(group),
                _ => {}
            }
        }
        maps.group_routes.remove(&stale)?;
        Ok(maps.group_routes.insert(&keys, &values)?)
    }
}

/// The index of the route of the lowest port, marked if another port's belongs to another rule.
fn value(ports: &BTreeMap<u16, (u32, u32)>) -> Option<u32> {
    let (index, counter) = *ports.values().next()?;
    let several = ports.values().any(|(_, other)| *other != counter);
    Some(if several {
        index | GROUP_OF_SEVERAL
    } else {
        index
    })
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
