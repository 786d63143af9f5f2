//! The XDP hook with a daemon: on veth, whose far ends complete checksums, where it is requested.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use lab::accounting;
use lab::bed::{Bed, INPUT, OUTPUT, RULE};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::process::Process;
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;
use traffic::driver::Sink;

fn chain() -> Chain {
    Chain::plain().unwrap().prepared_for("xdp").unwrap()
}

fn bed(chain: Chain) -> Bed {
    let options = Options {
        arguments: ["--xdp", "on"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let bed = Bed::without_rule(chain, options).unwrap();
    add(&bed.daemon);
    bed
}

fn add(daemon: &Daemon) {
    daemon.add(RULE, INPUT, &[OUTPUT]).unwrap();
}

/// The hook of the rule's input, and why it is that one.
fn hook(daemon: &Daemon) -> (String, String) {
    let input = &daemon.rule(RULE).unwrap().inputs[0];
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&input.hook), text(&input.hook_reason))
}

fn is_at_xdp(daemon: &Daemon) -> bool {
    hook(daemon).0 == "xdp"
}

/// Waits until a reason holds these words.
fn wait_for_reason(daemon: &Daemon, words: &str) {
    let is_reported = || hook(daemon).0 == "tc" && hook(daemon).1.contains(words);
    wait::until("the hook is tc", is_reported)
        .unwrap_or_else(|error| panic!("{error}: {:?}", hook(daemon)));
}

fn has_program(chain: &Chain, name: &str) -> bool {
    let shown = chain.relay.ip(&format!("link show dev {name}")).unwrap();
    shown.contains("xdp")
}

/// Packets that were redirected at XDP.
fn taken(daemon: &Daemon) -> u64 {
    let taken = daemon.stats().unwrap().xdp;
    taken.get("veth1").copied().unwrap_or_default()
}

/// Returns whether a load's first stream is received at XDP if the path requires that.
pub(crate) fn is_as_wanted(daemon: &Daemon, path: &str) -> bool {
    let rule = daemon.rule("steady1").unwrap();
    path != "xdp" || rule.inputs[0].hook.as_deref() == Some("xdp")
}

fn assert_counted(daemon: &Daemon, packets: u64) {
    let rule = daemon.settled(RULE, packets).unwrap();
    assert_eq!(rule.outputs[0].sent.packets, packets);
    accounting::check(&daemon.stats().unwrap()).unwrap();
}

#[test]
fn packets_are_taken_at_xdp_whoever_dies_and_counted_once() {
    let mut bed = bed(chain());
    assert_eq!(hook(&bed.daemon), ("xdp".to_owned(), String::new()));
    bed.relay(50, 100).unwrap();
    assert_counted(&bed.daemon, 50);
    assert_eq!(taken(&bed.daemon), 50);
    for round in 1..4 {
        bed.daemon.kill().unwrap();
        bed.relay(50, 100).unwrap();
        bed.daemon.start_again().unwrap();
        assert!(is_at_xdp(&bed.daemon), "{:?}", hook(&bed.daemon));
        bed.relay(50, 100).unwrap();
        assert_counted(&bed.daemon, 50 + round * 100);
        assert_eq!(taken(&bed.daemon), 50);
    }
    assert!(has_program(&bed.chain, "veth1"));
    bed.daemon.stop(Signal::SIGTERM).unwrap();
    assert!(!has_program(&bed.chain, "veth1"));
}

#[test]
fn an_output_that_takes_nothing_from_xdp_any_more_is_served_at_tc() {
    let bed = bed(chain());
    bed.relay(50, 100).unwrap();
    let far = (&bed.chain.sink, "veth3");
    link::features(far, "gro off").unwrap();
    wait_for_reason(&bed.daemon, "veth2 takes nothing that XDP hands over");
    bed.relay(50, 100).unwrap();
    assert_counted(&bed.daemon, 100);
    assert_eq!(taken(&bed.daemon), 50);
    link::features(far, "gro on").unwrap();
    wait::until("XDP serves again", || is_at_xdp(&bed.daemon)).unwrap();
    bed.relay(50, 100).unwrap();
    assert_counted(&bed.daemon, 150);
    assert_eq!(taken(&bed.daemon), 100);
}

#[test]
fn rules_that_xdp_cannot_serve_stay_at_tc_and_say_why() {
    let bed = bed(chain());
    let daemon = &bed.daemon;
    daemon
        .mcr(&["change", RULE, "--add-output", "239.10.1.2%veth2:6002"])
        .unwrap();
    wait_for_reason(daemon, "2 outputs");
    let chain = chain();
    link::features((&chain.relay, "veth1"), "rxvlan on").unwrap();
    let bed = self::bed(chain);
    wait_for_reason(&bed.daemon, "ethtool -K veth1 rxvlan off");
    bed.relay(50, 100).unwrap();
    assert_counted(&bed.daemon, 50);
    // Corrected while rules forward, it takes effect at the next start.
    link::features((&bed.chain.relay, "veth1"), "rxvlan off").unwrap();
    wait_for_reason(&bed.daemon, "at the next start");
}

#[test]
fn an_input_with_a_tcx_program_in_front_stays_at_tc_and_says_why() {
    let chain = chain();
    let index = link::index((&chain.relay, "veth1")).unwrap();
    let other = chain.relay.run(|| Ok(Sink::open(index, false)?)).unwrap();
    let bed = bed(chain);
    wait_for_reason(
        &bed.daemon,
        "another tcx program has to see packets of veth1 first",
    );
    drop(other);
    wait_for_reason(&bed.daemon, "at the next start");
}

#[test]
fn devices_without_an_ethernet_header_stay_at_tc_and_say_why() {
    let bed = bed(chain());
    let (relay, daemon) = (&bed.chain.relay, &bed.daemon);
    let mut command = relay.command("socat");
    command.args([
        "-u",
        "TUN:10.0.7.1/24,up,iff-no-pi,tun-name=tun0",
        "OPEN:/dev/null",
    ]);
    let holder = Process::start(command).unwrap();
    let is_up = || {
        let shown = relay.ip("link show dev tun0 up");
        shown.is_ok_and(|text| text.contains("LOWER_UP"))
    };
    wait::until("the tun device is there", is_up)
        .unwrap_or_else(|error| panic!("{error:#}: {}", holder.stderr()));
    daemon.mcr(&["remove", RULE]).unwrap();
    for (input, output, words) in [
        (
            "239.1.1.1%tun0:5001",
            OUTPUT,
            "tun0 brings packets without an Ethernet header",
        ),
        (
            INPUT,
            "239.10.1.1%tun0:6001",
            "tun0 takes packets without an Ethernet header",
        ),
    ] {
        daemon.add(RULE, input, &[output]).unwrap();
        wait_for_reason(daemon, words);
        assert_eq!(daemon.rule(RULE).unwrap().inputs[0].xdp_asked, Some(true));
        daemon.mcr(&["remove", RULE]).unwrap();
    }
}

/// A device that was moved away is back before the daemon notices.
#[test]
fn an_output_that_was_in_another_namespace_is_served_at_xdp_again() {
    let mut bed = bed(chain());
    bed.relay(50, 100).unwrap();
    bed.daemon.signal(Signal::SIGSTOP).unwrap();
    for (from, to) in [
        (&bed.chain.relay, &bed.chain.sink),
        (&bed.chain.sink, &bed.chain.relay),
    ] {
        from.ip(&format!("link set veth2 netns {}", to.name()))
            .unwrap();
    }
    let end = (&bed.chain.relay, "veth2");
    link::up(end).unwrap();
    link::address(end, "10.0.1.1/24").unwrap();
    bed.daemon.signal(Signal::SIGCONT).unwrap();
    for round in 2.. {
        bed.relay(50, 100).unwrap();
        assert_counted(&bed.daemon, 50 * round);
        if taken(&bed.daemon) > 50 {
            break;
        }
        assert!(round < 20, "{:?}", hook(&bed.daemon));
    }
    assert!(is_at_xdp(&bed.daemon), "{:?}", hook(&bed.daemon));
}

#[test]
fn a_tap_device_stays_at_tc_for_its_driver_takes_some_packets_past_xdp() {
    let bed = bed(chain());
    let tap = "tuntap add tap0 mode tap multi_queue";
    bed.chain.relay.ip(tap).unwrap();
    link::features((&bed.chain.relay, "tap0"), "rxvlan off").ok();
    link::up((&bed.chain.relay, "tap0")).unwrap();
    bed.daemon.mcr(&["remove", RULE]).unwrap();
    let input = "239.1.1.1%tap0:5001";
    bed.daemon.add(RULE, input, &[OUTPUT]).unwrap();
    wait_for_reason(&bed.daemon, "tap0 is a tap device");
}

#[test]
fn another_program_at_xdp_stays_and_tc_serves() {
    let first = bed(chain());
    let options = Options {
        arguments: ["--xdp", "on"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let second = Daemon::start(&first.chain.relay, options).unwrap();
    let input = "239.1.7.7%veth1:5007";
    second.add(RULE, input, &["239.10.7.7%veth2:6007"]).unwrap();
    wait_for_reason(&second, "another XDP program is there");
    assert!(is_at_xdp(&first.daemon));
    first.relay(50, 100).unwrap();
    assert_counted(&first.daemon, 50);
    assert_eq!(taken(&first.daemon), 50);
}

/// The number of captures that are bound to an interface of the relay.
fn captures(chain: &Chain, name: &str) -> usize {
    let sockets = chain.relay.read_proc_net("packet").unwrap();
    let index = link::index((&chain.relay, name)).unwrap().to_string();
    let of_all_protocols = ["0003", index.as_str()];
    let bound = sockets.lines().filter(|line| {
        let protocol_and_interface = line.split_whitespace().skip(3).take(2);
        protocol_and_interface.eq(of_all_protocols)
    });
    bound.count()
}

/// Starts a capture in the relay's namespace and waits until it listens and its interface is served at tc.
fn capture(bed: &Bed, arguments: &[&str], name: &str) -> Process {
    let before = captures(&bed.chain, name);
    let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
    command
        .args(arguments)
        .arg("--socket")
        .arg(bed.daemon.socket());
    let capture = Process::start(command).unwrap();
    wait_for_reason(&bed.daemon, &format!("mcr captures on {name}"));
    wait::until("the capture listens", || {
        captures(&bed.chain, name) > before
    })
    .unwrap();
    capture
}

#[test]
fn captures_see_what_xdp_would_take_and_hand_over() {
    let bed = bed(chain());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tap.pcapng");
    let file = path.to_str().unwrap();
    let commands: [(&[&str], &str); 4] = [
        (&["tap", RULE, "--write", file, "--count", "100"], "veth1"),
        (
            &[
                "tap", RULE, "--output", "1", "--write", file, "--count", "50",
            ],
            "veth2",
        ),
        (
            &["discover", "veth1", "--duration", "20", "--json"],
            "veth1",
        ),
        (
            &["discover", "veth2", "--duration", "20", "--json"],
            "veth2",
        ),
    ];
    for (round, (arguments, name)) in (0..).zip(commands) {
        wait::until("XDP serves", || is_at_xdp(&bed.daemon)).unwrap();
        bed.relay(50, 100).unwrap();
        let capture = capture(&bed, arguments, name);
        if arguments[0] == "tap" {
            wait::until("the capture begins", || {
                std::fs::metadata(file).is_ok_and(|file| file.len() > 0)
            })
            .unwrap();
        }
        bed.relay(50, 100).unwrap();
        let finished = match arguments[0] {
            "tap" => capture.wait(wait::PATIENCE).unwrap(),
            _ => capture.stop(Signal::SIGINT).unwrap(),
        };
        assert!(finished.status.success(), "{finished:?}");
        assert_eq!(
            finished.stdout.contains("239.1."),
            arguments[..2] == ["discover", "veth1"],
            "{finished:?}"
        );
        assert!(!finished.stderr.contains("XDP"), "{finished:?}");
        std::fs::remove_file(file).ok();
        assert_eq!(taken(&bed.daemon), 50 * (round + 1));
    }
    wait::until("XDP serves again", || is_at_xdp(&bed.daemon)).unwrap();
    assert_counted(&bed.daemon, 400);
    // Likewise by a process of the daemon, for a request to the API.
    let socket = bed.daemon.socket();
    let path = "/v1/discover?interfaces=veth1&seconds=15";
    let request = std::thread::spawn(move || lab::control::read(&socket, path));
    wait_for_reason(&bed.daemon, "mcr captures on veth1");
    let listens = || captures(&bed.chain, "veth1") > 0;
    wait::until("it listens", listens).unwrap();
    bed.relay(50, 100).unwrap();
    let reply = request.join().unwrap().unwrap();
    assert!(reply.contains("\"packets\":50,"), "{reply}");
    wait::until("XDP serves again", || is_at_xdp(&bed.daemon)).unwrap();
}

#[test]
fn the_doctor_knows_the_relays_own_program_at_xdp_and_says_what_keeps_packets_from_it() {
    let bed = bed(chain());
    let doctor = || {
        let finished = bed.daemon.client(&["doctor", "--listen", "0"]).unwrap();
        assert!(!finished.stdout.is_empty(), "{finished:?}");
        // Lines are wrapped to fit.
        finished
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(is_at_xdp(&bed.daemon));
    let findings = doctor();
    assert!(
        !findings.contains("XDP program") && !findings.contains("not at XDP"),
        "{findings}"
    );
    link::features((&bed.chain.sink, "veth3"), "gro off").unwrap();
    wait_for_reason(&bed.daemon, "the far end has GRO off");
    let findings = doctor();
    assert!(
        findings.contains("not at XDP: veth2 takes nothing"),
        "{findings}"
    );
}
