//! The daemon itself reports what others on the network do: who takes one of its addresses, and that nobody
//! joins what it sends.

use std::net::IpAddr;

use lab::link;
use lab::socket::{Receiver, Sender};
use lab::wait;

use super::losses::{Followed, metric};
use crate::bed::{Bed, INPUT};

lab::on_both_paths!(an_output_that_nobody_behind_a_bridge_joined_is_told);

/// Waits for an event, and expects these words.
#[track_caller]
fn expect_event(events: &Followed, kind: &str, subject: &str, words: &[&str]) {
    let message = events.wait(kind, subject);
    let has_all = words.iter().all(|word| message.contains(word));
    assert!(has_all, "{words:?}: {message}");
}

#[test]
fn an_address_that_another_host_takes_is_reported_and_its_end() {
    let Some(bed) = Bed::with_tools(&["curl"], &[]) else {
        return;
    };
    bed.add();
    let events = Followed::start(&bed);
    let state = || bed.json(&["status", "--json"]);
    assert_eq!(state()["state"], "up");
    // The other host does not announce itself: it must be probed.
    let sender = &bed.chain.sender;
    sender.ip("address add 10.0.0.2/24 dev veth0").unwrap();
    let words = [
        "10.0.0.2",
        "somebody else's",
        "ip address del 10.0.0.2 dev veth1",
    ];
    expect_event(&events, "address_conflict", "veth1", &words);
    let status = state();
    assert_eq!(status["state"], "degraded", "{status}");
    let first = status["address_conflicts"][0].to_string();
    assert!(
        first.contains("10.0.0.2 is somebody else's too"),
        "{status}"
    );
    let shown = bed.daemon.mcr(&["status"]).unwrap();
    assert!(
        shown.contains("degraded: veth1: this host's address 10.0.0.2"),
        "{shown}"
    );
    let conflicts = || metric(&bed, "mcr_address_conflicts", "");
    assert_eq!(conflicts().as_deref(), Some("1"));
    sender.ip("address del 10.0.0.2/24 dev veth0").unwrap();
    expect_event(&events, "address_conflict_ended", "veth1", &["10.0.0.2"]);
    assert_eq!(state()["state"], "up");
    assert_eq!(conflicts().as_deref(), Some("0"));
}

fn an_output_that_nobody_behind_a_bridge_joined_is_told(path: &str) {
    let Some(bed) = Bed::new(None, &["--path", path]) else {
        return;
    };
    let relay = &bed.chain.relay;
    link::snooping_bridge((relay, "br0")).unwrap();
    relay.ip("address add 10.9.0.1/24 dev br0").unwrap();
    link::bridge_port((relay, "veth2"), "br0").unwrap();
    let output = "239.10.1.1%br0:6001";
    bed.daemon.add("cam1", INPUT, &[output]).unwrap();
    let events = Followed::start(&bed);
    let source: IpAddr = "10.0.0.1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), source).unwrap();
    let group = "239.1.1.1".parse().unwrap();
    let send = || sender.send_numbered(group, 5001, 1, 100).unwrap();
    let without_receiver = || {
        send();
        let rule = &bed.json(&["stats", "--json"])["rules"][0];
        rule["outputs"][0]["unheard"].as_str().map(str::to_owned)
    };
    wait::until("nobody has joined it", || without_receiver().is_some()).unwrap();
    expect_event(
        &events,
        "output_unheard",
        "cam1",
        &[output, "reaches nobody", "have the receiver join it"],
    );
    let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    assert!(
        shown.contains("nobody behind the bridge that it leaves by has joined it"),
        "{shown}"
    );
    let doctor = bed.daemon.client(&["doctor", "--json"]).unwrap().stdout;
    assert!(
        doctor.contains("has joined it") && doctor.contains("\"demand\""),
        "{doctor}"
    );
    let to: IpAddr = "239.10.1.1".parse().unwrap();
    let receiver = Receiver::join((&bed.chain.sink, "veth3"), to, 6001).unwrap();
    wait::until("somebody has", || without_receiver().is_none()).unwrap();
    expect_event(&events, "output_heard", "cam1", &[output]);
    drop(receiver);
    wait::until("nobody has any more", || without_receiver().is_some()).unwrap();
}
