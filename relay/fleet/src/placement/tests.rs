//! Spread, stability, weights.

use std::collections::BTreeMap;

use super::*;

const NAMES: [&str; 10] = [
    "relay-0", "relay-1", "relay-2", "relay-3", "relay-4", "relay-5", "relay-6", "relay-7",
    "relay-8", "relay-9",
];

fn relays(count: usize) -> Vec<Candidate<'static>> {
    let candidate = |name: &&'static str| Candidate { name, weight: 1 };
    NAMES[..count].iter().map(candidate).collect()
}

fn shares() -> Vec<String> {
    (0..1000).map(|n| format!("cam{n}")).collect()
}

fn weights(relays: &[Candidate<'_>]) -> impl Iterator<Item = u32> + Clone {
    relays.iter().map(|relay| relay.weight)
}

fn names<'a>(share: &str, relays: &[Candidate<'a>]) -> Vec<&'a str> {
    let order = order(share, relays).into_iter();
    order.map(|index| relays[index].name).collect()
}

fn counts(relays: &[Candidate<'_>]) -> BTreeMap<String, usize> {
    let shares = shares();
    let mut loads = Loads::new(weights(relays), shares.len());
    let mut counts = BTreeMap::new();
    for share in shares {
        let taker = loads.take(order(&share, relays).into_iter()).unwrap();
        *counts.entry(relays[taker].name.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn spreads_a_thousand_shares_within_a_tenth_of_fair() {
    for n in 2..=10 {
        let fair = 1000.0 / n as f64;
        let counts = counts(&relays(n));
        assert_eq!(counts.len(), n);
        for (relay, count) in counts {
            let off = (count as f64 - fair).abs() / fair;
            assert!(off <= 0.1, "{relay} of {n} has {count}");
        }
    }
}

#[test]
fn moves_only_the_shares_of_a_relay_that_goes() {
    let all = relays(5);
    for share in shares() {
        let before = names(&share, &all);
        let without: Vec<_> = all
            .iter()
            .copied()
            .filter(|r| r.name != "relay-2")
            .collect();
        let after = names(&share, &without);
        let remaining: Vec<_> = before.into_iter().filter(|n| *n != "relay-2").collect();
        assert_eq!(remaining, after);
    }
}

#[test]
fn honours_weights() {
    let mut relays = relays(3);
    relays[0].weight = 2;
    let counts = counts(&relays);
    assert!((450..=550).contains(&counts["relay-0"]), "{counts:?}");
    relays[0].weight = 0;
    assert!(!names("a", &relays).contains(&"relay-0"));
}

#[test]
fn counts_what_is_held() {
    let relays = relays(2);
    let mut loads = Loads::new(weights(&relays), 10);
    loads.hold(0, 6);
    assert_eq!(loads.take([0, 1].into_iter()), Some(1));
    assert_eq!(loads.take([0].into_iter()), Some(0), "nobody else can");
    assert_eq!(loads.take([].into_iter()), None);
}

#[test]
fn stays_the_same_for_ever() {
    let sorted_by = |score: fn(u64) -> u64| {
        let mut hashes: Vec<_> = (0..1000).map(|n| hash(&format!("cam{n}"))).collect();
        hashes.sort_by_key(|hash| score(*hash));
        hashes
    };
    let by_logarithm = sorted_by(|hash| score(hash, 7));
    assert_eq!(by_logarithm, sorted_by(|hash| !hash), "weights or none");
    assert_eq!(minus_log2(u64::MAX), 0);
    assert_eq!(minus_log2(u64::MAX / 2), 1 << FRACTION);
    assert_eq!(minus_log2(0), 64 << FRACTION);
    let relays = relays(4);
    let first = |share| names(share, &relays)[0];
    let firsts = ["a", "b", "c", "d", "e", "f"].map(first);
    let expected = [
        "relay-1", "relay-2", "relay-3", "relay-2", "relay-1", "relay-1",
    ];
    assert_eq!(
        firsts, expected,
        "another order would split a fleet while it is upgraded"
    );
}
