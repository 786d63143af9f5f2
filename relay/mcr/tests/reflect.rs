//! Rules that reflect, from the command line.

use serde_json::{Value, json};

use crate::bed::Bed;

#[test]
fn a_rule_that_reflects_is_added_shown_changed_and_exported() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let mcr = |words: &[&str]| bed.daemon.mcr(words).unwrap();
    let refused = |words: &[&str]| {
        let output = bed.daemon.client(words).unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", output.stderr);
        output.stderr
    };
    let group = "224.0.0.251:5353";
    let error = refused(&["add", group, "--reflect", "veth1"]);
    assert!(error.contains("two interfaces or more"), "{error}");
    let error = refused(&["add", group, "--reflect", "veth1,veth2,dscp=3"]);
    assert!(error.contains("source, ttl, window"), "{error}");
    let error = refused(&["add", group, "10.9.9.9:1", "--reflect", "veth1,veth2"]);
    assert!(error.contains("outputs do not go together"), "{error}");

    let added = mcr(&["add", group, "--reflect", "veth1,veth2,ttl=255"]);
    let name = added.trim();
    assert_eq!(name, "reflect-224.0.0.251-5353");
    let list = mcr(&["list", "-o", "wide"]);
    for word in ["224.0.0.251%veth1:5353", "224.0.0.251%veth2:5353,ttl=255"] {
        assert!(list.contains(word), "{list}");
    }
    let show = mcr(&["show", name]);
    assert!(show.contains("mode=reflect"), "{show}");
    let error = refused(&["change", name, "--add-output", "10.9.9.9:7000"]);
    assert!(error.contains("--set interfaces=veth1,veth2"), "{error}");
    mcr(&[
        "change",
        name,
        "--set",
        "interfaces=veth2,veth1",
        "--set",
        "window=50ms",
    ]);
    let rules: Value = serde_json::from_str(&mcr(&["list", "--json"])).unwrap();
    assert_eq!(
        rules["rules"][0],
        json!({"name": name, "mode": "reflect", "interfaces": ["veth2", "veth1"],
            "group": group, "ttl": 255, "window": "50ms"})
    );
    let stats: Value = serde_json::from_str(&mcr(&["stats", "--json"])).unwrap();
    assert_eq!(stats["rules"][0]["mode"], "reflect");
    let exported = mcr(&["export"]);
    assert!(exported.contains("interfaces = ["), "{exported}");
    assert!(!exported.contains("allow_link_local"), "{exported}");
}
