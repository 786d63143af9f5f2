//! Links: what they lack, and settings of them that keep multicast away.

use lab::daemon::{Daemon, Options};
use lab::socket::Sender;
use lab::{link, wait};

use super::bed::{RULE, bed, diagnose};

#[test]
fn finds_interfaces_that_are_missing_down_or_without_address() {
    let Some(bed) = bed(&RULE.replace("veth2", "veth9")) else {
        return;
    };
    bed.doctor(&[])
        .has("interface", "stops", &["cam1", "veth9", "veth1"]);
    link::down((bed.relay(), "veth1")).unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "stops", &["input", "veth1", "down"]);
    assert_eq!(diagnosis.status, 5);
}

#[test]
fn an_ifb_is_no_interface_to_send_by_or_to_listen_on() {
    let rules = RULE.replace("239.10.1.1%veth2", "239.10.1.1%ifb7");
    let Some(bed) = bed(&rules.replace("veth1", "ifb7")) else {
        return;
    };
    if let Err(why) = bed.relay().ip("link add ifb7 type ifb") {
        eprintln!("skipped: no ifb here: {why:#}");
        return;
    }
    link::up((bed.relay(), "ifb7")).unwrap();
    link::address((bed.relay(), "ifb7"), "10.0.7.1/24").unwrap();
    let diagnosis = bed.doctor(&[]);
    for side in ["input", "output"] {
        diagnosis.has("interface", "stops", &[side, "ifb7 is an ifb"]);
    }
}

#[test]
fn names_the_link_that_takes_no_copies() {
    let Some(bed) = bed(RULE) else { return };
    let relay = bed.relay();
    relay
        .tool("tc", "qdisc add dev veth2 root pfifo limit 0")
        .unwrap();
    let config = Some(RULE.to_owned());
    let options = Options {
        config,
        ..Options::default()
    };
    let daemon = Daemon::start(relay, options).unwrap();
    let source = "10.0.0.1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), source).unwrap();
    let group = "239.1.1.1".parse().unwrap();
    sender.send_numbered(group, 5001, 20, 100).unwrap();
    let full =
        |rule: &api::reply::RuleStats| rule.outputs[0].dropped.get("egress_full") == Some(&20);
    daemon.wait_for("cam1", "none is taken", full).unwrap();
    let words = ["egress_full", "tc -s qdisc show dev veth2"];
    diagnose(&daemon).has("daemon", "harms", &words);
}

#[test]
fn finds_a_destination_without_route_and_lends_an_address_as_the_kernel_does() {
    let rules = RULE.replace(
        "\"239.10.1.1%veth2:6001\"",
        "\"239.10.1.1%veth2:6001\", \"10.99.0.1:7000\"",
    );
    let Some(bed) = bed(&rules) else { return };
    bed.relay().ip("address flush dev veth2").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "stops", &["10.99.0.1", "no route"]);
    // Copies use an address of veth1, as a socket's packet would; without that there is none to use.
    assert!(!format!("{:?}", diagnosis.findings).contains("%veth2"));
    bed.relay().ip("address flush dev veth1").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "stops", &["veth2", "address"]);
}

#[test]
fn finds_an_egress_whose_only_address_may_not_be_sent_from_yet() {
    let rules = RULE
        .replace("239.1.1.1%veth1:5001", "[ff0e::1%veth1]:5001")
        .replace("239.10.1.1%veth2:6001", "[ff0e::2%veth2]:6001");
    let Some(bed) = bed(&rules) else { return };
    let relay = bed.relay();
    bed.doctor(&[]).has_no("interface");
    relay.ip("-6 address flush dev veth2").unwrap();
    // Duplicate address detection that takes a minute: the address stays tentative.
    for (setting, value) in [("accept_dad", "1"), ("dad_transmits", "60")] {
        let key = format!("net/ipv6/conf/veth2/{setting}");
        relay.sysctl(&key, value).unwrap();
    }
    relay.ip("address add fd00:2::9/64 dev veth2").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "stops", &["veth2", "address"]);
}

#[test]
fn finds_an_input_that_is_a_port_of_a_bridge() {
    let Some(bed) = bed(RULE) else { return };
    link::snooping_bridge((bed.relay(), "br0")).unwrap();
    link::bridge_port((bed.relay(), "veth1"), "br0").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("interface", "harms", &["veth1", "br0"]);
    diagnosis.has("listener", "note", &["cam1", "bridge br0", "goes on"]);
    let path = bed.directory.path().join("mcr.toml");
    std::fs::write(path, format!("{RULE}local = \"no\"\n")).unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("listener", "harms", &["cam1", "bridge br0", "local=no"]);
}

#[test]
fn finds_and_mends_a_snooping_bridge_without_querier() {
    let Some(bed) = bed(RULE) else { return };
    link::snooping_bridge((bed.relay(), "br0")).unwrap();
    bed.doctor(&[]).has_no("querier");
    bed.relay()
        .ip("link set br0 type bridge mcast_querier 0")
        .unwrap();
    bed.doctor(&[]).has("querier", "harms", &["br0"]);
    let mended = bed.doctor(&["--fix"]);
    assert_eq!(mended.has("querier", "harms", &["br0"])["fixed"], true);
    bed.doctor(&[]).has_no("querier");
    let shown = bed.relay().ip("-d -j link show br0").unwrap();
    assert!(shown.contains("\"mcast_querier\":1"), "{shown}");
}

#[test]
fn finds_and_mends_a_forced_igmp_version() {
    let rules = RULE.replace("239.1.1.1%", "10.0.0.1@232.1.1.1%");
    let Some(bed) = bed(&rules) else { return };
    bed.relay()
        .sysctl("net/ipv4/conf/veth1/force_igmp_version", "2")
        .unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("igmp-version", "stops", &["cam1", "force_igmp_version"]);
    assert_eq!(diagnosis.status, 5);
    let mended = bed.doctor(&["--fix"]);
    assert_eq!(mended.has("igmp-version", "stops", &[])["fixed"], true);
    assert_eq!(mended.status, 0);
    bed.doctor(&[]).has_no("igmp-version");
}

#[test]
fn finds_a_querier_whose_version_knows_no_sources() {
    let rules = RULE.replace("239.1.1.1%", "10.0.0.1@232.1.1.1%");
    let Some(bed) = bed(&rules) else { return };
    bed.doctor(&[]).has_no("igmp-version");
    for command in [
        "link add br0 type bridge mcast_snooping 1 mcast_igmp_version 2 mcast_querier 1",
        "link set veth0 master br0",
        "link set br0 up",
    ] {
        bed.chain.sender.ip(command).unwrap();
    }
    let versions = || bed.relay().read_proc_net("igmp").unwrap();
    wait::until("IGMPv2 is spoken", || versions().contains("V2")).unwrap();
    let words = [
        "cam1",
        "a querier there speaks IGMPv2",
        "10.0.0.1@232.1.1.1%veth1",
    ];
    bed.doctor(&[]).has("igmp-version", "stops", &words);
}

#[test]
fn a_forced_igmp_version_only_gets_a_note_where_no_source_is_asked_for() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .sysctl("net/ipv4/conf/all/force_igmp_version", "2")
        .unwrap();
    bed.doctor(&[]).has("igmp-version", "note", &["veth1"]);
}

#[test]
fn notes_that_a_reverse_path_filter_does_not_matter() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay()
        .sysctl("net/ipv4/conf/veth1/rp_filter", "1")
        .unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("rpf", "note", &["does not matter", "strict"]);
    assert_eq!(diagnosis.status, 0);
}

#[test]
fn finds_an_mtu_that_is_smaller_at_the_output() {
    let Some(bed) = bed(RULE) else { return };
    bed.relay().ip("link set veth2 mtu 1400").unwrap();
    bed.doctor(&[])
        .has("mtu", "harms", &["cam1", "1500", "1400"]);
}

#[test]
fn finds_and_mends_an_offload_that_corrupts_copies() {
    let forced = format!("{RULE}\npath = \"kernel\"\n");
    let Some(bed) = bed(&forced) else { return };
    link::features((bed.relay(), "veth1"), "rx-gro-list on").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("gro", "stops", &["rx-gro-list", "veth1", "down"]);
    assert_eq!(diagnosis.status, 5);
    let mended = bed.doctor(&["--fix"]);
    assert_eq!(mended.has("gro", "stops", &[])["fixed"], true);
    // The next run judges again what the offload had stopped.
    let after = bed.doctor(&[]);
    after.has_no("gro");
    assert_eq!(after.status, 0);
}

#[test]
fn reports_what_an_offload_costs_rules_that_may_take_either_path() {
    let Some(bed) = bed(RULE) else { return };
    link::features((bed.relay(), "veth1"), "rx-gro-list on").unwrap();
    bed.doctor(&[])
        .has("gro", "harms", &["rx-gro-list", "userspace path"]);
}

#[test]
fn notes_merging_where_outputs_cannot_segment() {
    let Some(bed) = bed(RULE) else { return };
    link::features((bed.relay(), "veth1"), "rx-udp-gro-forwarding on").unwrap();
    link::features((bed.relay(), "veth2"), "tx-udp-segmentation off").unwrap();
    bed.doctor(&[])
        .has("gro", "note", &["rx-udp-gro-forwarding", "veth2"]);
}

/// On a kernel whose packet sockets do not support UDP GSO.
#[test]
fn finds_and_mends_merging_that_the_userspace_path_loses() {
    let rules = format!("{RULE}path = \"userspace\"\n");
    let Some(bed) = bed(&rules) else { return };
    let old = ["--without", "packet_udp_gso"];
    bed.doctor(&old).has_no("gro");
    bed.doctor(&old)
        .has("capability", "note", &["packet_udp_gso", "are lost"]);
    let both = "rx-gro-list on rx-udp-gro-forwarding on";
    link::features((bed.relay(), "veth1"), both).unwrap();
    let remedy = "ethtool -K veth1 rx-gro-list off rx-udp-gro-forwarding off";
    bed.doctor(&old).has("gro", "harms", &["cam1", remedy]);
    let mended = bed.doctor(&[&old[..], &["--fix"]].concat());
    assert_eq!(mended.has("gro", "harms", &["cam1"])["fixed"], true);
    bed.doctor(&old).has_no("gro");
}

#[test]
fn finds_addresses_of_its_own_that_others_have_too() {
    let Some(bed) = bed(RULE) else { return };
    bed.doctor(&[]).has_no("duplicate");
    bed.chain
        .sender
        .ip("address add 10.0.0.2/24 dev veth0")
        .unwrap();
    let words = [
        "10.0.0.2",
        "answers for it",
        "ip address del 10.0.0.2 dev veth1",
    ];
    bed.doctor(&[]).has("duplicate", "harms", &words);
    // The kernel detects a duplicate IPv6 address, and no longer uses it.
    let relay = bed.relay();
    relay.sysctl("net/ipv6/conf/veth2/accept_dad", "1").unwrap();
    relay.ip("address add fd00:1::2/64 dev veth2").unwrap();
    wait::until("the kernel knows", || {
        let addresses = relay.ip("-6 address show dev veth2 dadfailed");
        addresses.is_ok_and(|text| text.contains("fd00:1::2"))
    })
    .unwrap();
    bed.doctor(&[])
        .has("duplicate", "harms", &["fd00:1::2", "veth2"]);
}

#[test]
fn a_name_that_cannot_be_looked_up_has_a_remedy_of_its_own() {
    let rules = RULE.replace("239.10.1.1%veth2:6001", "nosuch.invalid:6001");
    let Some(bed) = bed(&rules) else { return };
    let words = ["nosuch.invalid", "getent ahosts", "write an address"];
    bed.doctor(&[]).has("interface", "stops", &words);
}
