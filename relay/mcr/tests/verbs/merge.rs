//! Rules whose inputs are merged, as users write, change and read them.

use serde_json::json;

use crate::bed::{Bed, INPUT, OUTPUT};

const BLUE: &str = "239.2.1.1%veth2:5001";

#[test]
fn a_merge_is_written_changed_shown_and_exported() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let add = ["add", INPUT, OUTPUT, "--input", BLUE, "--name", "cam1"];
    bed.daemon
        .mcr(&[&add[..], &["--merge", "rtp"]].concat())
        .unwrap();
    let merge = || bed.json(&["list", "--json"])["rules"][0]["merge"].clone();
    let set = |setting: &str| {
        bed.daemon
            .mcr(&["change", "cam1", "--set", setting])
            .unwrap()
    };
    assert_eq!(merge(), json!("rtp"));
    let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    let line = "merge     by RTP's sequence number, of each SSRC; up to 50ms apart, 2 048 packets";
    assert!(shown.contains(line), "{shown}");
    let exported = bed.daemon.mcr(&["export"]).unwrap();
    assert!(exported.contains("merge = \"rtp\""), "{exported}");

    set("merge.window=10ms");
    set("merge.packets=5000");
    let wide = json!({"by": "rtp", "window": "10ms", "packets": 8192});
    assert_eq!(merge(), wide);
    set("merge=by=sequence,offset=8,bytes=4,order=little,session=2:6,count=18:2");
    let sequence = json!({"by": "sequence", "offset": 8, "bytes": 4, "order": "little",
        "session": {"offset": 2, "bytes": 6}, "count": {"offset": 18, "bytes": 2}});
    assert_eq!(merge(), sequence);
    let exported = bed.daemon.mcr(&["export"]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mcr.toml");
    std::fs::write(&file, &exported).unwrap();
    let diff = bed.daemon.mcr(&["diff", file.to_str().unwrap()]);
    assert!(diff.is_ok(), "what is exported is what runs: {exported}");

    set("merge=none");
    assert_eq!(merge(), json!(null));
    let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    assert!(!shown.contains("merge"), "{shown}");
}

#[test]
fn a_merge_that_cannot_be_is_refused_by_name() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    let two = ["add", INPUT, OUTPUT, "--input", BLUE, "--name", "cam1"];
    bed.daemon
        .mcr(&[&two[..], &["--failover", "200ms"]].concat())
        .unwrap();
    let before = bed.json(&["list", "--json"]);
    let change = |setting| ["change", "cam1", "--set", setting];
    for (arguments, message) in [
        (
            &change("merge=rtp")[..],
            "rule \"cam1\": merge: there is failover too",
        ),
        (
            &change("merge=rtcp"),
            "merge: by=rtcp: give rtp, sequence, moldudp64",
        ),
        (&change("merge.window=5ms"), "set merge=rtp before"),
        (
            &[
                "change",
                "cam1",
                "--set",
                "failover=",
                "--remove-input",
                BLUE,
                "--set",
                "merge=rtp",
            ],
            "merge: has one input; give a second that brings the same",
        ),
    ] {
        bed.fails(arguments, 2, &[message]);
    }
    assert_eq!(bed.json(&["list", "--json"]), before);
}
