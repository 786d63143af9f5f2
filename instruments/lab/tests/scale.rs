//! Many rules and many groups at the kernel's default limits.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use api::reply::State;
use lab::accounting;
use lab::capture::wait_for_received;
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::{Receiver, Sender};
use lab::topology::Chain;

const PATIENCE: Duration = Duration::from_secs(10);
/// Packets in flight at once: the kernel's queues hold 1000, including those of other tests.
const IN_FLIGHT: u64 = 100;

/// Rules that a daemon must support, and as many as `make test` has time for.
const FULL: u32 = 100_000;
const SOME: u32 = 3_000;
/// Until a debug build has accepted that many while other tests run.
const LONG: Duration = Duration::from_secs(300);

lab::on_both_paths!(
    one_hundred_and_fifty_rules,
    five_hundred_groups_with_default_sysctls,
    the_last_of_many_rules_relays,
);

#[test]
#[ignore = "long: make many-rules"]
fn the_last_of_a_hundred_thousand_rules_relays() {
    relay_the_last("kernel", FULL);
}

fn the_last_of_many_rules_relays(path: &str) {
    relay_the_last(path, SOME);
}

/// One of very many rules, by its number: each has its own group, and all have one port.
fn rule(number: u32) -> (Ipv4Addr, Ipv4Addr) {
    let nth = |first: Ipv4Addr| Ipv4Addr::from_bits(first.to_bits() + number);
    (
        nth(Ipv4Addr::new(239, 1, 0, 0)),
        nth(Ipv4Addr::new(238, 1, 0, 0)),
    )
}

fn relay_the_last(path: &str, rules: u32) {
    let chain = Chain::plain().unwrap();
    let text = (0..rules).map(|number| {
        let (from, to) = rule(number);
        format!(
            "[[rule]]\nname = \"r{number}\"\ninput = \"{from}%veth1:5001\"\n\
             outputs = [\"{to}%veth2:6001\"]\n"
        )
    });
    let settings =
        format!("version = 1\n[daemon]\nmax_rules = {rules}\nmax_memberships = {rules}\n");
    let config = std::iter::once(settings).chain(text).collect();
    let options = Options {
        config: Some(config),
        ..Options::path(path)
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let last = format!("r{}", rules - 1);
    lab::wait::until_within(LONG, "the last rule is up", || {
        let rule = daemon.rule(&last);
        rule.is_ok_and(|rule| rule.state == State::Up && rule.inputs[0].joined)
    })
    .unwrap();
    let (from, to) = rule(rules - 1);
    let receiver = Receiver::join((&chain.sink, "veth3"), to.into(), 6001).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    sender.send_numbered(from.into(), 5001, 10, 100).unwrap();
    receiver.expect(10, PATIENCE).unwrap();
    let stats = daemon.settled(&last, 10).unwrap();
    assert_eq!(stats.outputs[0].sent.packets, 10);
}

/// How often the threads of a process gave up a core voluntarily: each time, something had woken them.
fn wakes(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_thread = threads.filter_map(|thread| {
        let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    });
    of_thread.sum()
}

/// Ten seconds after the last change nothing is looked at any more but a word of each rule, once a
/// second for everything that is done now and then.
#[test]
fn an_idle_daemon_sleeps() {
    let chain = Chain::plain().unwrap();
    let options = Options {
        config: Some(config(500)),
        ..Options::path("kernel")
    };
    let daemon = Daemon::start(&chain.relay, options).unwrap();
    let (mut before, mut since) = (wakes(daemon.id()), Instant::now());
    lab::wait::until_within(Duration::from_secs(60), "the daemon sleeps", || {
        if since.elapsed() < Duration::from_secs(3) {
            return false;
        }
        let now = wakes(daemon.id());
        let per_second = (now - before) as f64 / since.elapsed().as_secs_f64();
        (before, since) = (now, Instant::now());
        per_second <= 8.0
    })
    .unwrap();
    // And wakes up with the first packet.
    let ((from, from_port), (to, to_port)) = (input(321), output(321));
    let receiver = Receiver::join((&chain.sink, "veth3"), to, to_port).unwrap();
    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    sender.send_numbered(from, from_port, 10, 100).unwrap();
    receiver.expect(10, PATIENCE).unwrap();
    lab::wait::until("its rate is told", || {
        let rule = daemon.rule("s321").unwrap();
        rule.rates.packets_10s > 0.0
    })
    .unwrap();
}

fn input(stream: u16) -> (IpAddr, u16) {
    let group = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(239, 1, 1, 0)) + u32::from(stream));
    (group.into(), 5000 + stream)
}

fn output(stream: u16) -> (IpAddr, u16) {
    let group = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(239, 10, 1, 0)) + u32::from(stream));
    (group.into(), 6000 + stream)
}

fn config(streams: u16) -> String {
    let rules = (1..=streams).map(|stream| {
        let ((from, from_port), (to, to_port)) = (input(stream), output(stream));
        format!(
            "[[rule]]\nname = \"s{stream}\"\ninput = \"{from}%veth1:{from_port}\"\n\
             outputs = [\"{to}%veth2:{to_port}\"]\n"
        )
    });
    std::iter::once("version = 1\n".to_owned())
        .chain(rules)
        .collect()
}

fn one_hundred_and_fifty_rules(path: &str) {
    relay_streams(path, 150, 20);
}

fn five_hundred_groups_with_default_sysctls(path: &str) {
    relay_streams(path, 500, 5);
}

fn relay_streams(path: &str, streams: u16, packets: u64) {
    let chain = Chain::snooping().unwrap();
    assert_eq!(membership_limit(&chain.relay), "20");
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    daemon.apply(&config(streams)).unwrap();
    let stats = daemon.stats().unwrap();
    assert_eq!(stats.rules.len(), usize::from(streams));
    assert!(stats.rules.iter().all(|rule| rule.inputs[0].joined));

    let receivers: Vec<_> = (1..=streams)
        .map(|stream| {
            let (group, port) = output(stream);
            Receiver::join((&chain.sink, "veth3"), group, port).unwrap()
        })
        .collect();
    let switch = chain.switch.as_ref().unwrap();
    lab::wait::until("the bridge knows every group", || {
        let shown = switch.tool("bridge", "mdb show dev br0").unwrap();
        shown.matches("grp 239.1.").count() == usize::from(streams)
    })
    .unwrap();

    let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    let end = (&chain.sink, "veth3");
    let before = link::statistics(end).unwrap().received;
    let mut sent = 0;
    for number in 0..packets {
        for stream in 1..=streams {
            let (group, port) = input(stream);
            let payload = lab::socket::payload(number, 100);
            sender.send(group, port, &payload).unwrap();
            sent += 1;
            if sent % IN_FLIGHT == 0 {
                wait_for_received(end, before, sent).unwrap();
            }
        }
    }
    for receiver in &receivers {
        receiver.expect(packets, PATIENCE).unwrap();
    }
    let stats = daemon.stats().unwrap();
    accounting::check(&stats).unwrap();
    assert!(
        stats
            .rules
            .iter()
            .all(|rule| rule.received.packets == packets)
    );
}

fn membership_limit(namespace: &Namespace) -> String {
    namespace
        .run(|| {
            Ok(std::fs::read_to_string(
                "/proc/sys/net/ipv4/igmp_max_memberships",
            )?)
        })
        .unwrap()
        .trim()
        .to_owned()
}
