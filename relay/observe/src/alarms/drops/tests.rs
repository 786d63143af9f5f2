//! What is reported of drops, reading by reading.

use rules::document::RuleDocument;

use super::*;

const HALF: u64 = SECOND_NS / 2;

fn drops(reason: DropReason, packets: u64) -> Drops {
    let mut drops = Drops::default();
    drops.0[reason as usize] = packets;
    drops
}

/// The reports of a ledger after a reading, by kind and message.
fn reports(
    ledger: &mut Ledger,
    half_seconds: u64,
    (reason, packets): (DropReason, u64),
    sent: Option<u64>,
) -> Vec<(&'static str, String)> {
    let changes = ledger.sample(half_seconds * HALF, &drops(reason, packets), sent);
    let report = |change: DropChange| {
        let reading = Reading {
            why: "why".to_owned(),
            ..change.reading
        };
        change.row.report(&reading, &change.edge)
    };
    changes.into_iter().filter_map(report).collect()
}

#[test]
fn drops_are_reported_when_they_begin_and_when_they_end() {
    let mut ledger = Ledger::default();
    let mut at = |half_seconds, packets| {
        reports(
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
    // The counters restart from zero.
    let began = "drops packets as too_big, 1 so far: why".to_owned();
    assert_eq!(at(25, 1), [(DROPS_BEGAN, began)]);
    let ended = "drops no more packets as too_big: 1 was, over 0.0 s".to_owned();
    assert_eq!(at(45, 1), [(DROPS_ENDED, ended)]);
}

#[test]
fn an_output_that_drops_everything_for_two_seconds_is_reported() {
    let reason = DropReason::EgressFull;
    let mut ledger = Ledger::default();
    let mut at = |half_seconds, dropped, sent| {
        reports(&mut ledger, half_seconds, (reason, dropped), Some(sent))
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
    // No more packets arrive: the drops have ended, and with them the state.
    let last = at(33, 12, 11);
    assert_eq!(last.len(), 2, "{last:?}");
    assert_eq!((last[0].0, &last[1]), (DROPS_ENDED, &recovered()));
}

#[test]
fn a_rule_that_drops_everything_for_two_seconds_is_degraded() {
    let text = r#"{"name": "cam1", "input": "239.1.1.1%eth0:5001", "outputs": ["10.9.9.9:7000"]}"#;
    let document: RuleDocument = serde_json::from_str(text).unwrap();
    let rule = document.to_rule(0).unwrap();
    let mut losses = Losses::default();
    let mut at = |half_seconds: u64, received: u64, reason, packets| {
        let lost = Lost {
            dropped: drops(reason, packets),
            ..Lost::default()
        };
        let traffic = Traffic {
            packets: received,
            ..Traffic::default()
        };
        losses.sample(half_seconds * HALF, &rule, (traffic, &lost), false);
        losses.starved(&rule)
    };
    let own = DropReason::OwnSource;
    assert_eq!(at(1, 1000, own, 400), []);
    // Drops are read a little later than packets received.
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
    // Standby drops are on purpose, whatever arrives beside them.
    for half_second in 9..20 {
        assert_eq!(
            at(half_second, half_second * 1000, DropReason::Standby, 7300),
            []
        );
    }
}

#[test]
fn drops_of_an_output_that_is_down_are_not_reported() {
    let mut ledger = Ledger::default();
    let dropped = (DropReason::InterfaceDown, 7);
    assert_eq!(reports(&mut ledger, 1, dropped, Some(0)), []);
    assert_eq!(reports(&mut ledger, 9, dropped, Some(0)), []);
}
