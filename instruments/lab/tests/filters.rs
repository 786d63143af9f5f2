//! Which hooks of the packet filter see what is relayed, as docs/trouble.md documents.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use lab::bed::{Bed, PORT, RULE};

const SILENCE: Duration = Duration::from_millis(200);
const PACKETS: u64 = 10;

lab::on_both_paths!(only_a_filter_at_the_egress_sees_copies_and_only_of_the_userspace_path);

fn only_a_filter_at_the_egress_sees_copies_and_only_of_the_userspace_path(path: &str) {
    let bed = Bed::new(path).unwrap();
    let relay = &bed.chain.relay;
    let is_dropped = |hook: &str| path == "userspace" && hook.starts_with("egress");
    let mut sent = 0;
    for (family, hook) in [
        ("netdev", "ingress device veth1"),
        ("inet", "prerouting"),
        ("inet", "input"),
        ("inet", "forward"),
        ("inet", "output"),
        ("inet", "postrouting"),
        ("netdev", "egress device veth2"),
    ] {
        let chain = format!("{{ type filter hook {hook} priority 0; meta l4proto udp drop; }}");
        let rules = tempfile::NamedTempFile::new().unwrap();
        let text = format!("flush ruleset\ntable {family} guard {{ chain drops {chain}\n}}\n");
        std::fs::write(rules.path(), text).unwrap();
        relay
            .tool("nft", &format!("-f {}", rules.path().display()))
            .unwrap();
        let before = bed.daemon.rule(RULE).unwrap();
        sent += PACKETS;
        if is_dropped(hook) {
            let sender = &bed.sender;
            sender
                .send_numbered(bed.group(), PORT, PACKETS, 100)
                .unwrap();
            bed.sink.expect_nothing(SILENCE).unwrap();
        } else {
            bed.relay(PACKETS, 100).unwrap();
        }
        let rule = bed.daemon.settled(RULE, sent).unwrap();
        let dropped = |rule: &api::reply::RuleStats| {
            let drops = rule.outputs[0].dropped.get("egress_full");
            drops.copied().unwrap_or(0)
        };
        let expected = if is_dropped(hook) { PACKETS } else { 0 };
        assert_eq!(dropped(&rule) - dropped(&before), expected, "{hook}");
    }
}
