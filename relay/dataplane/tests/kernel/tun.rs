//! Devices without a link-layer header, as input and as output.
#![expect(unsafe_code, reason = "a tun device is opened by ioctl")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use compile::table::{LinkHeader, OutputState};
use dataplane::Capacity;
use lab::link;
use lab::socket::Receiver;
use nix::libc;
use packet::craft::Craft;
use rules::net::Ifindex;

use crate::bed::{Bed, route, table};

const IN: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
const OUT: Ipv4Addr = Ipv4Addr::new(239, 10, 1, 1);
const BACK: Ipv4Addr = Ipv4Addr::new(239, 11, 1, 1);
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn relays_from_and_to_a_device_without_link_header() {
    relay_from_and_to_tun(&Bed::new());
}

#[test]
fn relays_from_and_to_a_device_without_link_header_through_clsact() {
    relay_from_and_to_tun(&Bed::with_clsact());
}

fn relay_from_and_to_tun(bed: &Bed) {
    let mut tun = bed.inside(|| open_tun("tun0"));
    link::up((&bed.chain.relay, "tun0")).unwrap();
    let index = Ifindex(link::index((&bed.chain.relay, "tun0")).unwrap());

    let mut back = bed.output(1, BACK, 7001);
    let OutputState::Up(egress) = &mut back.state else {
        panic!("an output of the bed is up")
    };
    egress.interface = index;
    egress.link = LinkHeader::None;
    let mut key = bed.key(IN, 5001);
    key.ingress = index;
    let outputs = vec![back, bed.output(0, OUT, 6001)];
    let mut dataplane = bed.open(Capacity::default());
    bed.sync(&mut dataplane, &table([(key, route("cam1", outputs))]));

    let sink = bed.sink(OUT, 6001);
    let local = Receiver::join((&bed.chain.relay, "tun0"), IN.into(), 5001).unwrap();
    let source = "10.7.0.1:4000".parse().unwrap();
    bed.chain
        .relay
        .ip("route add 10.7.0.0/24 dev tun0")
        .unwrap();
    let craft = Craft::new(source, (IN, 5001).into(), vec![7; 100]);
    tun.write_all(&craft.frame()[14..]).unwrap();

    let relayed = sink.receive(PATIENCE).unwrap().unwrap();
    assert_eq!(relayed.payload, [7; 100]);
    let original = local.receive(PATIENCE).unwrap().unwrap();
    assert_eq!((original.from, original.payload), (source, vec![7; 100]));
    let copy = loop {
        let mut bytes = vec![0; 2000];
        let length = tun.read(&mut bytes).unwrap();
        bytes.truncate(length);
        if bytes[0] >> 4 == 4 && bytes[16..20] == BACK.octets() {
            break bytes;
        }
    };
    assert_eq!(copy.len(), 128);
    assert_eq!(u16::from_be_bytes([copy[22], copy[23]]), 7001);
    let counters = dataplane.counters().unwrap();
    assert_eq!(counters.rules["cam1"].outputs[&0].sent.packets, 1);
    assert_eq!(counters.rules["cam1"].outputs[&1].sent.packets, 1);
}

/// Makes a tun device and opens it for packets without a header of its own.
fn open_tun(name: &str) -> File {
    let file = File::options().read(true).write(true).open("/dev/net/tun");
    let file = file.unwrap();
    // SAFETY: ifreq is a plain C struct; all-zero is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: TUNSETIFF reads one ifreq, which `request` is.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    file
}
