//! The map is ordered, and copies share chunks.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn of(map: &BTreeMap<u16, Arc<u16>>) -> Vec<(u16, u16)> {
    map.iter().map(|(key, value)| (*key, **value)).collect()
}

fn check(map: &SharedMap<u16, Arc<u16>>, expected: &BTreeMap<u16, Arc<u16>>) {
    let entries: Vec<(u16, u16)> = map.iter().map(|(key, value)| (*key, **value)).collect();
    assert_eq!(entries, of(expected));
    assert_eq!(map.len(), expected.len());
    assert!(map.chunks.iter().all(|chunk| !chunk.is_empty()));
    assert!(map.chunks.iter().all(|chunk| chunk.len() <= CHUNK));
    let are_small = |pair: &[Arc<_>]| match pair {
        [a, b] => Vec::len(a) + Vec::len(b) <= CHUNK / 2,
        _ => false,
    };
    assert!(!map.chunks.windows(2).any(are_small));
}

/// Runs of neighbouring keys, so that chunks fill and empty: the first, how many, whether they are inserted.
fn runs() -> impl Strategy<Value = Vec<(u16, u16, bool)>> {
    proptest::collection::vec((0_u16..600, 1_u16..300, any::<bool>()), 1..8)
}

proptest! {
    #[test]
    fn does_what_an_ordered_map_does(runs in runs(), probe in 0_u16..1000) {
        let mut map = SharedMap::default();
        let mut expected = BTreeMap::new();
        for (value, (from, count, inserts)) in (0..).zip(runs) {
            let (old, old_expected) = (map.clone(), expected.clone());
            for key in from..from + count {
                let value = Arc::new(value);
                if inserts { prop_assert_eq!(
                        map.insert(key, Arc::clone(&value)),
                        expected.insert(key, value)
                    ) } else { prop_assert_eq!(map.remove(&key), expected.remove(&key)) }
            }
            check(&map, &expected);
            check(&old, &old_expected);
            prop_assert_eq!(map.get(&probe), expected.get(&probe));
            prop_assert_eq!(map.rank(&probe), expected.range(..probe).count());
            let rest = map.iter_from(&probe).map(|(key, _)| key);
            prop_assert!(rest.eq(expected.range(probe..).map(|(key, _)| key)));
            let made: SharedMap<_, _> = expected.clone().into_iter().rev().collect();
            prop_assert_eq!(&made, &map);

            let difference = SharedMap::difference(&old, &map);
            let lacks = |other: &BTreeMap<u16, Arc<u16>>, key: &u16, value: &Arc<u16>| {
                !other.get(key).is_some_and(|other| Arc::ptr_eq(other, value))
            };
            let removed = old_expected.iter().filter(|(key, value)| lacks(&expected, key, value));
            prop_assert_eq!(difference.removed, removed.collect::<Vec<_>>());
            let added = expected.iter().filter(|(key, value)| lacks(&old_expected, key, value));
            prop_assert_eq!(difference.added, added.collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_change_of_one_entry_copies_one_chunk() {
    let entries = (0..10_000_u16).map(|key| (key, Arc::new(key)));
    let old: SharedMap<u16, Arc<u16>> = entries.collect();
    let mut new = old.clone();
    new.insert(10_000, Arc::new(0));
    new.remove(&5_000);
    new.insert(7_000, Arc::new(0));
    let is_shared = |chunk: &&Arc<_>| old.chunks.iter().any(|before| Arc::ptr_eq(before, chunk));
    let shared = new.chunks.iter().filter(is_shared).count();
    assert_eq!((old.chunks.len(), shared), (79, 76));
    let difference = SharedMap::difference(&old, &new);
    let keys = |side: &[(&u16, &Arc<u16>)]| side.iter().map(|(key, _)| **key).collect::<Vec<_>>();
    assert_eq!(keys(&difference.removed), [5_000, 7_000]);
    assert_eq!(keys(&difference.added), [7_000, 10_000]);
}
