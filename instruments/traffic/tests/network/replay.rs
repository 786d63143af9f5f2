//! A capture of tcpdump is replayed.

use std::process::Command;
use std::thread;

use traffic::generator::Options;

use crate::bed::{Pair, is_clean, to};

#[test]
fn a_capture_is_replayed_datagram_by_datagram() {
    let Some(pair) = Pair::new() else { return };
    if Command::new("tcpdump").arg("--version").output().is_err() {
        eprintln!("skipped: tcpdump is not installed");
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut tcpdump = pair.receiver.command("tcpdump");
    let path = file.path().to_str().unwrap();
    tcpdump.args([
        "-i",
        "veth1",
        "-c",
        "500",
        "-U",
        "-Z",
        "root",
        "-w",
        path,
        "udp port 5001",
    ]);
    let mut tcpdump = tcpdump
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_listening(&mut tcpdump);
    let (sent, _) = pair.exchange(
        &["239.1.1.1%veth1:5001"],
        &to(&["239.1.1.1%veth0:5001"]),
        500,
    );
    assert!(tcpdump.wait().unwrap().success());
    let capture = traffic::capture::Capture::open(file.path()).unwrap();
    assert_eq!((capture.datagrams(), capture.flows.len()), (500, 1));
    let options = Options {
        replay: Some(capture),
        count: None,
        ..to(&["239.2.2.2%veth0:6001"])
    };
    let (replayed, received) = pair.exchange(&["239.2.2.2%veth1:6001"], &options, 500);
    assert_eq!(replayed.sent, sent.sent);
    assert!(
        is_clean(&received) && received.total.packets == 500,
        "{received:?}"
    );
}

/// tcpdump reports on standard error when its tap is open.
fn wait_for_listening(tcpdump: &mut std::process::Child) {
    use std::io::{BufRead, BufReader};
    let stderr = tcpdump.stderr.take().unwrap();
    let mut lines = BufReader::new(stderr).lines();
    let listening = lines.find(|line| {
        line.as_ref()
            .is_ok_and(|line| line.contains("listening on"))
    });
    assert!(listening.is_some(), "tcpdump ended before it listened");
    // Drained to the end, so that tcpdump never writes into a closed pipe.
    thread::spawn(move || lines.for_each(drop));
}
