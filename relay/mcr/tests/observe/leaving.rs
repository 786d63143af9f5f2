//! How copies leave: the interface, source address and next hop that are shown, or why they cannot leave.

use lab::wait;

use crate::bed::{Bed, INPUT, OUTPUT};

lab::on_both_paths!(an_output_shows_how_its_copies_leave_and_why_not);

fn an_output_shows_how_its_copies_leave_and_why_not(path: &str) {
    let Some(bed) = Bed::with_tools(&[], &["--path", path]) else {
        return;
    };
    let [relay, sink] = [&bed.chain.relay, &bed.chain.sink];
    relay.ip("link set veth2 mtu 1400").unwrap();
    let mac = "02:00:00:00:07:01";
    sink.ip(&format!("link set veth3 address {mac}")).unwrap();
    let to = ["10.0.1.2:7000", OUTPUT, "239.10.1.2%veth2:6001,source=keep"];
    bed.daemon.add("cam1", INPUT, &to).unwrap();
    let show = |parts: &[&str]| {
        let mut text = String::new();
        wait::until("it is shown", || {
            text = bed.daemon.mcr(&["show", "cam1"]).unwrap();
            parts.iter().all(|part| text.contains(part))
        })
        .unwrap_or_else(|error| panic!("{error:#}: no {parts:?} in {text}"));
    };
    show(&[
        &format!("by veth2 from 10.0.1.1, next hop 10.0.1.2 ({mac}), MTU 1400\n"),
        "by veth2 from 10.0.1.1, MTU 1400\n",
        "by veth2 from the sender's own address, MTU 1400\n",
    ]);
    let stats = bed.json(&["stats", "--json"]);
    let output = &stats["rules"][0]["outputs"][0];
    for (key, value) in [
        ("interface", "veth2"),
        ("source", "10.0.1.1"),
        ("next_hop", "10.0.1.2"),
        ("next_hop_mac", mac),
    ] {
        assert_eq!(output[key], value, "{output}");
    }
    assert_eq!(output["mtu"], 1400);
    sink.ip("link set veth3 down").unwrap();
    show(&["down: interface veth2 has no carrier; check its cable or peer"]);
    relay.ip("link set veth2 down").unwrap();
    show(&["down: interface veth2 is administratively down; `ip link set veth2 up`"]);
    let text = bed.daemon.mcr(&["show", "cam1"]).unwrap();
    assert!(!text.contains("  leaves"), "{text}");
}
