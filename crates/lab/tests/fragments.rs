//! Fragments: relayed when they come, made where a rule allows it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use lab::bed::{Bed, INPUT, PORT, RULE};
use lab::daemon::Options;
use lab::link;
use lab::socket::{Sender, udp_counters};
use lab::topology::Chain;

lab::on_both_paths!(a_datagram_in_fragments_is_whole_at_the_sink);

fn a_datagram_in_fragments_is_whole_at_the_sink(path: &str) {
    let bed = Bed::new(path).unwrap();
    bed.relay(20, 4000).unwrap();
    assert_eq!(udp_counters(&bed.chain.sink).unwrap().bad_checksums, 0);
    let stats = bed.daemon.stats().unwrap();
    lab::accounting::check(&stats).unwrap();
}

#[test]
fn a_rule_that_allows_it_fragments_for_a_smaller_mtu() {
    let chain = Chain::plain().unwrap();
    for end in [(&chain.relay, "veth2"), (&chain.sink, "veth3")] {
        end.0.ip(&format!("link set {} mtu 1000", end.1)).unwrap();
    }
    let mut bed = Bed::without_rule(chain, Options::path("auto")).unwrap();
    let output = ["239.10.1.1%veth2:6001,fragment=yes"];
    bed.daemon.add(RULE, INPUT, &output).unwrap();
    assert_eq!(bed.daemon.rule(RULE).unwrap().path, "userspace");
    // Sockets opened before this sysctl set DF, those after it leave it clear.
    let sender = &bed.chain.sender;
    sender.sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    let source = "10.0.0.1".parse().unwrap();
    let plain = Sender::open((sender, "veth0"), source).unwrap();
    let careful = std::mem::replace(&mut bed.sender, plain);
    bed.relay(20, 1400).unwrap();
    let smaller = link::statistics((&bed.chain.sink, "veth3")).unwrap();
    assert!(smaller.received >= 40, "{smaller:?}");
    bed.daemon.settled(RULE, 20).unwrap();

    careful.send_numbered(bed.group(), PORT, 5, 1400).unwrap();
    let rule = bed.daemon.settled(RULE, 25).unwrap();
    assert_eq!(rule.outputs[0].dropped["too_big"], 5);
}
