//! Large packets, super-packets and coalesced ones.

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result};
use compile::table::OutputState;
use lab::frame::{FrameReceiver, FrameSender};
use lab::link;
use lab::socket::{Receiver, payload};
use packet::craft::{Craft, CraftChecksum};
use packet::verdict::DropReason;
use sys::packet_socket::VnetHeader;

use crate::bed::Bed;

const PATIENCE: Duration = Duration::from_secs(5);

fn sender(bed: &Bed) -> Result<UdpSocket> {
    bed.chain.sender.run(|| {
        let socket = UdpSocket::bind("10.0.0.1:0")?;
        socket.set_multicast_ttl_v4(8)?;
        socket.connect("239.1.1.1:5001")?;
        Ok(socket)
    })
}

fn receiver(bed: &Bed) -> Result<Receiver> {
    Receiver::join((&bed.chain.sink, "veth3"), bed.address("239.10.1.1"), 6001)
}

/// One rule to one output whose MTU is `mtu`.
fn rule(bed: &mut Bed, mtu: u32) -> Result<()> {
    let mut output = bed.output(0, "239.10.1.1", 6001);
    if let OutputState::Up(egress) = &mut output.state {
        egress.mtu = mtu;
    }
    let rule = bed.rule("cam1", "239.1.1.1", 5001, vec![output]);
    bed.apply([rule])
}

#[test]
fn relays_packets_of_9000_bytes() -> Result<()> {
    let mut bed = Bed::new(1)?;
    for (namespace, name) in [
        (&bed.chain.sender, "veth0"),
        (&bed.chain.relay, "veth1"),
        (&bed.chain.relay, "veth2"),
        (&bed.chain.sink, "veth3"),
    ] {
        namespace.ip(&format!("link set {name} mtu 9000"))?;
    }
    rule(&mut bed, 9000)?;
    let receiver = receiver(&bed)?;
    let sender = sender(&bed)?;
    for number in 0..200 {
        sender.send(&payload(number, 8972))?;
    }
    receiver.expect(200, PATIENCE)?;
    let counters = bed.settled("cam1", 200)?;
    assert_eq!(counters.outputs[&0].sent.packets, 200);
    Ok(())
}

#[test]
fn packets_that_wait_together_leave_as_one_super_packet() -> Result<()> {
    let mut bed = Bed::new(1)?;
    rule(&mut bed, 1500)?;
    link::features((&bed.chain.relay, "veth2"), "tx on tx-udp-segmentation on")?;
    let receiver = receiver(&bed)?;
    let wire = FrameReceiver::open((&bed.chain.sink, "veth3"))?;
    let sender = sender(&bed)?;
    bed.while_workers_sleep(|| {
        (0..20).try_for_each(|n| {
            sender.send(&payload(n, if n == 19 { 300 } else { 1000 }))?;
            Ok(())
        })
    })?;
    receiver.expect(20, PATIENCE)?;
    let udp = |frame: &[u8]| frame.get(23) == Some(&17);
    let frame = wire
        .receive(PATIENCE, udp)?
        .context("nothing on the wire")?;
    assert_eq!(frame.vnet.gso_type, VnetHeader::GSO_UDP);
    assert_eq!(frame.vnet.gso_size, 1000);
    assert_eq!(frame.bytes.len(), 14 + 20 + 8 + 19 * 1000 + 300);
    let counters = bed.settled("cam1", 20)?;
    assert_eq!(counters.received.packets, 20);
    assert_eq!(counters.outputs[&0].sent.bytes, 19_300);
    Ok(())
}

#[test]
fn a_coalesced_run_above_the_mtu_still_sends_its_short_last_packet() -> Result<()> {
    let mut bed = Bed::new(1)?;
    rule(&mut bed, 500)?;
    let receiver = receiver(&bed)?;
    let sender = sender(&bed)?;
    bed.while_workers_sleep(|| {
        for n in 1..10 {
            sender.send(&payload(n, 1000))?;
        }
        sender.send(&payload(0, 100))?;
        Ok(())
    })?;
    receiver.expect(1, PATIENCE)?;
    let counters = bed.settled("cam1", 10)?;
    let output = &counters.outputs[&0];
    assert_eq!((output.sent.packets, output.sent.bytes), (1, 100));
    assert_eq!(output.dropped.0[DropReason::TooBig as usize], 9);
    Ok(())
}

#[test]
fn cuts_packets_above_the_mtu_where_the_output_allows_it() -> Result<()> {
    let mut bed = Bed::new(1)?;
    let mut output = bed.output(0, "239.10.1.1", 6001);
    if let OutputState::Up(egress) = &mut output.state {
        egress.mtu = 600;
        egress.fragment = true;
    }
    let rule = bed.rule("cam1", "239.1.1.1", 5001, vec![output]);
    bed.apply([rule])?;
    let receiver = receiver(&bed)?;
    let wire = FrameSender::open((&bed.chain.sender, "veth0"))?;
    let mut craft = Craft::new(
        "10.0.0.1:4000".parse()?,
        "239.1.1.1:5001".parse()?,
        payload(0, 1400),
    );
    craft.fragment = 0;
    wire.send(&craft.frame())?;
    craft.payload = payload(1, 1399);
    craft.checksum = CraftChecksum::Partial;
    let partial = VnetHeader {
        flags: VnetHeader::NEEDS_CHECKSUM,
        checksum_start: 34,
        checksum_offset: 6,
        ..VnetHeader::default()
    };
    wire.send_with(partial, &craft.frame())?;
    receiver.expect(2, PATIENCE)?;
    // With DF it is dropped.
    craft.fragment = 0x4000;
    wire.send_with(partial, &craft.frame())?;
    bed.wait_for("the third packet is counted", |counters| {
        counters.rules["cam1"].received.packets == 3
    })?;
    let output = bed.settled("cam1", 3)?.outputs[&0].clone();
    assert_eq!((output.sent.packets, output.sent.bytes), (2, 2799));
    assert_eq!(output.dropped.0[DropReason::TooBig as usize], 1);
    Ok(())
}

#[test]
fn a_flood_of_super_packets_arrives_whole() -> Result<()> {
    let mut bed = Bed::new(1)?;
    rule(&mut bed, 1500)?;
    let receiver = receiver(&bed)?;
    let sender = lab::socket::Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    for burst in 0..50 {
        let group = bed.address("239.1.1.1");
        sender.send_segmented(group, 5001, burst * 40, 40, 1400)?;
        lab::wait::until("the burst is through", || {
            bed.rule_counters("cam1")
                .is_ok_and(|counters| counters.outputs[&0].sent.packets == (burst + 1) * 40)
        })?;
    }
    receiver.expect(2000, PATIENCE)?;
    Ok(())
}
