//! Spread, stability, weights.

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

fn counts(relays: &[Candidate<'_>]) -> BTreeMap<String, usize> {
    let shares = shares();
    let mut loads = Loads::new(relays.iter().copied(), shares.len());
    let wanted = shares
        .iter()
        .map(|s| (s.as_str(), order(s, relays.iter().copied(), None)));
    let mut counts = BTreeMap::new();
    for taker in spread(wanted, &mut loads).into_values().flatten() {
        *counts.entry(taker.to_owned()).or_default() += 1;
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
        let before = order(&share, all.iter().copied(), None);
        let without = all.iter().copied().filter(|r| r.name != "relay-2");
        let after = order(&share, without, None);
        let left: Vec<_> = before.into_iter().filter(|n| *n != "relay-2").collect();
        assert_eq!(left, after);
    }
}

#[test]
fn honours_weights() {
    let mut relays = relays(3);
    relays[0].weight = 2;
    let counts = counts(&relays);
    assert!((450..=550).contains(&counts["relay-0"]), "{counts:?}");
    relays[0].weight = 0;
    assert!(!order("a", relays.iter().copied(), None).contains(&"relay-0"));
}

#[test]
fn puts_an_operators_wish_first() {
    let relays = relays(5);
    for n in 0..5 {
        let wish = format!("relay-{n}");
        let order = order("cam", relays.iter().copied(), Some(&wish));
        assert_eq!((order[0], order.len()), (wish.as_str(), 5));
    }
}

#[test]
fn counts_what_is_held() {
    let relays = relays(2);
    let mut loads = Loads::new(relays.iter().copied(), 10);
    (0..6).for_each(|_| loads.hold("relay-0"));
    let order = ["relay-0", "relay-1"];
    assert_eq!(loads.take(&order), Some("relay-1"));
    assert_eq!(loads.take(&["relay-0"]), Some("relay-0"), "nobody else can");
    assert_eq!(loads.take(&[]), None);
}

#[test]
fn stays_the_same_for_ever() {
    assert_eq!(hash(&["relay-a", "cam1"]), hash(&["relay-a", "cam1"]));
    assert_eq!(minus_log2(u64::MAX), 0);
    assert_eq!(minus_log2(u64::MAX / 2), 1 << FRACTION);
    assert_eq!(minus_log2(0), 64 << FRACTION);
    let relays = relays(4);
    let first = |share| order(share, relays.iter().copied(), None)[0];
    let firsts = ["a", "b", "c", "d", "e", "f"].map(first);
    let known = [
        "relay-2", "relay-3", "relay-0", "relay-2", "relay-2", "relay-1",
    ];
    assert_eq!(
        firsts, known,
        "another order would split a fleet while it is upgraded"
    );
}
