//! Changes that undo themselves unless somebody confirms them, and what is not saved.

#![expect(clippy::unwrap_used, reason = "tests")]

mod long;
mod meanwhile;

use std::fs;

use lab::wait;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::bed::{Bed, INPUT, OUTPUT};
use crate::changes::{CAM2, FILE, bed};

const CHANGED: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001"]
[[rule]]
name = "cam3"
input = "239.1.1.3%veth1:5003"
outputs = ["239.10.1.3%veth2:6003"]
"#;

impl Bed {
    /// Applies a configuration that has to be confirmed.
    pub(crate) fn try_out(&self, text: &str, within: &str) {
        let file = self.daemon.config_file().with_file_name("new.toml");
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        self.daemon
            .mcr(&["apply", file, "--confirm", within])
            .unwrap();
    }

    pub(crate) fn listed(&self) -> String {
        self.daemon.mcr(&["list", "-o", "name"]).unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        self.json(&["status", "--json"])
    }

    pub(crate) fn wait_for_list(&self, names: &str) {
        wait::until(names, || self.listed() == names).unwrap();
    }
}

#[test]
fn a_change_that_nobody_confirms_is_undone_and_counters_go_on() {
    let Some(bed) = bed() else { return };
    bed.daemon.mcr(&CAM2).unwrap();
    let stream = bed.stream(500);
    bed.daemon
        .wait_for("cam1", "packets", |rule| rule.received.packets > 100)
        .unwrap();
    // One rule stays, one is removed and restored, one is added and removed.
    bed.try_out(CHANGED, "2s");
    assert_eq!(bed.listed(), "cam1\ncam3\n");
    let status = bed.status();
    let pending = &status["pending"];
    assert_eq!(pending["by"]["user"], "root", "{status}");
    assert!(
        (1..=2).contains(&pending["seconds"].as_u64().unwrap()),
        "{status}"
    );
    assert!(
        pending["until"].as_u64().unwrap() > 1_700_000_000,
        "{status}"
    );
    let words = [
        "a change by root (uid 0, mcr, pid",
        "s more to be confirmed",
        "mcr confirm",
    ];
    bed.refuses(&["remove", "cam1"], 1, &words);
    bed.refuses(&["reload"], 1, &words);
    let screen = bed.daemon.mcr(&["status"]).unwrap();
    assert!(screen.contains(" s to confirm: generation "), "{screen}");
    bed.wait_for_list("cam1\ncam2\n");
    let changes = bed.changes();
    let [.., made, undone] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(
        (&made["outcome"], &undone["outcome"]),
        (&json!("undone"), &json!("undone"))
    );
    assert_eq!(undone["of"], made["generation"]);
    assert_eq!(undone["by"]["via"], "time");
    let late = undone["at_ms"].as_u64().unwrap() - made["at_ms"].as_u64().unwrap();
    assert!((1900..4000).contains(&late), "{late} ms");
    assert!(bed.status()["pending"].is_null());
    assert_eq!(bed.status()["state"], "up");
    drop(stream);
    let rule = bed.daemon.rule("cam1").unwrap();
    assert_eq!(
        rule.received.packets, rule.outputs[0].sent.packets,
        "0 lost"
    );
}

#[test]
fn what_goes_and_is_brought_back_keeps_its_counters() {
    let Some(bed) = bed() else { return };
    bed.send(100);
    bed.daemon.settled("cam1", 100).unwrap();
    bed.daemon
        .mcr(&["remove", "cam1", "--confirm", "60s"])
        .unwrap();
    assert_eq!(bed.listed(), "");
    let diff = bed.daemon.mcr(&["rollback", "--last", "--yes"]).unwrap();
    assert_eq!(diff, "+ cam1\n0 unchanged\n");
    assert_eq!(bed.daemon.rule("cam1").unwrap().received.packets, 100);
    bed.daemon
        .mcr(&["remove", "cam1", "--confirm", "60s"])
        .unwrap();
    bed.daemon.mcr(&["confirm"]).unwrap();
    bed.daemon.mcr(&["rollback", "--last", "--yes"]).unwrap();
    assert_eq!(bed.daemon.rule("cam1").unwrap().received.packets, 0);
}

#[test]
fn what_is_confirmed_stays_and_is_saved_then() {
    let Some(mut bed) = bed() else { return };
    let file = bed.daemon.config_file();
    let add = [&CAM2[..], &["--confirm", "60s", "--save"]].concat();
    bed.daemon.mcr(&add).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), FILE, "not yet");
    // A reload has to wait.
    bed.daemon.signal(Signal::SIGHUP).unwrap();
    bed.refuses(&["add", INPUT, OUTPUT], 1, &["to be confirmed"]);
    bed.daemon.mcr(&["confirm"]).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(FILE) && text.contains("cam2"), "{text}");
    bed.refuses(&["confirm"], 1, &["no change waits"]);
    let changes = bed.changes();
    let made = changes
        .iter()
        .find(|change| change["what"] == "+ cam2\n")
        .unwrap();
    assert_eq!(made["outcome"], "confirmed");
    for wrong in ["0s", "2h", "60", "soon"] {
        bed.refuses(&["remove", "cam1", "--confirm", wrong], 2, &["1s to 1h"]);
    }
}

#[test]
fn a_daemon_that_was_killed_undoes_in_time_or_at_its_start() {
    let Some(mut bed) = bed() else { return };
    // In time: it continues to wait.
    bed.try_out(CHANGED, "3s");
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(bed.listed(), "cam1\ncam3\n");
    assert!(bed.status()["pending"].is_object());
    bed.wait_for_list("cam1\n");
    assert_eq!(bed.status()["state"], "up");
    // Too late, and after a stop: it starts with the previous rules.
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        bed.daemon.mcr(&CAM2).unwrap();
        bed.try_out(CHANGED, "1s");
        bed.daemon.stop(signal).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1100));
        bed.daemon.start_again().unwrap();
        assert_eq!(bed.listed(), "cam1\ncam2\n", "{signal}");
        let status = bed.status();
        assert_eq!(status["state"], "degraded", "{status}");
        let reason = status["state_reason"].as_str().unwrap();
        assert!(reason.contains("nobody confirmed the change"), "{reason}");
        assert!(status["pending"].is_null(), "{status}");
        let last = bed.changes().pop().unwrap();
        assert_eq!(
            (&last["outcome"], &last["by"]["via"]),
            (&json!("undone"), &json!("start"))
        );
        bed.daemon.stop(Signal::SIGTERM).unwrap();
        bed.daemon.start_again().unwrap();
        assert_eq!(
            bed.listed(),
            "cam1\ncam2\n",
            "until somebody says otherwise"
        );
        if signal == Signal::SIGKILL {
            bed.daemon.mcr(&["confirm"]).unwrap();
            assert_eq!(bed.status()["state"], "up");
            bed.daemon.mcr(&["remove", "cam2"]).unwrap();
        } else {
            bed.daemon.mcr(&["reload"]).unwrap();
            assert_eq!(bed.status()["state"], "up");
            assert_eq!(bed.listed(), "cam1\n");
        }
    }
}

#[test]
fn a_reload_that_is_undone_does_not_come_back_with_the_next_start() {
    let Some(mut bed) = bed() else { return };
    let file = bed.daemon.config_file();
    fs::write(&file, CHANGED).unwrap();
    bed.daemon.mcr(&["reload", "--confirm", "1s"]).unwrap();
    assert_eq!(bed.listed(), "cam1\ncam3\n");
    bed.wait_for_list("cam1\n");
    wait::until("it is told", || bed.status()["state"] == "degraded").unwrap();
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(
        (bed.listed().as_str(), &bed.status()["state"]),
        ("cam1\n", &json!("degraded"))
    );
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    fs::write(&file, CHANGED.replace("cam3", "cam4")).unwrap();
    bed.daemon.start_again().unwrap();
    assert_eq!(
        (bed.listed().as_str(), &bed.status()["state"]),
        ("cam1\ncam4\n", &json!("up"))
    );
}

#[test]
fn what_is_not_saved_is_named_and_saved_by_whoever_may() {
    let Some(bed) = bed() else { return };
    let file = bed.daemon.config_file();
    assert_eq!(bed.status()["unsaved"], 0);
    assert_eq!(
        bed.daemon.mcr(&["diff", "--saved"]).unwrap(),
        "1 unchanged\n"
    );
    bed.daemon.mcr(&CAM2).unwrap();
    bed.daemon
        .mcr(&["change", "cam1", "--set", "limit=20Mbit"])
        .unwrap();
    bed.daemon
        .mcr(&["join", "239.7.7.7%veth1", "--duration", "600"])
        .unwrap();
    bed.daemon.mcr(&["join", "239.7.7.8%veth1"]).unwrap();
    assert_eq!(bed.status()["unsaved"], 3);
    let screen = bed.daemon.mcr(&["status"]).unwrap();
    assert!(
        screen.contains("3 changes are not saved: mcr diff --saved, mcr save"),
        "{screen}"
    );
    let shown = bed.fails(&["diff", "--saved"], 1, &[]);
    for line in ["+ cam2\n", "~ cam1\n    + limit 20Mbit\n", "239.7.7.8"] {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(!shown.contains("239.7.7.7"), "{shown}");
    bed.daemon.mcr(&["save"]).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("# on the roof\n[[rule]]\nname = \"cam1\""),
        "{text}"
    );
    assert_eq!(bed.status()["unsaved"], 0);
    // A join for a limited time is not saved, and ends with a reload.
    let reloaded = bed.daemon.mcr(&["reload"]).unwrap();
    let rest = reloaded.strip_prefix("~ leave 239.7.7.7%veth1,until=");
    assert!(
        rest.is_some_and(|rest| rest.ends_with("\n2 unchanged\n")),
        "{reloaded}"
    );

    let ask = |arguments: &str| {
        let socket = bed.daemon.socket();
        let arguments = format!("-s --unix-socket {} {arguments}", socket.display());
        bed.chain.relay.tool("curl", &arguments).unwrap()
    };
    ask("-X DELETE http://mcr/v1/rules/cam2?save=true");
    let text = fs::read_to_string(&file).unwrap();
    assert!(
        !text.contains("cam2") && text.contains("# on the roof"),
        "{text}"
    );
    assert_eq!(bed.status()["unsaved"], 0);
    bed.daemon.mcr(&["disable", "cam1"]).unwrap();
    ask("-X POST http://mcr/v1/save");
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("enabled = false")
    );
    fs::write(&file, "version = 1\n[[rule]]\n").unwrap();
    let reply = ask("-X DELETE http://mcr/v1/rules/cam1?save=true");
    assert!(reply.contains("lasts until the daemon stops"), "{reply}");
    assert!(bed.status()["unsaved"].is_null());
}
