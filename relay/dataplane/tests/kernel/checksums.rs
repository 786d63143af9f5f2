//! Packets that arrive with a sum over all their bytes (`CHECKSUM_COMPLETE`), as from a tunnel whose
//! outer checksum was checked: the sum has to follow every change, or receivers drop the copy although
//! its bytes are right.

use std::net::IpAddr;
use std::time::Duration;

use compile::table::{Egress, LocalDelivery, OutputState, Ttl};
use dataplane::{Capacity, Dataplane};
use lab::link;
use lab::socket::{Receiver, Sender, payload};
use rules::net::Ifindex;

use crate::bed::{Bed, route, table};

const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of payloads; a receiver does not trust the sum of packets up to 76 bytes.
const SIZES: [usize; 10] = [12, 13, 27, 64, 101, 333, 512, 1000, 1101, 1200];

/// What an output changes beside addresses and ports.
type Change = fn(&mut Egress);

const NOTHING: Change = |_| {};
const TTL: Change = |egress| egress.ttl = Ttl::Set(7);
const DECREMENT: Change = |egress| egress.ttl = Ttl::Decrement;
const DSCP: Change = |egress| egress.dscp = Some(46);
const ALL: Change = |egress| {
    egress.ttl = Ttl::Set(200);
    egress.dscp = Some(34);
    egress.source_port = Some(4444);
};

#[test]
fn relays_out_of_a_vxlan_with_checksums() {
    demand("vx8", "type vxlan id 8 dstport 4789 udpcsum");
}

/// Relays packets from a tunnel to one output and to several, with and without a listener on the relay; every
/// receiver has to get all.
fn demand(device: &str, kind: &str) {
    let bed = Bed::new();
    for (namespace, under, local, remote) in [
        (&bed.chain.sender, "veth0", "10.0.0.1", "10.0.0.2"),
        (&bed.chain.relay, "veth1", "10.0.0.2", "10.0.0.1"),
    ] {
        // Otherwise the outer checksum is left to a device that does not compute it.
        link::features((namespace, under), "tx off").unwrap();
        let add = format!("link add {device} {kind} local {local} remote {remote} dev {under}");
        namespace.ip(&add).unwrap();
        let up = format!("link set {device} up multicast on");
        namespace.ip(&up).unwrap();
    }
    let tunnel = (&bed.chain.sender, device);
    link::address(tunnel, "10.0.8.1/24").unwrap();
    link::address(tunnel, "fd00:8::1/64 nodad").unwrap();
    link::features(tunnel, "tx off").unwrap();
    let mut dataplane = bed.open(Capacity::default());
    let mut failed = Vec::new();
    for source in ["10.0.8.1", "fd00:8::1"].map(|source| source.parse().unwrap()) {
        for changes in [
            &[NOTHING][..],
            &[TTL],
            &[DECREMENT],
            &[DSCP],
            &[ALL],
            &[NOTHING, TTL, DSCP],
            &[ALL, DECREMENT, NOTHING],
        ] {
            for local in [LocalDelivery::No, LocalDelivery::Auto, LocalDelivery::Yes] {
                let got = relay(&bed, &mut dataplane, (device, source), changes, local);
                if got.iter().any(|count| *count != SIZES.len()) {
                    let outputs = changes.len();
                    failed.push(format!("{source}, {outputs} outputs, {local:?}: {got:?}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Returns how many packets each output's receiver got, and the relay's own where there is one.
fn relay(
    bed: &Bed,
    dataplane: &mut Dataplane,
    (device, source): (&str, IpAddr),
    changes: &[Change],
    local: LocalDelivery,
) -> Vec<usize> {
    let group = |last: usize| -> IpAddr {
        let prefix = if source.is_ipv4() {
            "239.1.1."
        } else {
            "ff3e::"
        };
        format!("{prefix}{last}").parse().unwrap()
    };
    let outputs = changes.iter().zip(1..).map(|(change, n)| {
        let mut output = bed.output(n as u32, group(n), 6001);
        if let OutputState::Up(egress) = &mut output.state {
            change(egress);
        }
        output
    });
    let mut route = route("cam1", outputs.collect());
    route.local = local;
    let mut key = bed.key(group(99), 5001);
    key.ingress = Ifindex(link::index((&bed.chain.relay, device)).unwrap());
    bed.sync(dataplane, &table([(key, route)]));

    let outputs = (1..=changes.len()).map(|n| bed.sink(group(n), 6001));
    let mut receivers: Vec<Receiver> = outputs.collect();
    if local != LocalDelivery::No {
        let own = Receiver::join((&bed.chain.relay, device), group(99), 5001);
        receivers.push(own.unwrap());
    }
    let sender = Sender::open((&bed.chain.sender, device), source).unwrap();
    for (number, size) in (0..).zip(SIZES) {
        sender
            .send(group(99), 5001, &payload(number, size))
            .unwrap();
    }
    let got = receivers.iter().map(|receiver| {
        let patience = PATIENCE / 10;
        let datagrams = receiver.collect(SIZES.len(), patience).unwrap();
        for datagram in &datagrams {
            lab::socket::number(&datagram.payload).unwrap();
        }
        datagrams.len()
    });
    got.collect()
}
