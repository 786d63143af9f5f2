//! The life cycle of tunnels: restarts, conflicts of names and ports, and removal.

use api::reply::{RuleStats, State};
use lab::daemon::{Daemon, Options};
use lab::link;
use lab::load::{Load, Plan};
use lab::namespace::Namespace;
use lab::socket::{Receiver, wait_until_free};
use lab::wait;
use nix::sys::signal::Signal;

use super::{Bed, IN, OUT, config};

/// One rule that needs no tunnel and one that does.
const OTHER: &str = "[[rule]]\nname = \"other\"\ninput = \"239.2.2.2%in:6000\"\n\
                     outputs = [\"239.2.2.2%net:6000\"]\n";

fn has_tunnel(namespace: &Namespace) -> bool {
    namespace.ip("link show wan").is_ok()
}

/// The reason of an output that is down.
fn why_down(daemon: &Daemon) -> String {
    let rule = daemon.rule("out").unwrap();
    assert_eq!(rule.state, State::Down, "{rule:?}");
    rule.outputs[0].reason.clone().unwrap()
}

fn wait_until_up(daemon: &Daemon) {
    let is_up = |rule: &RuleStats| rule.state == State::Up;
    daemon.wait_for("out", "it is up", is_up).unwrap();
}

/// The error of a change that is refused.
fn refused(daemon: &Daemon, text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("asked.toml");
    std::fs::write(&file, text).unwrap();
    let applied = daemon.client(&["apply", file.to_str().unwrap()]).unwrap();
    assert_eq!(applied.status.code(), Some(69), "{}", applied.stderr);
    applied.stderr
}

fn near_config(tunnel: &str, rules: &str) -> String {
    config("10.0.0.1", "10.9.9.9", tunnel, rules)
}

/// A daemon at the near end, whatever the state of its rules.
fn near(bed: &Bed, text: &str) -> Daemon {
    let options = Options {
        config: Some(text.to_owned()),
        ..Options::path("auto")
    };
    Daemon::start(&bed.near, options).unwrap()
}

#[test]
fn nothing_is_lost_while_both_daemons_are_killed_and_handed_over() {
    let bed = Bed::new();
    let mut near = near_keeping(&bed.near, &near_config("", OUT));
    let mut far = near_keeping(&bed.far, &config("10.9.9.9", "10.0.0.1", "", IN));
    let index = link::index((&bed.near, "wan")).unwrap();
    let plan = Plan {
        output: Plan::new(1, 1, 1).input,
        ..Plan::new(20, 500, 400)
    };
    let from = (&bed.sender, "veth0");
    let links = [
        from,
        (&bed.near, "net"),
        (&bed.router, "far"),
        (&bed.far, "out"),
    ];
    let load = Load::start(plan, from, (&bed.sink, "veth3"), &links).unwrap();
    for _ in 0..2 {
        for daemon in [&mut near, &mut far] {
            daemon.kill().unwrap();
            daemon.start_again().unwrap();
            daemon.stop(Signal::SIGTERM).unwrap();
            daemon.start_again().unwrap();
        }
    }
    let account = load.finish().unwrap();
    account.check_nothing_lost().unwrap();
    assert_eq!(
        link::index((&bed.near, "wan")).unwrap(),
        index,
        "the same interface"
    );
}

fn near_keeping(namespace: &Namespace, text: &str) -> Daemon {
    let options = Options {
        config: Some(text.to_owned()),
        arguments: vec!["--keep-forwarding".to_owned()],
        ..Options::path("kernel")
    };
    Daemon::start(namespace, options).unwrap()
}

#[test]
fn an_end_takes_the_tunnel_away_and_a_crash_leaves_it() {
    let bed = Bed::new();
    let mut daemon = near(&bed, &near_config("", OUT));
    wait_until_up(&daemon);
    assert!(
        bed.near.ip("address show wan").unwrap().lines().count() <= 2,
        "no address of its own"
    );
    daemon.kill().unwrap();
    assert!(has_tunnel(&bed.near), "killed");
    daemon.start_again().unwrap();
    daemon.stop(Signal::SIGTERM).unwrap();
    assert!(!has_tunnel(&bed.near), "stopped");

    daemon.start_again().unwrap();
    daemon.kill().unwrap();
    let ended = daemon.mcr(&["stop", "--leftovers"]).unwrap();
    assert!(ended.contains("tunnel wan is taken away"), "{ended}");
    assert!(!has_tunnel(&bed.near), "leftovers ended");

    // A daemon that dies while it makes the tunnel leaves it half made.
    let half =
        "link add wan group 1296257536 type vxlan id 1 local 10.0.0.1 remote 10.9.9.9 dstport 4789";
    bed.near.ip(half).unwrap();
    daemon.start_again().unwrap();
    wait_until_up(&daemon);
}

#[test]
fn a_tunnel_follows_its_settings_and_the_network_below() {
    let bed = Bed::new();
    let daemon = near(&bed, &near_config("", OUT));
    wait_until_up(&daemon);
    let index = link::index((&bed.near, "wan")).unwrap();
    daemon
        .apply(&near_config("", &format!("{OUT}{OTHER}")))
        .unwrap();
    assert_eq!(
        link::index((&bed.near, "wan")).unwrap(),
        index,
        "nothing of it changed"
    );
    let exported = daemon.mcr(&["export"]).unwrap();
    assert!(exported.contains("over = \"udp\""), "{exported}");
    daemon.apply(&exported).unwrap();

    let shows = |what: &str| {
        wait::until(what, || {
            bed.near
                .ip("-d link show wan")
                .is_ok_and(|shown| shown.contains(what))
        })
        .unwrap();
    };
    bed.near.ip("link set net mtu 9000").unwrap();
    shows("mtu 8950");
    assert_eq!(
        link::index((&bed.near, "wan")).unwrap(),
        index,
        "its MTU is set in place"
    );
    daemon
        .apply(&near_config("id = 7\nport = 5555", OUT))
        .unwrap();
    shows("vxlan id 7 remote 10.9.9.9 local 10.0.0.1 srcport 0 0 dstport 5555");
    wait_until_up(&daemon);

    bed.near.ip("link delete wan").unwrap();
    shows("vxlan id 7");
    wait_until_up(&daemon);
    bed.near.ip("route del default").unwrap();
    let why = "no route to 10.9.9.9, the other end of tunnel wan";
    let is_reported = |rule: &RuleStats| {
        let reason = rule.outputs[0].reason.as_ref();
        rule.state == State::Down && reason.is_some_and(|reason| reason.contains(why))
    };
    daemon.wait_for("out", why, is_reported).unwrap();
    let doctor = daemon.client(&["doctor"]).unwrap().stdout;
    assert!(
        doctor.contains("tunnel wan") && doctor.contains("no route to 10.9.9.9"),
        "{doctor}"
    );
    bed.near.ip("route add default via 10.0.0.254").unwrap();
    wait_until_up(&daemon);
    let doctor = daemon.client(&["doctor"]).unwrap().stdout;
    assert!(
        doctor.contains("udp dport 5555 ip saddr != 10.9.9.9 drop"),
        "{doctor}"
    );

    daemon.apply("version = 1\n").unwrap();
    assert!(!has_tunnel(&bed.near), "nobody asks for it");
}

#[test]
fn an_interface_that_mcr_did_not_make_is_not_touched() {
    let bed = Bed::new();
    bed.near.ip("link add wan type bridge").unwrap();
    bed.near.ip("link set wan up").unwrap();
    let index = link::index((&bed.near, "wan")).unwrap();
    let daemon = near(&bed, &near_config("", &format!("{OUT}{OTHER}")));
    let reason = "interface wan is there and not MCR's, so it is not made a tunnel; give the tunnel another \
                name, or remove the interface: ip link delete wan";
    assert_eq!(why_down(&daemon), reason);
    assert!(daemon.log().contains(reason), "{}", daemon.log());
    assert_eq!(
        daemon.rule("other").unwrap().state,
        State::Up,
        "the others are not disturbed"
    );
    assert!(daemon.mcr(&["status"]).unwrap().contains(reason));
    assert_eq!(link::index((&bed.near, "wan")).unwrap(), index);
    bed.near.ip("link delete wan").unwrap();
    wait_until_up(&daemon);

    // Nor when a change requests it, which is refused.
    bed.near.ip("link add wan2 type bridge").unwrap();
    let second = near_config("", OUT).replace("wan", "wan2");
    let both = format!(
        "{}[interface.wan2]\nover = \"udp\"\nremote = \"10.8.8.8\"\nid = 2\n",
        near_config("", OUT)
    );
    let error = refused(&daemon, &both);
    assert!(
        error.contains("interface wan2 is there and not MCR's"),
        "{error}"
    );
    assert!(refused(&daemon, &second).contains("wan2"), "a rename");
    assert_eq!(
        daemon.rule("out").unwrap().state,
        State::Up,
        "the rules stay as they were"
    );
    assert!(bed.near.ip("-d link show wan2").unwrap().contains("bridge"));
}

#[test]
fn another_instance_and_another_socket_are_told_by_name() {
    let bed = Bed::new();
    let first = near(&bed, &near_config("", OUT));
    wait_until_up(&first);
    let second = near(&bed, "version = 1\n");
    let error = refused(&second, &near_config("", OTHER));
    let reason = format!(
        "interface wan is a tunnel of instance {:?}",
        first.instance()
    );
    assert!(error.contains(&reason), "{error}");
    let error = refused(
        &second,
        &near_config("", OTHER).replace("interface.wan", "interface.wan2"),
    );
    assert!(
        error.contains("another VXLAN interface of this host has port 4789 and id 1"),
        "{error}"
    );

    let taken = Receiver::bind(&bed.near, "0.0.0.0:5555".parse().unwrap()).unwrap();
    let port = near_config("port = 5555", OTHER).replace("interface.wan", "interface.wan2");
    let error = refused(&second, &port);
    assert!(error.contains("UDP port 5555 is taken by lab-"), "{error}");
    assert!(
        bed.near.ip("link show wan2").is_err(),
        "nothing is left of it"
    );
    drop(taken);
    bed.near.run(|| wait_until_free(5555)).unwrap();
    second.apply(&port).unwrap();
    assert!(bed.near.ip("link show wan2").is_ok());
    drop(second);
    wait_until_up(&first);
}

/// A tunnel that cannot be made at the start is made as soon as possible.
#[test]
fn a_port_that_is_free_again_is_taken() {
    let bed = Bed::new();
    let taken = Receiver::bind(&bed.near, "0.0.0.0:4789".parse().unwrap()).unwrap();
    let daemon = near(&bed, &near_config("", OUT));
    let reason = why_down(&daemon);
    assert!(
        reason.starts_with("cannot make tunnel wan: UDP port 4789 is taken by"),
        "{reason}"
    );
    drop(taken);
    wait_until_up(&daemon);
}

#[test]
fn without_the_privilege_only_the_tunnel_is_missing() {
    let bed = Bed::new();
    let options = Options {
        config: Some(near_config("", &format!("{OUT}{OTHER}"))),
        under: ["setpriv", "--bounding-set=-all,+net_raw"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::path("auto")
    };
    let daemon = match Daemon::start(&bed.near, options) {
        Ok(daemon) => daemon,
        Err(error) => return eprintln!("skipped: no daemon runs so here: {error:#}"),
    };
    assert_eq!(
        why_down(&daemon),
        "cannot make tunnel wan: this process lacks CAP_NET_ADMIN"
    );
    assert_eq!(daemon.rule("other").unwrap().state, State::Up);
}

/// A silent gateway is reported, and inputs stay joined: they need no route out.
#[test]
fn a_gateway_that_does_not_answer_is_told() {
    let bed = Bed::new();
    let back = IN.replace("%out", "%in");
    let daemon = near(&bed, &near_config("", &format!("{OUT}{back}")));
    wait_until_up(&daemon);
    link::down((&bed.router, "near")).unwrap();
    bed.near.ip("neigh flush dev net").unwrap();
    link::up((&bed.router, "near")).unwrap();
    bed.router.ip("link set near arp off").unwrap();
    bed.near.ip("neigh flush dev net").unwrap();
    let is_reported = |rule: &RuleStats| {
        let reason = rule.outputs[0].reason.as_deref().unwrap_or_default();
        reason.contains("10.0.0.254, on the way to 10.9.9.9")
            && reason.contains("does not answer ARP")
    };
    daemon.wait_for("out", "it is told", is_reported).unwrap();
    assert!(daemon.rule("in").unwrap().inputs[0].joined);
    bed.router.ip("link set near arp on").unwrap();
    wait_until_up(&daemon);
}
