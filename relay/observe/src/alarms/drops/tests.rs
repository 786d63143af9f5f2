//! What is told of drops, reading by reading.

use rules::document::RuleDocument;

use super::*;

const HALF: u64 = SECOND_NS / 2;

fn drops(reason: DropReason, packets: u64) -> Drops {
    let mut drops = Drops::default();
    drops.0[reason as usize] = packets;
    drops
}

/// What a ledger tells of a reading, by kind and words.
fn told(
    ledger: &mut Ledger,
    half_seconds: u64,
    (reason, packets): (DropReason, u64),
    sent: Option<u64>,
) -> Vec<(&'static str, String)> {
    let news = ledger.sample(half_seconds * HALF, &drops(reason, packets), sent);
    let words = |one: DropChange| {
        let read = Reading {
            why: "why".to_owned(),
            ..one.read
        };
        one.row.told(&read, &one.turn)
    };
    news.into_iter().filter_map(words).collect()
}

#[test]
fn drops_are_told_when_they_begin_and_when_they_end() {
    let mut ledger = Ledger::default();
    let mut at = |half_seconds, packets| {
        told(
            &mut ledger,
            half_seconds,
            (DropReason::TooBig, packets),
            None,
        )
    };
    assert_eq!(at(1, 0), []);
    let began = "drops packets as too_big, 3 so far: why".to_owned();
    assert_eq!(at(2, 3), [(DROPS_BEGAN, began)]);
    assert_eq!(at(3, 20), []);
    assert_eq!(at(22, 20), []);
    let ended = "drops no more packets as too_big: 20 were, over 0.5 s".to_owned();
    assert_eq!(at(23, 20), [(DROPS_ENDED, ended)]);
    assert_eq!(at(24, 20), []);
    // Counters that began anew.
    let began = "drops packets as too_big, 1 so far: why".to_owned();
    assert_eq!(at(25, 1), [(DROPS_BEGAN, began)]);
    let ended = "drops no more packets as too_big: 1 was, over 0.0 s".to_owned();
    assert_eq!(at(45, 1), [(DROPS_ENDED, ended)]);
}

#[test]
fn an_output_that_drops_everything_for_two_seconds_is_told() {
    let reason = DropReason::EgressFull;
    let mut ledger = Ledger::default();
    let mut at = |half_seconds, dropped, sent| {
        told(&mut ledger, half_seconds, (reason, dropped), Some(sent))
    };
    let all = || {
        let text = "is degraded: all packets are dropped as egress_full: why".to_owned();
        (OUTPUT_DEGRADED, text)
    };
    let recovered = || (OUTPUT_UP, "no longer drops everything".to_owned());
    assert_eq!(at(1, 5, 10).len(), 1, "they begin, and some leave");
    assert_eq!(at(2, 6, 10), []);
    assert_eq!(at(5, 6, 10), []);
    assert_eq!(at(6, 6, 10), [all()]);
    assert_eq!(at(7, 9, 10), []);
    assert_eq!(at(8, 10, 11), [recovered()]);
    assert_eq!(at(9, 11, 11), []);
    assert_eq!(at(13, 12, 11), [all()]);
    // Nothing comes any more: the drops have ended, and with them what is known.
    let told = at(33, 12, 11);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((told[0].0, &told[1]), (DROPS_ENDED, &recovered()));
}

#[test]
fn a_rule_that_drops_everything_for_two_seconds_is_told() {
    let text = r#"{"name": "cam1", "input": "239.1.1.1%eth0:5001", "outputs": ["10.9.9.9:7000"]}"#;
    let document: RuleDocument = serde_json::from_str(text).unwrap();
    let rule = document.to_rule(0).unwrap();
    let mut losses = Losses::default();
    let mut at = |half_seconds: u64, came: u64, reason, packets| {
        let lost = Lost {
            dropped: drops(reason, packets),
            ..Lost::default()
        };
        let traffic = Traffic {
            packets: came,
            ..Traffic::default()
        };
        losses.sample(half_seconds * HALF, &rule, (traffic, &lost), false);
        losses.starved(&rule)
    };
    let own = DropReason::OwnSource;
    assert_eq!(at(1, 1000, own, 400), []);
    // Read a little later than what came.
    for half_second in 2..6 {
        assert_eq!(
            at(
                half_second,
                half_second * 1000,
                own,
                half_second * 1000 - 595
            ),
            []
        );
    }
    assert_eq!(at(6, 6000, own, 5405), [(None, own)]);
    assert_eq!(at(7, 7000, own, 6400), [(None, own)]);
    assert_eq!(at(8, 8000, own, 7300), []);
    // What stands by is meant, whatever comes beside it.
    for half_second in 9..20 {
        assert_eq!(
            at(half_second, half_second * 1000, DropReason::Standby, 7300),
            []
        );
    }
}

#[test]
fn what_is_dropped_because_the_output_is_down_is_no_news() {
    let mut ledger = Ledger::default();
    let dropped = (DropReason::InterfaceDown, 7);
    assert_eq!(told(&mut ledger, 1, dropped, Some(0)), []);
    assert_eq!(told(&mut ledger, 9, dropped, Some(0)), []);
}
