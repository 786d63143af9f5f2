//! `mcr discover`: what arrives is reported stream by stream, with a daemon and without one,
//! whether anybody joined it or not.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lab::daemon::{Daemon, Options};
use lab::frame::FrameSender;
use lab::link;
use lab::namespace::Namespace;
use lab::process::{Finished, Process};
use lab::socket::Sender;
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;
use packet::craft::Craft;
use serde_json::Value;

use super::observe::Screen;

const PATIENCE: Duration = Duration::from_secs(30);

/// A chain, or nothing where the test may not make namespaces.
fn chain() -> Option<Chain> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    Some(Chain::plain().unwrap())
}

/// How many sockets capture everything on an interface.
pub(crate) fn captures(namespace: &Namespace, interface: &str) -> usize {
    let index = link::index((namespace, interface)).unwrap().to_string();
    let sockets = namespace.read_proc_net("packet").unwrap();
    let captures = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3..5) == Some(&["0003", index.as_str()])
    };
    sockets.lines().filter(captures).count()
}

/// Runs `mcr discover`, calls `traffic` once it listens on `veth1`, and interrupts it after that.
fn discover(relay: &Namespace, arguments: &[&str], traffic: impl FnOnce()) -> Finished {
    let mut command = relay.command(env!("CARGO_BIN_EXE_mcr"));
    command
        .args(["discover", "--duration", "60s"])
        .args(arguments);
    let before = captures(relay, "veth1");
    let mut process = Process::start(command).unwrap();
    wait::until("it listens", || captures(relay, "veth1") > before).unwrap();
    traffic();
    process.signal(Signal::SIGINT).unwrap();
    process.wait(PATIENCE).unwrap()
}

fn send(chain: &Chain, arguments: &str) {
    let mut command = chain.sender.command(env!("CARGO_BIN_EXE_mcr"));
    command.arg("send").args(arguments.split_whitespace());
    let sent = lab::process::run(command, PATIENCE).unwrap();
    sent.success().unwrap();
}

fn streams(finished: &Finished) -> Vec<Value> {
    let report: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    assert_eq!(report["not_listed"], 0, "{report}");
    report["streams"].as_array().unwrap().clone()
}

/// The one stream to that group and port.
#[track_caller]
fn stream<'a>(streams: &'a [Value], group: &str, port: u16) -> &'a Value {
    let wanted = |stream: &&Value| stream["group"] == group && stream["port"] == port;
    let mut matching = streams.iter().filter(wanted);
    let first = matching.next();
    assert!(matching.next().is_none(), "{streams:#?}");
    first.unwrap_or_else(|| panic!("no {group} {port} in {streams:#?}"))
}

lab::on_both_paths!(says_of_each_stream_what_it_is_and_who_takes_it);

fn says_of_each_stream_what_it_is_and_who_takes_it(path: &str) {
    let Some(chain) = chain() else { return };
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = "239.10.1.1%veth2:6001";
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &[output])
        .unwrap();
    let socket = daemon.socket().display().to_string();
    let finished = discover(
        &chain.relay,
        &["veth1", "--json", "--socket", &socket],
        || {
            send(
                &chain,
                "239.1.1.1%veth0:5001 --count 100 --size 1000 --framing rtp",
            );
            send(
                &chain,
                "239.1.1.2%veth0:5002 --count 50 --framing ts --ttl 3",
            );
            send(&chain, "239.1.1.3%veth0:5003 --count 50 --framing rtp-ts");
            send(&chain, "[ff0e::1%veth0]:5004 --count 20 --size 100");
            send(&chain, "232.1.1.1%veth0:5005 --count 10 --size 100");
            send(&chain, "10.0.0.2:5001 --count 10 --size 100");
        },
    );
    let streams = streams(&finished);
    let cam1 = stream(&streams, "239.1.1.1", 5001);
    assert_eq!(cam1["source"], "10.0.0.1");
    assert_eq!(
        (&cam1["packets"], &cam1["bytes"]),
        (&100.into(), &100_000.into())
    );
    assert_eq!(
        (&cam1["interface"], &cam1["ttl"]),
        (&"veth1".into(), &16.into())
    );
    assert_eq!(
        (&cam1["content"], &cam1["joined"]),
        (&"rtp".into(), &true.into())
    );
    assert_eq!(cam1["rule"], "cam1");
    let ts = stream(&streams, "239.1.1.2", 5002);
    assert_eq!((&ts["content"], &ts["ttl"]), (&"mpeg-ts".into(), &3.into()));
    assert_eq!((&ts["joined"], &ts["rule"]), (&false.into(), &Value::Null));
    assert_eq!(ts["add"], "mcr add 239.1.1.2%veth1:5002 OUTPUT");
    assert_eq!(
        stream(&streams, "239.1.1.3", 5003)["content"],
        "rtp/mpeg-ts"
    );
    let six = stream(&streams, "ff0e::1", 5004);
    assert_eq!(
        (&six["packets"], &six["content"]),
        (&20.into(), &"other".into())
    );
    assert_eq!(six["add"], "mcr add '[ff0e::1%veth1]:5004' OUTPUT");
    let specific = stream(&streams, "232.1.1.1", 5005);
    assert_eq!(
        specific["add"],
        "mcr add 10.0.0.1@232.1.1.1%veth1:5005 OUTPUT"
    );
    // Unicast is not reported, and the copies that leave do not arrive.
    assert!(
        streams.iter().all(|stream| stream["group"] != "10.0.0.2"),
        "{streams:#?}"
    );
    // The command that it prints adds the rule.
    let add = ts["add"].as_str().unwrap().replace("OUTPUT", output);
    let words: Vec<&str> = add.split_whitespace().skip(1).collect();
    daemon.mcr(&words).unwrap();
}

#[test]
fn recognises_tagged_segmented_and_fragmented_packets() {
    let Some(chain) = chain() else { return };
    let wire = FrameSender::open((&chain.sender, "veth0")).unwrap();
    let source: IpAddr = "10.0.0.1".parse().unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), source).unwrap();
    let finished = discover(&chain.relay, &["veth1", "--json"], || {
        let source: SocketAddr = "10.0.0.1:4000".parse().unwrap();
        let destination: SocketAddr = "239.1.1.1:5001".parse().unwrap();
        let frame = Craft::new(source, destination, vec![0; 100]).frame();
        wire.send(&[&frame[..12], &[0x81, 0x00, 0x00, 7], &frame[12..]].concat())
            .unwrap();
        sender
            .send_segmented("239.1.1.2".parse().unwrap(), 5002, 0, 10, 500)
            .unwrap();
        sender
            .send("239.1.1.3".parse().unwrap(), 5003, &[0; 4000])
            .unwrap();
    });
    // No daemon answers for the rules, which is reported.
    assert!(
        finished.stderr.contains("what rules take is not known"),
        "{finished:?}"
    );
    let streams = streams(&finished);
    let tagged = stream(&streams, "239.1.1.1", 5001);
    assert_eq!(tagged["vlan"], 7);
    let add = tagged["add"].as_str().unwrap();
    assert!(add.contains("type vlan id 7"), "{add}");
    assert!(
        add.ends_with("mcr add 239.1.1.1%veth1.7:5001 OUTPUT"),
        "{add}"
    );
    let counted = |group, port| {
        let stream = stream(&streams, group, port);
        (stream["packets"].clone(), stream["bytes"].clone())
    };
    assert_eq!(counted("239.1.1.2", 5002), (10.into(), 5000.into()));
    assert_eq!(counted("239.1.1.3", 5003), (1.into(), 4000.into()));
}

#[test]
fn asks_for_groups_where_a_switch_filters() {
    if chain().is_none() {
        return;
    }
    let chain = Chain::snooping().unwrap();
    let traffic = || send(&chain, "239.1.1.1%veth0:5001 --count 50 --size 100");
    let filtered = discover(&chain.relay, &["--json"], traffic);
    let of_group = |finished: &Finished| {
        let all = streams(finished).into_iter();
        all.filter(|stream| stream["group"] == "239.1.1.1").count()
    };
    assert_eq!(of_group(&filtered), 0);
    let switch = chain.switch.as_ref().unwrap();
    let joined = discover(&chain.relay, &["--json", "--join", "239.1.1.1"], || {
        link::wait_for_member((switch, "br0"), "239.1.1.1").unwrap();
        traffic();
    });
    let streams = streams(&joined);
    let stream = stream(&streams, "239.1.1.1", 5001);
    // Its own join does not count.
    assert_eq!(
        (&stream["packets"], &stream["joined"]),
        (&50.into(), &false.into())
    );
}

#[test]
fn is_a_live_table_on_a_terminal_and_ends_with_how_to_relay() {
    let Some(chain) = chain() else { return };
    if std::process::Command::new("tmux")
        .arg("-V")
        .output()
        .is_err()
    {
        eprintln!("skipped: tmux is not installed (dist/bootstrap test installs it)");
        return;
    }
    let mcr = env!("CARGO_BIN_EXE_mcr");
    let namespace = chain.relay.name();
    let program = format!("nsenter --net=/run/netns/{namespace} {mcr} discover veth1; cat");
    let screen = Screen::start(&["sh".to_owned(), "-c".to_owned(), program]);
    let mut command = chain.sender.command(mcr);
    command.args([
        "send",
        "239.1.1.1%veth0:5001",
        "--duration",
        "60",
        "--rate",
        "100",
    ]);
    let _stream = Process::start(command).unwrap();
    screen.until("it shows the stream while it listens", |text| {
        text.contains("s left") && text.contains("239.1.1.1")
    });
    screen.until("it says how to relay it", |text| {
        text.contains("to relay what no rule takes")
            && text.contains("mcr add 239.1.1.1%veth1:5001")
    });
}

#[test]
fn says_what_it_cannot_listen_on() {
    let Some(chain) = chain() else { return };
    let run = |program: &str, arguments: &[&str]| {
        let mut command = chain.relay.command(program);
        command.args(arguments);
        lab::process::run(command, PATIENCE).unwrap()
    };
    let mcr = env!("CARGO_BIN_EXE_mcr");
    let missing = run(mcr, &["discover", "eth7"]);
    assert_eq!(missing.status.code(), Some(69));
    assert!(
        missing.stderr.contains("no interface eth7 (have: lo, "),
        "{}",
        missing.stderr
    );
    let refused = run(
        "setpriv",
        &[
            "--bounding-set=-all",
            "--reuid=65534",
            "--clear-groups",
            "--ambient-caps=-all",
            mcr,
            "discover",
            "veth1",
        ],
    );
    assert_eq!(refused.status.code(), Some(77), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("needs CAP_NET_RAW"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        run(mcr, &["discover", "--join", "10.0.0.1"]).status.code(),
        Some(2)
    );
    // Silence is reported, with what to do.
    let silent = run(mcr, &["discover", "veth2", "--duration", "200ms"]);
    let text = silent.success().unwrap();
    assert!(
        text.contains("no multicast arrived on veth2") && text.contains("--join"),
        "{text}"
    );
}
