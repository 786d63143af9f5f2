//! Local delivery: who on the relay's own host still hears a relayed stream.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::time::Duration;

use lab::bed::{Bed, INPUT, OUTPUT, PORT, RULE};
use lab::daemon::Options;
use lab::link;
use lab::namespace::Namespace;
use lab::process::Process;
use lab::socket::Receiver;
use lab::topology::Chain;
use lab::wait;

const PATIENCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(200);

lab::on_both_paths!(
    a_socket_of_the_host_gets_its_copy_also_when_it_binds_later,
    a_rule_that_says_no_keeps_the_stream_from_the_host,
    a_bridge_still_gets_what_a_rule_takes_from_its_port,
    the_kernels_multicast_routing_still_gets_what_a_rule_takes,
    the_kernels_multicast_routing_gets_the_first_packet,
    a_slow_output_does_not_hold_who_sends_on_this_host,
    a_link_is_known_by_its_further_names,
);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn a_socket_of_the_host_gets_its_copy_also_when_it_binds_later(path: &str) {
    let bed = Bed::new(path).unwrap();
    bed.relay(10, 100).unwrap();

    let own = Receiver::join((&bed.chain.relay, "veth1"), bed.group(), PORT).unwrap();
    let mut sent = 10;
    // "From then on" leaves the relay a moment to see that the socket is there.
    wait::until("the host's socket hears the stream", || {
        bed.sender.send(bed.group(), PORT, b"probe").unwrap();
        sent += 1;
        own.receive(Duration::from_millis(20)).unwrap().is_some()
    })
    .unwrap();
    while own.receive(Duration::from_millis(50)).unwrap().is_some() {}
    let probes = bed.sink.collect(sent as usize - 10, PATIENCE).unwrap();
    assert_eq!(probes.len() as u64, sent - 10);

    bed.relay(20, 100).unwrap();
    let sources = own.expect(20, PATIENCE).unwrap();
    assert!(
        sources.iter().all(|source| source.ip() == ip("10.0.0.1")),
        "the host's own copy is the packet as it came"
    );
    bed.daemon.settled(RULE, sent + 20).unwrap();
}

fn a_rule_that_says_no_keeps_the_stream_from_the_host(path: &str) {
    let bed = Bed::without_rule(Chain::plain().unwrap(), Options::path(path)).unwrap();
    let own = Receiver::join((&bed.chain.relay, "veth1"), bed.group(), PORT).unwrap();
    bed.daemon
        .mcr(&["add", INPUT, OUTPUT, "--name", RULE, "--local", "no"])
        .unwrap();
    bed.relay(10, 100).unwrap();
    bed.daemon.settled(RULE, 10).unwrap();
    if path == "kernel" {
        own.expect_nothing(SILENCE).unwrap();
    }
}

/// A link from the relay to another namespace, in which a receiver has joined the input's group.
fn member(bed: &Bed) -> (Namespace, Receiver) {
    let there = Namespace::new("member").unwrap();
    link::veth((&bed.chain.relay, "member0"), (&there, "member1")).unwrap();
    link::address((&bed.chain.relay, "member0"), "10.0.9.1/24").unwrap();
    link::address((&there, "member1"), "10.0.9.2/24").unwrap();
    let receiver = Receiver::join((&there, "member1"), bed.group(), PORT).unwrap();
    (there, receiver)
}

/// Both receive what is sent, and `mcr show` explains it.
fn both_hear(bed: &Bed, member: &Receiver, taker: &str) {
    bed.daemon
        .wait_for(RULE, "the input is shared", |rule| {
            let shared = rule.inputs[0].shared_with.as_deref();
            shared.is_some_and(|shared| shared.contains(taker))
        })
        .unwrap();
    bed.relay(20, 100).unwrap();
    member.expect(20, PATIENCE).unwrap();
    bed.daemon.settled(RULE, 20).unwrap();
    let shown = bed.daemon.mcr(&["show", RULE]).unwrap();
    let note = format!("goes on to {taker} as well");
    assert!(shown.contains(&note), "{shown}");
}

fn a_bridge_still_gets_what_a_rule_takes_from_its_port(path: &str) {
    let bed = Bed::new(path).unwrap();
    let (_there, member) = member(&bed);
    let relay = &bed.chain.relay;
    relay
        .ip("link add br9 type bridge mcast_snooping 0")
        .unwrap();
    link::up((relay, "br9")).unwrap();
    for port in ["veth1", "member0"] {
        relay.ip(&format!("link set {port} master br9")).unwrap();
    }
    both_hear(&bed, &member, "bridge br9");
    relay.ip("link set veth1 nomaster").unwrap();
    bed.daemon
        .wait_for(RULE, "the input is its own again", |rule| {
            rule.inputs[0].shared_with.is_none()
        })
        .unwrap();
}

/// smcrouted with one route from veth1 to `member0`.
fn smcroute(bed: &Bed, source: &str) -> Option<(tempfile::TempDir, Process)> {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let config = format!(
        "phyint veth1 enable\nphyint member0 enable\n\
         mroute from veth1 {source} group 239.1.1.1 to member0\n"
    );
    std::fs::write(file("smcroute.conf"), config).unwrap();
    let mut command = bed.chain.relay.command("smcrouted");
    command.args(["-n", "-N", "-f"]).arg(file("smcroute.conf"));
    command.arg("-P").arg(file("pid"));
    command.arg("-u").arg(file("socket"));
    let Ok(routing) = Process::start(command) else {
        println!("skipped: no smcrouted to route multicast with");
        return None;
    };
    Some((directory, routing))
}

const ROUTING: &str = "the kernel's multicast routing";

fn the_kernels_multicast_routing_still_gets_what_a_rule_takes(path: &str) {
    let bed = Bed::new(path).unwrap();
    let (_there, member) = member(&bed);
    if let Some(_routing) = smcroute(&bed, "source 10.0.0.1") {
        both_hear(&bed, &member, ROUTING);
    }
}

/// A route for any sender is made when the first packet is there, and the rule was there before.
fn the_kernels_multicast_routing_gets_the_first_packet(path: &str) {
    let bed = Bed::new(path).unwrap();
    bed.relay(10, 100).unwrap();
    let (_there, member) = member(&bed);
    let Some(_routing) = smcroute(&bed, "") else {
        return;
    };
    let is_shared = |rule: &api::reply::RuleStats| {
        let shared = rule.inputs[0].shared_with.as_deref();
        shared.is_some_and(|shared| shared.contains(ROUTING))
    };
    bed.daemon
        .wait_for(RULE, "the input is shared", is_shared)
        .unwrap();
    let (group, mut sent) = (bed.group(), 10);
    wait::until("the route is there", || {
        bed.sender.send(group, PORT, b"probe").unwrap();
        sent += 1;
        let received = member.receive(Duration::from_millis(50)).unwrap();
        received.is_some()
    })
    .unwrap();
    while member.receive(Duration::from_millis(50)).unwrap().is_some() {}
    assert!(!bed.chain.relay.ip("mroute show").unwrap().is_empty());
    bed.sender.send_numbered(group, PORT, 20, 100).unwrap();
    member.expect(20, PATIENCE).unwrap();
    bed.daemon.settled(RULE, sent + 20).unwrap();
}

/// A sender in a container may wait for its own queue, never for an output's.
fn a_slow_output_does_not_hold_who_sends_on_this_host(path: &str) {
    let bed = Bed::without_rule(Chain::plain().unwrap(), Options::path(path)).unwrap();
    let there = Namespace::new("slow").unwrap();
    link::veth((&bed.chain.relay, "slow0"), (&there, "slow1")).unwrap();
    link::address((&bed.chain.relay, "slow0"), "10.0.9.1/24").unwrap();
    link::address((&there, "slow1"), "10.0.9.2/24").unwrap();
    let queue = "qdisc add dev slow0 root tbf rate 400kbit burst 16kb limit 2mb";
    bed.chain.relay.tool("tc", queue).unwrap();
    // The slow one last: that one the packet itself would leave by.
    let outputs = [OUTPUT, "239.10.1.1%slow0:6001"];
    bed.daemon.add(RULE, INPUT, &outputs).unwrap();
    let began = std::time::Instant::now();
    bed.sender
        .send_numbered(bed.group(), PORT, 500, 1_000)
        .unwrap();
    let took = began.elapsed();
    assert!(
        wait::is_within(took, Duration::from_secs(3)),
        "it had to wait: {took:?}"
    );
    bed.sink.expect(500, PATIENCE).unwrap();
    bed.daemon.settled(RULE, 500).unwrap();
}

/// What a link is also called is a name of it, for inputs and outputs.
fn a_link_is_known_by_its_further_names(path: &str) {
    let bed = Bed::without_rule(Chain::plain().unwrap(), Options::path(path)).unwrap();
    let relay = &bed.chain.relay;
    for (link, name) in [("veth1", "enp9s0f1"), ("veth2", "enp9s0f2")] {
        let add = format!("link property add dev {link} altname {name}");
        relay.ip(&add).unwrap();
    }
    let (input, output) = (
        INPUT.replace("veth1", "enp9s0f1"),
        OUTPUT.replace("veth2", "enp9s0f2"),
    );
    bed.daemon.add(RULE, &input, &[&output]).unwrap();
    bed.daemon
        .wait_for(RULE, "it listens", |rule| rule.inputs[0].joined)
        .unwrap();
    bed.relay(10, 100).unwrap();
    let unicast = "10.0.1.2%enp9s0f2:6002";
    bed.daemon
        .add("unicast", "239.1.1.2%enp9s0f1:5002", &[unicast])
        .unwrap();
    bed.daemon
        .wait_for("unicast", "it is up", |rule| {
            rule.state == api::reply::State::Up
        })
        .unwrap();
    bed.daemon.settled(RULE, 10).unwrap();
}
