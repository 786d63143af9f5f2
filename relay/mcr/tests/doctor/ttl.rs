//! TTLs that expire too early.

use std::net::IpAddr;

use lab::daemon::{Daemon, Options};
use lab::namespace::Namespace;
use lab::socket::Sender;

use super::bed::{RULE, bed, diagnose, nft};

#[test]
fn finds_a_ttl_that_ends_at_the_next_router() {
    let rules = RULE.replace("239.10.1.1%veth2:6001", "10.9.9.9:7000");
    let Some(bed) = bed(&rules) else { return };
    bed.relay()
        .ip("route add 10.9.9.0/24 via 10.0.1.2")
        .unwrap();
    bed.doctor(&[])
        .has("ttl", "harms", &["10.9.9.9", "10.0.1.2", "ttl=64"]);
}

#[test]
fn finds_packets_that_arrived_with_a_ttl_too_short_to_go_on() {
    let Some(bed) = bed(RULE) else { return };
    let daemon = Daemon::start(bed.relay(), Options::default()).unwrap();
    let output = "239.10.1.1%veth2:6001,ttl=dec";
    daemon
        .add("cam1", "239.1.1.1%veth1:5001", &[output])
        .unwrap();
    let group: IpAddr = "239.1.1.1".parse().unwrap();
    let sender = Sender::open((&bed.chain.sender, "veth0"), "10.0.0.1".parse().unwrap()).unwrap();
    nft_ttl_one(&bed.chain.sender);
    sender.send_numbered(group, 5001, 10, 100).unwrap();
    let expired =
        |rule: &api::reply::RuleStats| rule.outputs[0].dropped.get("ttl_expired") == Some(&10);
    daemon.wait_for("cam1", "packets expired", expired).unwrap();
    let diagnosis = diagnose(&daemon);
    diagnosis.has("ttl", "harms", &["cam1", "10 packets", "ttl_expired"]);
}

/// Makes every packet leave with a TTL of 1, as senders do by default.
fn nft_ttl_one(namespace: &Namespace) {
    nft(
        namespace,
        "table ip mangle {
            chain output { type filter hook output priority 0; policy accept; ip ttl set 1; }
        }",
    );
}
