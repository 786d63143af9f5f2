//! Packets that are cut, contradict themselves, or are none of ours.

use packet::craft::{Craft, fix_ipv4_checksum};
use packet::verdict::DropReason;

use crate::case::{A, B, Case, Packet, input, plain, socket};

/// Offset of the IPv4 header.
const IP: usize = 14;
/// Offset of the UDP header.
const UDP: usize = 34;

pub(crate) fn cases() -> Vec<Case> {
    [malformed(), not_ours(), cut()].concat()
}

/// The plain packet with `value` at `at`, its IPv4 header checksum right.
fn with(at: usize, value: u16) -> Vec<u8> {
    let mut frame = input().frame();
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    fix_ipv4_checksum(&mut frame, IP);
    frame
}

fn malformed() -> Vec<Case> {
    let malformed =
        |name, frame: Vec<u8>, bytes| Case::dropped(name, frame, DropReason::Malformed, bytes);
    let mut header_checksum = input().frame();
    header_checksum[IP + 10] ^= 1;
    let mut option_checksum = Craft {
        options: vec![0x94, 4, 0, 0],
        ..input()
    }
    .frame();
    option_checksum[IP + 22] = 1;
    let mut longer = with(UDP + 4, 109);
    longer.extend([0; 10]);
    let mut chopped = input().frame();
    chopped.truncate(UDP + 8 + 40);
    vec![
        malformed("an IP length beyond the packet", with(IP + 2, 129), 100),
        malformed("an IP length of 65535", with(IP + 2, 0xffff), 100),
        malformed("an IP length without room for UDP", with(IP + 2, 27), 100),
        malformed("an IP length of 0", with(IP + 2, 0), 100),
        malformed("a UDP length of 7", with(UDP + 4, 7), 100),
        malformed("a UDP length of 0", with(UDP + 4, 0), 100),
        malformed("a UDP length beyond the IP length", with(UDP + 4, 109), 100),
        malformed(
            "a UDP length beyond the IP length, padding behind it",
            longer,
            110,
        ),
        malformed("an IP length cut into the payload", with(IP + 2, 60), 100),
        malformed("a payload that was cut off", chopped, 40),
        malformed("a wrong IP header checksum", header_checksum, 100),
        malformed(
            "a wrong IP header checksum in the options",
            option_checksum,
            100,
        ),
    ]
}

fn not_ours() -> Vec<Case> {
    let change = |at: usize, value: u8| {
        let mut frame = input().frame();
        frame[at] = value;
        fix_ipv4_checksum(&mut frame, IP);
        frame
    };
    let mut tagged = input().frame();
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    let mut priority = input().frame();
    priority.splice(12..12, [0x81, 0x00, 0xa0, 0x00]);
    let mut service_tagged = input().frame();
    service_tagged.splice(12..12, [0x88, 0xa8, 0x00, 0x05]);
    let mut unicast = Craft {
        destination: socket("10.0.0.1", 5001),
        ..input()
    };
    unicast.macs.0 = [2, 0, 0, 0, 0, 0x10];
    let mut ip6_type = input().frame();
    ip6_type[12..14].copy_from_slice(&[0x86, 0xdd]);
    vec![
        Case::passed("a VLAN tag", tagged),
        Case {
            packet: priority.into(),
            ..Case::relayed(
                "a tag that names no VLAN",
                input(),
                [plain(&input(), A), plain(&input(), B)],
            )
        },
        Case::passed("a service VLAN tag", service_tagged),
        Case::passed("IP version 5", change(IP, 0x55)),
        Case::passed("IHL below 5", change(IP, 0x44)),
        Case::passed("IHL of 0", change(IP, 0x40)),
        Case::passed("TCP", change(IP + 9, 6)),
        Case::passed("IGMP", change(IP + 9, 2)),
        Case::passed("a unicast destination", unicast),
        Case::passed("IPv4 under the ethertype of IPv6", ip6_type),
    ]
}

fn cut() -> Vec<Case> {
    let cut = |name, length| {
        let mut frame = input().frame();
        frame.truncate(length);
        Case::passed(name, frame)
    };
    let mut options = Craft {
        options: vec![1; 40],
        ..input()
    }
    .frame();
    options.truncate(IP + 59);
    let mut before_udp = Craft {
        options: vec![1; 40],
        ..input()
    }
    .frame();
    before_udp.truncate(IP + 67);
    vec![
        cut("cut after the Ethernet header", IP),
        cut("cut in the IP header", IP + 19),
        cut("cut after the IP header", UDP),
        cut("cut in the UDP header", UDP + 7),
        Case::passed("cut in the IP options", options),
        Case::passed("cut in the UDP header behind options", before_udp),
        Case::dropped(
            "cut after the UDP header",
            Packet::from(input().frame()[..UDP + 8].to_vec()),
            DropReason::Malformed,
            0,
        ),
    ]
}
