//! `mcr join` and `mcr leave`.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::bed::{Bed, INPUT, OUTPUT};

/// The groups that the relay's kernel has joined on its interfaces.
fn joined(bed: &Bed) -> String {
    bed.chain.relay.ip("maddress show").unwrap()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < limit, "{what}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_is_joined_by_hand_stays_joined_until_it_is_left() {
    let Some(mut bed) = Bed::new(None, &[]) else {
        return;
    };
    let mcr = |bed: &Bed, words: &[&str]| bed.daemon.mcr(words).unwrap();
    mcr(
        &bed,
        &[
            "join",
            "239.7.7.7%veth1",
            "ff3e::77%veth2",
            "10.0.1.9@232.7.7.7%veth2",
        ],
    );
    let groups = ["239.7.7.7", "ff3e::77", "232.7.7.7"];
    let all = |bed: &Bed| groups.iter().all(|group| joined(bed).contains(group));
    assert!(all(&bed), "{}", joined(&bed));
    let sources = bed.chain.relay.tool("cat", "/proc/net/mcfilter").unwrap();
    assert!(sources.to_lowercase().contains("0xe8070707"), "{sources}");
    let list: Value = bed.json(&["join", "--json"]);
    assert_eq!(
        list["joins"][0],
        json!({"at": "239.7.7.7%veth1", "joined": true})
    );
    assert!(mcr(&bed, &["status"]).contains("joined by hand   3"));
    bed.refuses(
        &["leave", "239.7.7.8%veth1"],
        3,
        &["239.7.7.8%veth1 is not joined"],
    );
    bed.refuses(&["join", "239.7.7.7%veth1:5001"], 2, &["has no port"]);

    // A rule of the same group is removed; the manual join stays.
    mcr(
        &bed,
        &["add", "239.7.7.7%veth1:5001", OUTPUT, "--name", "cam7"],
    );
    mcr(&bed, &["remove", "cam7"]);
    assert!(all(&bed), "{}", joined(&bed));

    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    assert!(all(&bed), "{}", joined(&bed));
    // The link goes down and up again, which loses its IPv6 groups.
    bed.chain.relay.ip("link set veth2 down").unwrap();
    let waits = || mcr(&bed, &["join"]).contains("is administratively down");
    wait_until("the list says that the link is down", waits);
    bed.chain.relay.ip("link set veth2 up").unwrap();
    wait_until("everything is joined again", || {
        let list = bed.json(&["join", "--json"]);
        let joins = list["joins"].as_array().unwrap().iter();
        all(&bed) && joins.clone().all(|join| join["joined"] == json!(true))
    });

    mcr(
        &bed,
        &["leave", "239.7.7.7%veth1", "10.0.1.9@232.7.7.7%veth2"],
    );
    let now = joined(&bed);
    assert!(
        !now.contains("239.7.7.7") && !now.contains("232.7.7.7"),
        "{now}"
    );
    assert!(now.contains("ff3e::77"), "{now}");
    bed.daemon.stop(Signal::SIGTERM).unwrap().success().unwrap();
    assert!(!joined(&bed).contains("ff3e::77"), "{}", joined(&bed));
}

#[test]
fn what_is_joined_for_a_time_is_left_by_itself() {
    let Some(bed) = Bed::new(None, &[]) else {
        return;
    };
    bed.daemon
        .mcr(&["add", INPUT, OUTPUT, "--name", "cam1"])
        .unwrap();
    bed.daemon
        .mcr(&["join", "239.7.7.0/30%veth1", "--duration", "2"])
        .unwrap();
    assert!(joined(&bed).contains("239.7.7.3"), "{}", joined(&bed));
    wait_until("it is left", || !joined(&bed).contains("239.7.7."));
    assert_eq!(bed.json(&["join", "--json"]), json!({"joins": []}));
    assert!(joined(&bed).contains("239.1.1.1"), "{}", joined(&bed));
}

#[test]
fn what_is_saved_is_what_a_reload_finds_and_exports() {
    let Some(bed) = Bed::new(Some("# The head end.\nversion = 1\n"), &[]) else {
        return;
    };
    let mcr = |words: &[&str]| bed.daemon.mcr(words).unwrap();
    mcr(&["join", "239.7.7.9%veth1", "--duration", "600"]);
    mcr(&["join", "239.7.7.7%veth1", "--save"]);
    let written = fs::read_to_string(bed.daemon.config_file()).unwrap();
    assert_eq!(
        written,
        "# The head end.\nversion = 1\njoin = [\"239.7.7.7%veth1\"]\n"
    );
    assert!(mcr(&["export"]).contains("\"239.7.7.7%veth1\""));
    mcr(&["reload"]);
    let now = joined(&bed);
    assert!(
        now.contains("239.7.7.7") && !now.contains("239.7.7.9"),
        "{now}"
    );
    mcr(&["leave", "239.7.7.7%veth1", "--save"]);
    let written = fs::read_to_string(bed.daemon.config_file()).unwrap();
    assert!(!written.contains("join"), "{written}");
    let twice = "version = 1\njoin = [\"239.7.7.7%veth1\", \"239.7.7.7%veth1\"]\n";
    let file = bed.daemon.config_file().with_file_name("twice.toml");
    fs::write(&file, twice).unwrap();
    bed.fails(
        &["check", file.to_str().unwrap()],
        78,
        &["239.7.7.7%veth1 is there twice"],
    );
}
