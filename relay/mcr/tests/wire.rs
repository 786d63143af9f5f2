//! `mcr bench wire` over veth with a daemon between: figures agree with packet counts, what the relay
//! drops is named, and nobody who connects holds up the verifier.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use lab::link;
use lab::process::{Finished, Process};
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::bed::Bed;

const PATIENCE: Duration = Duration::from_secs(120);
const VERIFIER: &str = "10.9.0.2:2544";

/// A relay between generator and verifier, which reach each other by a wire of their own.
struct Wire {
    bed: Bed,
}

impl Wire {
    /// `None` where the test may not make namespaces.
    fn new() -> Option<Self> {
        let bed = Bed::new(None, &[])?;
        let (sender, sink) = (&bed.chain.sender, &bed.chain.sink);
        link::veth((sender, "manage0"), (sink, "manage1")).unwrap();
        link::address((sender, "manage0"), "10.9.0.1/24").unwrap();
        link::address((sink, "manage1"), "10.9.0.2/24").unwrap();
        Some(Self { bed })
    }

    /// Starts a verifier and waits until it listens.
    fn verifier(&self, endpoints: &str) -> Process {
        let mut command = self.bed.chain.sink.command(env!("CARGO_BIN_EXE_mcr"));
        command.args(["bench", "wire", "receive", "--listen", VERIFIER]);
        command.args(endpoints.split_whitespace());
        let process = Process::start(command).unwrap();
        let listens = || process.stderr().contains("listening");
        wait::until("the verifier listens", listens).unwrap();
        process
    }

    /// Starts a generator.
    fn generator(&self, arguments: &str) -> Process {
        let mut command = self.bed.chain.sender.command(env!("CARGO_BIN_EXE_mcr"));
        command.args(["bench", "wire", "send", "--json"]);
        command.args(arguments.split_whitespace());
        Process::start(command).unwrap()
    }

    fn measure(&self, arguments: &str) -> Finished {
        let arguments = format!("{arguments} --verifier {VERIFIER} --seconds 0.3");
        self.generator(&arguments).wait(PATIENCE).unwrap()
    }

    /// Connects to the verifier from the generator's side.
    fn connect(&self) -> TcpStream {
        let connect = || {
            let stream = TcpStream::connect(VERIFIER)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        self.bed.chain.sender.run(connect).unwrap()
    }

    fn socket(&self) -> String {
        self.bed.daemon.socket().display().to_string()
    }
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// The limits of a step as one text.
fn limits(step: &Value) -> String {
    let limits = step["limits"].as_array().unwrap().iter();
    let texts: Vec<&str> = limits.map(|limit| limit.as_str().unwrap()).collect();
    texts.join("; ")
}

#[test]
fn rates_and_groups_agree_with_what_was_counted() {
    let Some(wire) = Wire::new() else { return };
    let (input, outputs) = (
        "239.1.1.0/30%veth1:5001",
        ["239.10.1.0/30%veth2:6001", "239.20.1.0/30%veth2:6001"],
    );
    wire.bed.daemon.add("cam1", input, &outputs).unwrap();
    let _verifier = wire.verifier("239.10.1.0/30%veth3:6001 239.20.1.0/30%veth3:6001");
    let measured = wire.measure("239.1.1.0/30%veth0:5001 --rate 2000 --sizes 64,1400");
    let report = json(&measured);
    assert!(measured.status.success(), "{measured:?}");
    let of_report = |key: &str| report[key].as_u64().unwrap();
    assert_eq!((of_report("streams"), of_report("copies")), (4, 2));
    assert_eq!(report["one_clock"], true);
    assert_eq!(report["generator"]["interfaces"]["veth0"]["driver"], "veth");
    assert_eq!(report["verifier"]["interfaces"]["veth3"]["mtu"], 1500);
    for (size, frame) in report["throughput"]
        .as_array()
        .unwrap()
        .iter()
        .zip([110, 1446])
    {
        assert_eq!(size["frame_bytes"], frame);
        let rate = size["zero_loss_pps"].as_f64().unwrap();
        assert!(rate > 0.0 && rate <= 2000.0, "{size}");
        let trial = &size["trial"];
        assert_eq!(trial["expected"], 2 * trial["sent"].as_u64().unwrap());
        assert_eq!(trial["delivered"], trial["expected"], "{trial}");
        assert!(
            trial["latency_us"]["p50"].as_f64().unwrap() > 0.0,
            "{trial}"
        );
        assert!(!size["probes"].as_array().unwrap().is_empty());
    }
    let steps = report["groups"].as_array().unwrap().iter();
    let groups: Vec<&Value> = steps.map(|step| &step["groups"]).collect();
    assert_eq!(groups, [1, 2, 4]);
    assert_eq!(report["group_capacity"], 4, "{report}");
    // Every packet is accounted for, and none came from anywhere else.
    let rule = wire.bed.daemon.rule("cam1").unwrap();
    assert!(rule.dropped.values().all(|dropped| *dropped == 0));
    for output in &rule.outputs {
        assert_eq!(output.sent.packets, rule.received.packets);
    }
}

#[test]
fn what_the_relay_drops_is_found_as_loss_and_named() {
    let Some(wire) = Wire::new() else { return };
    let (input, output) = ("239.1.1.1%veth1:5001", "239.10.1.1%veth2:6001");
    let rule = ["add", input, output, "--name", "cam1", "--limit", "200pps"];
    wire.bed.daemon.mcr(&rule).unwrap();
    let _verifier = wire.verifier("239.10.1.1%veth3:6001");
    let load = "239.1.1.1%veth0:5001 --rate 4000 --sizes 64";
    let measured = wire.measure(&format!("{load} --relay-socket {}", wire.socket()));
    let size = &json(&measured)["throughput"][0];
    let rate = size["zero_loss_pps"].as_f64().unwrap();
    // A limit lets a burst through, which is much of a short trial.
    assert!(rate < 3000.0, "{size}");
    let text = limits(size);
    assert!(text.contains("relay: rule cam1: rate_limited"), "{text}");
    assert!(!text.contains("counted by neither"), "{text}");
    // Each missing copy is one that the relay counted.
    let lossy = &size["lossy"];
    let of_trial = |key: &str| lossy[key].as_u64().unwrap();
    let missing = of_trial("expected") - of_trial("delivered");
    let drops = lossy["drops"].as_array().unwrap();
    let relays = drops.iter().find(|drop| drop["at"] == "relay").unwrap();
    assert_eq!(relays["copies"], missing, "{lossy}");
    // Without the relay's counters it is only certain that neither end has them.
    let unexplained = wire.measure(load);
    let text = limits(&json(&unexplained)["throughput"][0]);
    assert!(text.contains("counted by neither"), "{text}");
}

#[test]
fn both_ends_on_one_host_need_no_verifier_elsewhere() {
    let Some(wire) = Wire::new() else { return };
    wire.bed.add();
    let sink = &wire.bed.chain.sink;
    // The second interface of the generator's host is the relay's far side.
    sink.ip(&format!(
        "link set veth3 netns {}",
        wire.bed.chain.sender.name()
    ))
    .unwrap();
    link::up((&wire.bed.chain.sender, "veth3")).unwrap();
    link::address((&wire.bed.chain.sender, "veth3"), "10.0.1.2/24").unwrap();
    let generator = wire.generator(
        "239.1.1.1%veth0:5001 --receive 239.10.1.1%veth3:6001 --rate 1000 --sizes 100 --seconds 0.3",
    );
    let measured = generator.wait(PATIENCE).unwrap();
    let report = json(&measured);
    assert!(
        report["throughput"][0]["zero_loss_pps"].as_f64().unwrap() > 0.0,
        "{measured:?}"
    );
    assert!(report.get("group_capacity").is_none());
}

#[test]
fn whoever_else_connects_holds_up_nobody() {
    let Some(wire) = Wire::new() else { return };
    wire.bed.add();
    let verifier = wire.verifier("239.10.1.1%veth3:6001");
    for (request, answer) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "not understood"),
        ("{\"hello\":{\"version\":99}}\n".to_owned(), "version 99"),
        (
            "{\"hello\":{\"version\":1,\"x\":1}}\n".to_owned(),
            "unknown field",
        ),
        ("{\"clock\":{}}\n".to_owned(), "say hello first"),
        ("x".repeat(100_000), "more than 1024 bytes"),
        (
            "{\"hello\":{\"version\":1}}\n{\"end\":{\"copies\":1}}\n".to_owned(),
            "no trial has begun",
        ),
        (
            "{\"hello\":{\"version\":1}}\n\
             {\"begin\":{\"seconds\":1e9,\"ahead_ns\":0,\"bound_ns\":0}}\n"
                .to_owned(),
            "a trial lasts",
        ),
    ] {
        let mut stream = wire.connect();
        // The connection may be closed before all is written.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        let has_logged = || verifier.stderr().contains(answer);
        wait::until(&format!("the verifier says {answer:?}"), has_logged).unwrap();
    }
    // Half a line, and silence; the hello's time limit is not over yet.
    let mut half = wire.connect();
    half.write_all(b"{\"hel").unwrap();
    let _silent = wire.connect();
    // A client that has said hello keeps the turn until it disconnects.
    let mut first = wire.connect();
    first.write_all(b"{\"hello\":{\"version\":1}}\n").unwrap();
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    let load = "239.1.1.1%veth0:5001 --rate 1000 --sizes 64";
    let busy = wire.measure(load);
    assert_eq!(busy.status.code(), Some(69), "{busy:?}");
    assert!(busy.stderr.contains("busy"), "{busy:?}");
    drop(first);
    let measured = || wire.measure(load).status.success();
    wait::until_within(PATIENCE, "a generator has its turn", measured).unwrap();
    let ended = verifier.stop(Signal::SIGTERM).unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn a_generator_that_dies_in_a_trial_leaves_nothing_behind() {
    let Some(wire) = Wire::new() else { return };
    wire.bed.add();
    let verifier = wire.verifier("239.10.1.1%veth3:6001");
    let rule = || wire.bed.daemon.rule("cam1").unwrap();
    let load = format!("239.1.1.1%veth0:5001 --rate 500 --sizes 64 --verifier {VERIFIER}");
    let generator = wire.generator(&format!("{load} --seconds 600"));
    wait::until("a long trial goes on", || rule().received.packets > 800).unwrap();
    generator.stop(Signal::SIGKILL).unwrap();
    let has_noticed = || verifier.stderr().contains("in the middle of a trial");
    wait::until("the verifier has noticed", has_noticed).unwrap();
    // While it counts, packets go no further than its program: a socket gets them again.
    let mut receiver = wire.bed.chain.sink.command(env!("CARGO_BIN_EXE_mcr"));
    receiver.args(["receive", "239.10.1.1%veth3:6001", "--expect", "100"]);
    let receiver = Process::start(receiver).unwrap();
    let joined = || receiver.stderr().contains("receiving on");
    wait::until("the receiver has joined", joined).unwrap();
    wire.bed.send(100);
    let received = receiver.wait(PATIENCE).unwrap();
    assert!(received.status.success(), "{received:?}");
    // And the next generator has its turn at once.
    let next = wire.measure("239.1.1.1%veth0:5001 --rate 1000 --sizes 64");
    assert!(next.status.success(), "{next:?}");
}

#[test]
fn what_is_wrong_is_named() {
    let Some(wire) = Wire::new() else { return };
    wire.bed.add();
    let _verifier = wire.verifier("239.10.1.1%veth3:6001 239.10.1.2%veth3:6001");
    let at = format!("--verifier {VERIFIER}");
    for (arguments, status, word) in [
        ("239.1.1.1%veth0:5001".to_owned(), 2, "--verifier"),
        (format!("239.1.1.1%veth9:5001 {at} --sizes 64"), 69, "veth9"),
        (format!("239.1.1.1%veth0:5001 {at} --sizes 8"), 2, "32"),
        (format!("239.1.1.1%veth0:5001 {at} --sizes 9000"), 2, "1472"),
        (format!("239.1.1.1%veth0:5001 {at} --rate 0"), 2, "above 0"),
        (
            format!("239.1.1.1%veth0:5001 {at} --seconds 1e9"),
            2,
            "3600",
        ),
        (format!("239.1.1.1%veth0:5001 {at} --groups 2"), 2, "only 1"),
        (format!("239.1.1.1-3%veth0:5001 {at}"), 2, "239.1.1.1-3"),
        (format!("239.1.1.1%veth0:5001-5003 {at}"), 2, "2 places"),
        (
            "239.1.1.1%veth0:5001 --verifier 10.9.0.2:9".to_owned(),
            69,
            "10.9.0.2:9",
        ),
        (
            "239.1.1.1%veth0:5001 --verifier nowhere".to_owned(),
            69,
            "nowhere",
        ),
        (
            format!("239.1.1.1%veth0:5001 {at} --relay-socket /nowhere"),
            4,
            "/nowhere",
        ),
        // One of the verifier's two endpoints is not relayed to.
        (format!("239.1.1.1%veth0:5001 {at}"), 5, "1 of 2 places"),
    ] {
        let refused = wire.generator(&arguments).wait(PATIENCE).unwrap();
        assert_eq!(
            refused.status.code(),
            Some(status),
            "{arguments}: {refused:?}"
        );
        assert!(refused.stderr.contains(word), "{arguments}: {refused:?}");
        assert_eq!(refused.stdout, "", "{arguments}");
    }
    for (arguments, status, word) in [
        ("239.10.1.1%veth9:6001", 69, "veth9"),
        ("239.10.1.1:6001", 2, "interface"),
        ("10.0.0.1@232.1.1.1%veth3:6001", 2, "sources"),
        ("239.10.1.1%veth3:6001 239.10.1.0/30%veth3:6001", 2, "twice"),
        ("239.10.1.1%veth3:6001 --listen 10.9.0.2", 2, "--listen"),
        (
            "239.10.1.1%veth3:6001 --listen 10.9.0.77:1",
            69,
            "10.9.0.77:1",
        ),
    ] {
        let mut command = wire.bed.chain.sink.command(env!("CARGO_BIN_EXE_mcr"));
        command.args(["bench", "wire", "receive"]);
        command.args(arguments.split_whitespace());
        let refused = Process::start(command).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(
            refused.status.code(),
            Some(status),
            "{arguments}: {refused:?}"
        );
        assert!(refused.stderr.contains(word), "{arguments}: {refused:?}");
    }
}
