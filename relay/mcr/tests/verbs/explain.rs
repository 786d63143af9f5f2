//! `mcr explain`.

use serde_json::{Value, json};

use crate::bed::{Bed, INPUT as IN};

fn explained(bed: &Bed, more: &[&str]) -> (Value, String) {
    let text = bed.daemon.client(&[&["explain"], more].concat()).unwrap();
    let json = bed.daemon.client(&[&["explain", "--json"], more].concat());
    (
        serde_json::from_str(&json.unwrap().stdout).unwrap(),
        text.stdout,
    )
}

#[test]
fn a_packet_is_explained_on_each_path_and_not_counted() {
    for path in ["kernel", "userspace"] {
        let Some(bed) = Bed::new(None, &["--path", path]) else {
            return;
        };
        let to = "239.10.1.1%veth2:6001,ttl=9,dscp=ef";
        bed.daemon.mcr(&["add", IN, to, "--name", "cam1"]).unwrap();
        bed.daemon.mcr(&["disable", "cam1"]).unwrap();
        let (json, _) = explained(&bed, &["239.1.1.1:5001", "--on", "veth1"]);
        assert_eq!(
            json["nearest"][0]["differs"],
            json!(["the rule is disabled"]),
            "{json}"
        );
        bed.daemon.mcr(&["enable", "cam1"]).unwrap();
        bed.send(10);
        bed.daemon.settled("cam1", 10).unwrap();

        let (json, text) = explained(
            &bed,
            &["239.1.1.1:5001", "--from", "10.0.0.5:77", "--on", "veth1"],
        );
        assert_eq!(
            (&json["verdict"], &json["path"]),
            (&json!("forwarded"), &json!(path)),
            "{json}"
        );
        assert_eq!(
            (&json["rule"], &json["input"]),
            (&json!("cam1"), &json!(IN))
        );
        let copy = &json["outputs"][0]["copy"];
        assert_eq!(copy["destination"], "239.10.1.1:6001", "{json}");
        assert_eq!(
            (&copy["ttl"], &copy["dscp"]),
            (&json!(9), &json!(46)),
            "{json}"
        );
        assert_eq!(
            (&copy["mac"], &copy["bytes"]),
            (&json!("01:00:5e:0a:01:01"), &json!(1344))
        );
        for words in [
            "veth2",
            "239.10.1.1:6001",
            "01:00:5e:0a:01:01",
            "TTL 9",
            "cam1",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (json, text) = explained(&bed, &["239.1.1.1:5002", "--on", "veth1"]);
        assert_eq!(json["verdict"], "passed");
        assert_eq!(
            json["nearest"][0]["differs"],
            json!(["port 5001, not 5002"]),
            "{json}"
        );
        assert!(text.contains("no rule takes it"), "{text}");
        let (json, _) = explained(&bed, &["239.1.1.1%veth1:5001", "--size", "9000"]);
        let output = &json["outputs"][0];
        assert_eq!(
            (&output["verdict"], &output["reason"]),
            (&json!("dropped"), &json!("too_big"))
        );
        let bad = bed
            .daemon
            .client(&["explain", "239.1.1.1:5001", "--on", "vetth1"])
            .unwrap();
        assert!(bad.stderr.contains("did you mean veth1"), "{}", bad.stderr);
        let rule = bed.daemon.rule("cam1").unwrap();
        assert_eq!(
            (rule.received.packets, rule.outputs[0].sent.packets),
            (10, 10)
        );
    }
}
