//! Gates of shares, and packets that wait for their core while a gate opens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::{Capacity, Dataplane, Input};
use packet::craft::Craft;
use packet::verdict::DropReason;
use sys::clock::realtime_ns;

use crate::bed::{Bed, route, table};

/// What arrived while the gate was shut is another relay's, however late its core takes it.
#[test]
fn what_waited_for_its_core_since_before_the_opening_does_not_pass() {
    let groups = |last| {
        [
            IpAddr::from(Ipv4Addr::new(239, 1, 1, last)),
            IpAddr::from(Ipv6Addr::new(0xff3e, 0, 0, 0, 0, 0, 0, last.into())),
        ]
    };
    let bed = Bed::new();
    let rules = std::iter::zip(groups(1), groups(2)).map(|(from, to)| {
        let mut route = route(&to.to_string(), vec![bed.output(0, to, 6001)]);
        route.share = Some("x".to_owned());
        (bed.key(from, 5001), route)
    });
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &table(rules));
    let senders = ["10.0.0.1:4000", "[fd00::1]:4000"];
    let frames = std::iter::zip(senders, groups(1)).map(|(sender, group)| {
        Craft::new(sender.parse().unwrap(), (group, 5001).into(), vec![1; 100]).frame()
    });
    let frames: Vec<Vec<u8>> = frames.collect();
    let pass = |dataplane: &mut Dataplane, received_ns| {
        let sent = |dataplane: &mut Dataplane| {
            let counters = bed.inside(move || dataplane.counters().unwrap());
            let rules = counters.rules.values();
            rules.fold((0, 0), |(sent, standby), rule| {
                let dropped = rule.dropped.0[DropReason::Standby as usize];
                (sent + rule.outputs[&0].sent.packets, standby + dropped)
            })
        };
        let before = sent(dataplane);
        for frame in &frames {
            let input = Input {
                frame,
                ifindex: bed.ingress.0,
                gso_size: 0,
                gso_segments: 1,
                received_ns,
                repeat: 1,
            };
            let dataplane = &mut *dataplane;
            bed.inside(move || dataplane.test_run(input).unwrap());
        }
        match sent(dataplane) {
            after if after == (before.0 + 2, before.1) => true,
            after if after == (before.0, before.1 + 2) => false,
            after => panic!("{before:?} {after:?}"),
        }
    };
    let dataplane = &mut dataplane;
    for _ in 0..2 {
        let before = realtime_ns();
        assert!(!pass(dataplane, before));
        dataplane.gates().set("x", u64::MAX);
        assert!(!pass(dataplane, before));
        assert!(pass(dataplane, realtime_ns()));
        assert!(pass(dataplane, 0), "nobody asks for timestamps");
        let later = realtime_ns() + 3_600_000_000_000;
        assert!(pass(dataplane, later), "somebody has set the clock");
        dataplane.gates().set("x", 0);
    }
}
