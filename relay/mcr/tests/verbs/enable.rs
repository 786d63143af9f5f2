//! `mcr enable` and `mcr disable`.

use api::reply::State;
use lab::process;
use serde_json::json;
use std::time::Duration;

use crate::bed::{Bed, INPUT, OUTPUT};

#[test]
fn a_disabled_rule_forwards_nothing_and_says_so_wherever_it_is_shown() {
    for path in ["kernel", "userspace"] {
        let listen = ["--path", path, "--listen", "127.0.0.1:9190"];
        let Some(bed) = Bed::new(None, &listen) else {
            return;
        };
        let rule = [
            "add",
            INPUT,
            OUTPUT,
            "--name",
            "cam1",
            "--health",
            "silence=1s",
        ];
        bed.daemon.mcr(&rule).unwrap();
        bed.send(100);
        bed.daemon.settled("cam1", 100).unwrap();
        bed.daemon.mcr(&["disable", "cam1"]).unwrap();
        bed.send(100);

        let rule = bed.daemon.rule("cam1").unwrap();
        assert_eq!(rule.received.packets, 100, "{path}: it went on");
        assert_eq!(
            (rule.state, rule.outputs[0].state),
            (State::Disabled, State::Disabled)
        );
        assert!(!rule.inputs[0].joined && rule.health.is_none(), "{rule:?}");
        let reason = rule.state_reason.unwrap();
        assert!(reason.contains("mcr enable cam1"), "{reason}");
        assert_eq!(
            bed.json(&["list", "--json"])["rules"][0]["enabled"],
            json!(false)
        );
        for view in [&["list"][..], &["show", "cam1"], &["export"]] {
            let text = bed.daemon.mcr(view).unwrap();
            let is_shown = ["enabled=no", "enabled = false"]
                .iter()
                .any(|word| text.contains(word));
            assert!(is_shown, "{view:?}: {text}");
        }
        for view in [
            &["stats"][..],
            &["show", "cam1"],
            &["status"],
            &["list", "-o", "wide"],
        ] {
            let text = bed.daemon.mcr(view).unwrap();
            assert!(text.contains("disabled"), "{view:?}: {text}");
        }
        let metrics = fetch(&bed, "metrics");
        assert!(metrics.contains(r#"mcr_rule_state{rule="cam1",state="disabled"} 1"#));
        assert!(!metrics.contains("mcr_output_up{"), "{metrics}");
        assert_eq!(fetch(&bed, "readyz"), "ready\n");
        let doctor = bed.daemon.client(&["doctor"]).unwrap().stdout;
        assert!(!doctor.contains("is not joined"), "{doctor}");

        bed.daemon.mcr(&["enable", "cam1"]).unwrap();
        bed.send(50);
        let rule = bed.daemon.settled("cam1", 150).unwrap();
        assert!(rule.inputs[0].joined && rule.state == State::Up, "{rule:?}");
    }
}

fn fetch(bed: &Bed, what: &str) -> String {
    let mut command = bed.chain.relay.command("curl");
    command.args(["-s", &format!("http://127.0.0.1:9190/{what}")]);
    process::run(command, Duration::from_secs(10))
        .unwrap()
        .stdout
}

#[test]
fn all_of_the_rules_named_are_disabled_or_none() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    bed.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    bed.fails(&["disable", "cam1", "cam2x"], 3, &["no rule \"cam2x\""]);
    assert_eq!(bed.daemon.rule("cam1").unwrap().state, State::Up);
    let spare = ["add", INPUT, "239.10.1.2%veth2:6001", "--name", "spare"];
    bed.fails(&spare, 1, &["cam1"]);
    bed.daemon.mcr(&["disable", "cam1"]).unwrap();
    bed.daemon.mcr(&spare).unwrap();
    // The other rule has its input now.
    bed.fails(&["enable", "cam1"], 1, &["spare", INPUT]);
    bed.daemon.mcr(&["disable", "spare"]).unwrap();
    let change = bed.json(&["enable", "cam1", "--json"]);
    assert_eq!(change["changed"], json!(["cam1"]));
}
