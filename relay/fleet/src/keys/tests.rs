//! Round trips of keys and values, and refusals.

use super::*;

fn keys() -> Keys {
    Keys::new("plant").unwrap()
}

#[test]
fn parses_the_keys_that_it_builds() {
    let name = || "a.b-c:1".to_owned();
    for key in [
        Key::Beat(name()),
        Key::Blob {
            hash: "0f".repeat(32),
            chunk: 12,
        },
        Key::Counters(name()),
        Key::Drained(name()),
        Key::Move(name()),
        Key::Relay(name()),
        Key::Rules,
        Key::Settings,
        Key::Share(name()),
    ] {
        assert_eq!(keys().parse(&keys().text(&key)), Ok(key));
    }
}

#[test]
fn refuses_keys_of_others() {
    for text in [
        "",
        "/mcr/plant",
        "/mcr/plants/shares/a",
        "/mcr/plant/shares/",
        "/mcr/plant/shares/a/b",
        "/mcr/plant/shares/-a",
        "/mcr/plant/others/a",
        "/mcr/plant/rules/next",
        "/mcr/plant/blobs/aa/0000",
        &format!("/mcr/plant/blobs/{}/+123", "00".repeat(32)),
    ] {
        assert!(keys().parse(text).is_err(), "{text}");
    }
    assert_eq!(Keys::new("a/b"), None);
}

#[test]
fn watches_all_but_beats_blobs_and_counters() {
    let watched = |text: &str| {
        let text = format!("/mcr/plant/{text}");
        keys().watch_from() <= text && text < keys().watch_to()
    };
    for text in [
        "drained/a",
        "moves/a",
        "relays/a",
        "rules/current",
        "settings",
        "shares/z",
    ] {
        assert!(watched(text), "{text}");
    }
    for text in ["beats/a", "blobs/00/0000", "counters/z"] {
        assert!(!watched(text), "{text}");
    }
}

#[test]
fn refuses_bad_values_by_name() {
    let share = |text: &str| {
        ShareEntry::read("/k", text.as_bytes())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        share(r#"{"relay":"a b","session":1,"at":0,"why":""}"#),
        r#"etcd key "/k" has a bad value: relay: "a b" is not a name"#
    );
    for bad in [
        "",
        "null",
        r#"{"relay":"a","session":-1,"at":0,"why":""}"#,
        r#"{"relay":"a","session":1,"at":0,"why":"","more":1}"#,
        r#"{"relay":"a","session":1,"at":0,"why":"\u0007"}"#,
    ] {
        assert!(
            share(bad).starts_with(r#"etcd key "/k" has a bad value: "#),
            "{bad}"
        );
    }
    let beat = |hold: u64, monitors: &str| {
        let text = format!(
            r#"{{"number":1,"process":1,"hold_ms":{hold},"policy":"peers","monitors":[{monitors}]}}"#
        );
        Beat::read("/k", text.as_bytes())
    };
    let one = r#"{"relay":"a","session":1}"#;
    assert!(beat(1200, one).is_ok());
    assert!(beat(299, one).is_err());
    assert!(beat(5001, one).is_err());
    assert!(beat(1200, &format!("{one},{one}")).is_err());
    assert!(Drained::read("/k", &vec![b' '; VALUE_MAX + 1]).is_err());
}
