//! `mcr change`.

use serde_json::json;

use crate::bed::{Bed, INPUT, OUTPUT};

const SECOND: &str = "239.10.1.2%veth2:6002";

#[test]
fn a_rule_is_changed_in_place_and_what_stays_goes_on() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let outputs = ["239.10.1.1%veth2:6001,ttl=9", "10.0.1.2:7000"];
    bed.daemon.add("cam1", INPUT, &outputs).unwrap();
    bed.daemon
        .add("cam2", "239.1.1.2%veth1:5001", &[SECOND])
        .unwrap();
    bed.send(100);
    bed.daemon.settled("cam1", 100).unwrap();
    let remove = ["--remove-output", OUTPUT];
    let add = [
        "--add-output",
        SECOND,
        "--add-input",
        "239.1.1.3%veth1:5001",
    ];
    let set = ["--set", "limit=20Mbit", "--set", "health.silence=3s"];
    bed.daemon
        .mcr(&[&["change", "cam1"], &remove[..], &add, &set].concat())
        .unwrap();
    let rules = bed.json(&["list", "--json"]);
    assert_eq!(
        rules["rules"][0],
        json!({"name": "cam1", "inputs": [INPUT, "239.1.1.3%veth1:5001"],
            "outputs": [SECOND, "10.0.1.2:7000"], "limit": "20Mbit",
            "health": {"silence": "3s"}})
    );
    let rule = bed.daemon.rule("cam1").unwrap();
    assert_eq!(rule.received.packets, 100, "its counters stay: {rule:?}");
    let back = ["change", "cam1", "--set", "limit=", "--set", "health="];
    let change = bed.json(&[&back[..], &["--json"]].concat());
    assert_eq!(change["changed"], json!(["cam1"]));
    let again = bed.json(&[&back[..], &["--json"]].concat());
    assert_eq!(
        (&again["changed"], &again["unchanged"]),
        (&json!([]), &json!(2))
    );
}

#[test]
fn a_change_that_cannot_be_is_refused_whole() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    bed.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    let before = bed.json(&["list", "--json"]);
    let other = "239.9.9.9%veth2:1";
    for (arguments, status, message) in [
        (&["cam9", "--set", "limit=5pps"][..], 3, "no rule \"cam9\""),
        (&["cam1"], 2, "--set"),
        (
            &["cam1", "--add-output", SECOND, "--remove-output", other],
            3,
            OUTPUT,
        ),
        (&["cam1", "--add-output", OUTPUT], 3, "is there already"),
        (&["cam1", "--add-output", "nowhere"], 2, "nowhere"),
        (&["cam1", "--remove-output", OUTPUT], 2, "output"),
        (
            &["cam1", "--add-output", SECOND, "--set", "limit=fast"],
            2,
            "limit=fast",
        ),
        (
            &["cam1", "--add-output", INPUT],
            1,
            "feeds the rule's own input",
        ),
    ] {
        bed.fails(&[&["change"], arguments].concat(), status, &[message]);
    }
    assert_eq!(bed.json(&["list", "--json"]), before);
}
