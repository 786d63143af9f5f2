//! Others that lose a stream to a rule without the daemon's knowledge: the doctor reports them on both paths.

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::namespace::Namespace;
use lab::socket::Receiver;
use lab::topology::Chain;
use sys::frame_socket::{Capture, FrameSocket};

use super::bed::diagnose;

lab::on_both_paths!(
    reports_a_macvlan_in_another_namespace,
    reports_a_packet_socket_behind_the_hook,
    takes_an_input_above_another_device_for_no_taker,
);

fn relay(path: &str) -> Option<(Chain, Daemon)> {
    if !lab::demo::may_run() {
        eprintln!("skipped: needs root");
        return None;
    }
    let chain = Chain::plain().unwrap();
    let daemon = Daemon::start(&chain.relay, Options::path(path)).unwrap();
    let output = "239.10.1.1%veth2:6001";
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &[output])
        .unwrap();
    Some((chain, daemon))
}

fn reports_a_macvlan_in_another_namespace(path: &str) {
    let Some((chain, daemon)) = relay(path) else {
        return;
    };
    let child = Namespace::new("child").unwrap();
    link::macvlan((&chain.relay, "mv0"), "veth1").unwrap();
    chain
        .relay
        .ip(&format!("link set mv0 netns {}", child.name()))
        .unwrap();
    child.ip("link set mv0 up").unwrap();
    diagnose(&daemon).has_no("taker");
    let group = "239.1.1.1".parse().unwrap();
    let joined = Receiver::join((&child, "mv0"), group, 5001).unwrap();
    let words = [
        "something else takes 01:00:5e:01:01:01",
        "cam1",
        "local = \\\"yes\\\"",
    ];
    diagnose(&daemon).has("taker", "harms", &words);
    drop(joined);
    diagnose(&daemon).has_no("taker");
}

fn reports_a_packet_socket_behind_the_hook(path: &str) {
    let Some((chain, daemon)) = relay(path) else {
        return;
    };
    let index = link::index((&chain.relay, "veth1")).unwrap();
    let open = |capture| {
        let socket = chain.relay.run(|| Ok(FrameSocket::open(index, capture)?));
        socket.unwrap()
    };
    // This socket receives before the hook.
    let early = open(Capture::All);
    diagnose(&daemon).has_no("taker");
    let late = open(Capture::Ipv4BehindIngress);
    let own = format!("(pid {})", std::process::id());
    let words = [&own, "packet socket for IPv4", "local = \\\"yes\\\""];
    diagnose(&daemon).has("taker", "note", &words);
    daemon
        .client(&["change", "cam1", "--set", "local=yes"])
        .unwrap();
    diagnose(&daemon).has_no("taker");
    drop((early, late));
}

/// A macvlan hands what is joined on it on to the device below, and counts as a user of it itself.
fn takes_an_input_above_another_device_for_no_taker(path: &str) {
    let Some((chain, daemon)) = relay(path) else {
        return;
    };
    link::macvlan((&chain.relay, "mv0"), "veth1").unwrap();
    let input = "239.1.1.2%mv0:5001";
    daemon
        .add("cam2", input, &["239.10.1.2%veth2:6001"])
        .unwrap();
    let is_joined = |rule: &api::reply::RuleStats| rule.inputs[0].joined;
    daemon.wait_for("cam2", "it is joined", is_joined).unwrap();
    diagnose(&daemon).has_no("taker");
}
