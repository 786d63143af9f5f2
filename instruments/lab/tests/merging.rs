//! GRO of interfaces without a setting: enabled before packets are relayed where that is safe and pays, and
//! restored at the end.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use lab::daemon::{Daemon, Options};
use lab::link;
use lab::topology::Chain;
use lab::wait;
use nix::sys::signal::Signal;

const RULE: &str = "version = 1\n[[rule]]\nname = \"a\"\ninput = \"239.1.1.1%eth0:5001\"\n\
                    outputs = [\"239.10.1.1%veth2:6001\"]\n";

/// Shows the daemon the sysfs of its own network namespace, as in a container, and the existing bpffs.
const OWN_SYSFS: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-ec",
    "mount --bind /sys/fs/bpf /mnt; mount -t sysfs sysfs /sys; mount --bind /mnt /sys/fs/bpf; \
     exec \"$@\"",
    "sh",
];

/// A relay whose input `eth0` supports GRO and whose output segments. A tap replaces the card: MCR does not
/// change a veth.
fn chain() -> Chain {
    let chain = Chain::plain().unwrap();
    let relay = &chain.relay;
    relay.ip("tuntap add eth0 mode tap").unwrap();
    link::up((relay, "eth0")).unwrap();
    link::address((relay, "eth0"), "10.0.5.1/24").unwrap();
    link::features((relay, "veth2"), "tx on tx-udp-segmentation on").unwrap();
    relay.sysctl("net/ipv4/conf/eth0/forwarding", "0").unwrap();
    chain
}

fn options(config: &str, arguments: &[&str]) -> Options {
    Options {
        config: Some(config.to_owned()),
        arguments: arguments.iter().map(ToString::to_string).collect(),
        under: OWN_SYSFS.map(str::to_owned).to_vec(),
        ..Options::default()
    }
}

fn merges(chain: &Chain) -> bool {
    let features = chain.relay.tool("ethtool", "-k eth0").unwrap();
    features.contains("rx-udp-gro-forwarding: on")
}

fn merging(daemon: &Daemon) -> String {
    let rules = daemon.stats().unwrap().rules;
    rules[0].inputs[0].merging.clone().unwrap_or_default()
}

#[test]
fn an_interface_that_nobody_named_merges_and_is_put_back() {
    let chain = chain();
    let mut daemon = Daemon::start(&chain.relay, options(RULE, &[])).unwrap();
    assert!(merges(&chain), "{}", merging(&daemon));
    let reason = merging(&daemon);
    assert!(
        reason.starts_with("on: all that is relayed from here gains"),
        "{reason}"
    );
    assert!(
        reason.contains("times") && reason.contains("in [daemon]"),
        "{reason}"
    );
    // After a crash it still knows that it made the change.
    daemon.kill().unwrap();
    daemon.start_again().unwrap();
    assert!(merges(&chain));
    daemon.stop(Signal::SIGTERM).unwrap();
    assert!(!merges(&chain));
}

#[test]
fn nothing_is_merged_while_others_have_to_do_with_the_interface() {
    let chain = chain();
    let relay = &chain.relay;
    let daemon = Daemon::start(relay, options(RULE, &[])).unwrap();
    let sysctl = |value| {
        relay
            .sysctl("net/ipv4/conf/eth0/forwarding", value)
            .unwrap()
    };
    let timeout = |value| {
        let file = "class/net/eth0/gro_flush_timeout";
        relay.write_sysfs(file, value).unwrap();
    };
    let ip = |arguments: &str| drop(relay.ip(arguments).unwrap());
    let tc = |arguments: &str| drop(relay.tool("tc", arguments).unwrap());
    type Step<'a> = Box<dyn Fn() + 'a>;
    let cases: [(&str, Step<'_>, Step<'_>); 4] = [
        ("routes", Box::new(|| sysctl("1")), Box::new(|| sysctl("0"))),
        (
            "wait",
            Box::new(|| timeout("50000")),
            Box::new(|| timeout("0")),
        ),
        (
            "macvlan m0",
            Box::new(|| ip("link add m0 link eth0 type macvlan")),
            Box::new(|| ip("link del m0")),
        ),
        (
            "clsact",
            Box::new(|| tc("qdisc add dev eth0 clsact")),
            Box::new(|| tc("qdisc del dev eth0 clsact")),
        ),
    ];
    for (word, disturb, restore) in cases {
        wait::until("it merges", || merges(&chain)).unwrap();
        disturb();
        let is_off = || merging(&daemon).starts_with("off: ") && merging(&daemon).contains(word);
        wait::until(&format!("it says {word:?}"), is_off).unwrap();
        assert!(!merges(&chain), "{word}");
        assert!(merging(&daemon).contains("[interface.eth0]"), "{word}");
        restore();
    }
    wait::until("it merges", || merges(&chain)).unwrap();
}

#[test]
fn one_switch_leaves_interfaces_as_they_are() {
    let chain = chain();
    let in_file = RULE.replace("[[rule]]", "[daemon]\ngro = \"off\"\n[[rule]]");
    let of_interface = format!("{RULE}[interface.eth0]\ngro = \"off\"\n");
    for (config, arguments) in [
        (in_file.as_str(), &[][..]),
        (RULE, &["--gro", "off"]),
        (&of_interface, &[]),
    ] {
        let daemon = Daemon::start(&chain.relay, options(config, arguments)).unwrap();
        assert!(!merges(&chain), "{arguments:?} {config}");
        assert_eq!(merging(&daemon), "", "{arguments:?} {config}");
    }
    // A rule that judges single packets receives single packets.
    let limited = RULE.replace("outputs", "limit = \"1Gbit\"\noutputs");
    let _daemon = Daemon::start(&chain.relay, options(&limited, &[])).unwrap();
    assert!(!merges(&chain));
}

#[test]
fn what_cannot_be_known_is_left_alone_and_told() {
    let chain = chain();
    let elsewhere = Options {
        config: Some(RULE.to_owned()),
        ..Options::default()
    };
    let daemon = Daemon::start(&chain.relay, elsewhere).unwrap();
    assert!(!merges(&chain));
    let reason = merging(&daemon);
    assert!(reason.starts_with("off: /sys does not show"), "{reason}");
}

#[test]
fn a_veth_is_left_alone_and_told() {
    let chain = chain();
    let relay = &chain.relay;
    link::features((relay, "veth1"), "gro on").unwrap();
    let rule = RULE.replace("eth0", "veth1");
    let daemon = Daemon::start(relay, options(&rule, &[])).unwrap();
    let features = relay.tool("ethtool", "-k veth1").unwrap();
    assert!(features.contains("rx-udp-gro-forwarding: off"));
    assert!(
        merging(&daemon).contains("it is a veth"),
        "{}",
        merging(&daemon)
    );
}
