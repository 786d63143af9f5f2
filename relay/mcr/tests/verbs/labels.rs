//! Labels and comments of rules.

use serde_json::json;

use crate::bed::{Bed, INPUT, OUTPUT};

const FILE: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
comment = "on the roof"
labels = { customer = "x", site = "y" }
[[rule]]
name = "cam2"
input = "239.1.1.2%veth1:5001"
outputs = ["239.10.1.2%veth2:6001"]
labels = { site = "z" }
"#;

#[test]
fn rules_are_chosen_by_their_labels() {
    let Some(bed) = Bed::new(Some(FILE), &[]) else {
        return;
    };
    let plain = ["add", "239.1.1.3%veth1:5001", OUTPUT, "--name", "cam3"];
    bed.daemon
        .mcr(&[&plain[..], &["--label", "site=y", "--comment", "new"]].concat())
        .unwrap();
    for (selection, names) in [
        (&["-l", "site=y"][..], "cam1\ncam3\n"),
        (&["-l", "site"], "cam1\ncam2\ncam3\n"),
        (&["-l", "site=y", "-l", "customer=x"], "cam1\n"),
        (&["-l", "floor"], ""),
    ] {
        for verb in ["list", "stats"] {
            let arguments = [&[verb, "-o", "name"], selection].concat();
            assert_eq!(bed.daemon.mcr(&arguments).unwrap(), names, "{arguments:?}");
        }
    }
    let labels = json!({"customer": "x", "site": "y"});
    for verb in ["list", "stats"] {
        let listed = bed.json(&[verb, "--json", "-l", "customer=x"]);
        assert_eq!(listed["rules"].as_array().unwrap().len(), 1);
        assert_eq!(listed["rules"][0]["labels"], labels);
    }
    let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    for text in ["comment=on the roof", "label site=y"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    bed.daemon
        .mcr(&[
            "change",
            "cam1",
            "--set",
            "labels.site=q",
            "--set",
            "comment=",
        ])
        .unwrap();
    let changed = &bed.json(&["list", "--json"])["rules"][0];
    assert_eq!(changed["labels"], json!({"customer": "x", "site": "q"}));
    assert!(changed.get("comment").is_none(), "{changed}");
    bed.fails(
        &["add", INPUT, OUTPUT, "--label", "site"],
        2,
        &["KEY=VALUE"],
    );
    bed.fails(
        &["change", "cam2", "--set", "labels.a-b=c"],
        2,
        &["a key begins with a letter"],
    );
    let long = format!("comment={}", "x".repeat(300));
    bed.fails(
        &["change", "cam2", "--set", &long],
        2,
        &["at most 255 bytes"],
    );
}
