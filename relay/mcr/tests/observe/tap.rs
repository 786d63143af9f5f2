use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::process::{self, Process};
use lab::wait;
use nix::sys::signal::Signal;

use crate::bed::{Bed, INPUT, OUTPUT};

/// Starts `mcr tap` with these arguments into a file, and waits until it has begun.
fn capture(bed: &Bed, file: &Path, arguments: &[&str]) -> Process {
    let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
    command.arg("--socket").arg(bed.daemon.socket());
    command.arg("tap").args(arguments).arg("--write").arg(file);
    let tap = Process::start(command).unwrap();
    wait::until("the capture begins", || {
        file.metadata().is_ok_and(|about| about.len() > 0)
    })
    .unwrap();
    tap
}

#[test]
fn a_capture_has_the_input_and_the_output_and_says_which_is_which() {
    let Some(bed) = Bed::with_tools(&["tshark", "capinfos"], &[]) else {
        return;
    };
    bed.add();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cam1.pcapng");
    let tap = capture(&bed, &file, &["cam1", "--count", "200", "--snaplen", "96"]);
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "--count", "100"]);
    command.args(["--rate", "1000", "--size", "1000"]);
    let sent = process::run(command, Duration::from_secs(20)).unwrap();
    sent.success().unwrap();
    let done = tap.wait(Duration::from_secs(20)).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    assert!(done.stderr.contains("0 lost to the tap"), "{}", done.stderr);

    let fields = [
        "-T",
        "fields",
        "-e",
        "frame.interface_description",
        "-e",
        "frame.interface_name",
        "-e",
        "ip.dst",
        "-e",
        "udp.dstport",
        "-e",
        "frame.len",
        "-e",
        "frame.cap_len",
    ];
    let mut tshark = Command::new("tshark");
    let finished = process::run(
        {
            tshark.arg("-r").arg(&file).args(fields);
            tshark
        },
        Duration::from_secs(30),
    );
    let shown = finished.unwrap().success().unwrap();
    let lines = |text: &str| shown.lines().filter(|line| line.contains(text)).count();
    let arriving = "rule cam1, input: 239.1.1.1%veth1:5001\tveth1\t239.1.1.1\t5001\t1042\t96";
    let leaving = "rule cam1, output 1: 239.10.1.1%veth2:6001\tveth2\t239.10.1.1\t6001\t1042\t96";
    assert_eq!((lines(arriving), lines(leaving)), (100, 100), "{shown}");
    let finished = process::run(
        {
            let mut capinfos = Command::new("capinfos");
            capinfos.arg(&file);
            capinfos
        },
        Duration::from_secs(30),
    );
    let about = finished.unwrap().success().unwrap();
    assert!(about.contains("Number of interfaces in file: 2"), "{about}");
    assert!(about.contains("mcr tap cam1"), "{about}");
}

#[test]
fn a_filter_chooses_and_the_end_of_the_rule_ends_the_capture() {
    let Some(bed) = Bed::with_tools(&["tshark"], &[]) else {
        return;
    };
    let input = "239.1.1.0/24%veth1:5001-5002";
    let outputs = [
        "239.10.1.0/24%veth2:6001-6002",
        "239.20.1.0/24%veth9:6001-6002",
    ];
    bed.daemon.add("block", input, &outputs).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("block.pcapng");
    let filter = "dst port 5002 or (outbound and dst net 239.10.1.2/31)";
    // A snap length shorter than the headers that the filter tests.
    let tap = capture(&bed, &file, &["block", "--snaplen", "20", filter]);
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "239.1.1.2%veth0:5001"]);
    command.args(["239.1.1.1%veth0:5002", "--count", "20", "--rate", "200"]);
    let sent = process::run(command, Duration::from_secs(20)).unwrap();
    sent.success().unwrap();
    bed.daemon.mcr(&["remove", "block"]).unwrap();
    let done = tap.wait(Duration::from_secs(20)).unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
    for part in [
        "output 2: 239.20.1.0/24%veth9:6001-6002: no interface veth9",
        "on veth1: 20 packets, 0 lost",
        "on veth2: 20 packets, 0 lost",
        "rule \"block\" was removed",
    ] {
        assert!(done.stderr.contains(part), "no {part} in {}", done.stderr);
    }
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-e", "frame.cap_len", "-r"]);
    let finished = process::run(
        {
            tshark.arg(&file);
            tshark
        },
        Duration::from_secs(30),
    );
    let shown = finished.unwrap().success().unwrap();
    assert_eq!(shown.lines().count(), 40, "{shown}");
    assert!(shown.lines().all(|line| line == "20"), "{shown}");
}

#[test]
fn outputs_to_one_destination_differ_by_their_source() {
    let Some(bed) = Bed::with_tools(&[], &[]) else {
        return;
    };
    let [first, second] = [1000, 2000].map(|port| format!("{OUTPUT},sport={port}"));
    bed.daemon.add("cam1", INPUT, &[&first, &second]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cam1.pcapng");
    let tap = capture(&bed, &file, &["cam1", "--count", "30"]);
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args(["send", "239.1.1.1%veth0:5001", "--count", "10"]);
    let sent = process::run(command, Duration::from_secs(20)).unwrap();
    sent.success().unwrap();
    let done = tap.wait(Duration::from_secs(20)).unwrap();
    let each = done.stderr.matches(": 10 packets, 0 lost").count();
    assert_eq!(each, 3, "{}", done.stderr);
}

#[test]
fn a_capture_includes_outputs_that_are_added_later() {
    let Some(bed) = Bed::with_tools(&["capinfos"], &[]) else {
        return;
    };
    bed.add();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cam1.pcapng");
    let mut tap = capture(&bed, &file, &["cam1"]);
    let before = file.metadata().unwrap().len();
    let rule = format!(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninput = \"{INPUT}\"\n\
         outputs = [\"{OUTPUT}\", \"239.10.1.2%veth2:6001\"]\n"
    );
    bed.daemon.apply(&rule).unwrap();
    wait::until("the new output has its interface block", || {
        file.metadata().is_ok_and(|about| about.len() > before)
    })
    .unwrap();
    tap.signal(Signal::SIGINT).unwrap();
    let done = tap.wait(Duration::from_secs(20)).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    assert!(
        done.stderr.contains("output 2: 239.10.1.2"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_daemon_that_stands_still_does_not_hold_up_a_capture() {
    let Some(mut bed) = Bed::with_tools(&[], &["--path", "kernel"]) else {
        return;
    };
    bed.add();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cam1.pcapng");
    let tap = capture(&bed, &file, &["cam1", "--count", "60"]);
    bed.daemon.signal(Signal::SIGSTOP).unwrap();
    // For longer than a query of the daemon takes, but shorter than its timeout.
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args([
        "send",
        "239.1.1.1%veth0:5001",
        "--count",
        "30",
        "--rate",
        "10",
    ]);
    let sent = process::run(command, Duration::from_secs(20));
    let waited = tap.wait(Duration::from_secs(10));
    bed.daemon.signal(Signal::SIGCONT).unwrap();
    sent.unwrap().success().unwrap();
    let done = waited.unwrap();
    assert!(done.status.success(), "{}", done.stderr);
}

#[test]
fn one_output_can_be_read_through_a_pipe() {
    let Some(bed) = Bed::with_tools(&["tshark"], &[]) else {
        return;
    };
    bed.add();
    let _stream = bed.stream(1000);
    let mcr = lab::binary::mcr().unwrap().display();
    let socket = bed.daemon.socket();
    let script = format!(
        "{mcr} --socket {} tap cam1 --output 1 --count 50 | tshark -r - -T fields -e ip.dst",
        socket.display()
    );
    let mut command = bed.chain.relay.command("sh");
    command.args(["-c", &script]);
    let finished = process::run(command, Duration::from_secs(30)).unwrap();
    let shown = finished.success().unwrap();
    assert_eq!(shown.lines().count(), 50, "{shown}");
    assert!(shown.lines().all(|line| line == "239.10.1.1"), "{shown}");
}

#[test]
fn a_unicast_output_is_captured_where_its_route_leads() {
    let Some(bed) = Bed::with_tools(&[], &[]) else {
        return;
    };
    // The route leaves by veth2, with the address of veth1.
    let route = "route add 10.99.0.0/24 via 10.0.1.2 dev veth2 src 10.0.0.2";
    bed.chain.relay.ip(route).unwrap();
    bed.daemon.add("far", INPUT, &["10.99.0.1:7000"]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("far.pcapng");
    let tap = capture(&bed, &file, &["far", "--output", "1", "--duration", "1"]);
    let done = tap.wait(Duration::from_secs(20)).unwrap();
    assert!(done.stderr.contains(" on veth2: "), "{}", done.stderr);
}
