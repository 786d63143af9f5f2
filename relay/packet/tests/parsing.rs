//! What parse makes of good, odd, cut and hostile packets.

#![expect(clippy::unwrap_used, reason = "the addresses are literals")]

use packet::craft::{Craft, fix_ipv4_checksum};
use packet::datagram::{Defect, Part};
use packet::parse::{Link, Meta, NotOurs, Parsed, parse};
use proptest::prelude::*;

fn craft() -> Craft {
    Craft::new(
        "10.0.0.1:4000".parse().unwrap(),
        "239.1.1.1:5000".parse().unwrap(),
        vec![7; 32],
    )
}

fn craft6() -> Craft {
    Craft::new(
        "[fd00::1]:4000".parse().unwrap(),
        "[ff3e::1]:5000".parse().unwrap(),
        vec![7; 32],
    )
}

fn ethernet(frame: &[u8]) -> Parsed {
    parse(frame, Link::Ethernet, Meta::default())
}

fn defect(frame: &[u8]) -> Option<Defect> {
    match ethernet(frame) {
        Parsed::Udp(datagram) => datagram.defect(frame),
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_every_field_of_a_datagram_with_options() {
    let craft = Craft {
        options: vec![0x94, 4, 0, 0],
        traffic_class: 0xb9,
        ttl: 33,
        ..craft()
    };
    let frame = craft.frame();
    let Parsed::Udp(datagram) = ethernet(&frame) else {
        panic!()
    };
    assert_eq!((datagram.ip_offset, datagram.udp_offset), (14, 38));
    assert_eq!(datagram.source, craft.source.ip());
    assert_eq!(datagram.destination, craft.destination.ip());
    assert_eq!(
        (datagram.source_port, datagram.destination_port),
        (4000, 5000)
    );
    assert_eq!((datagram.ttl, datagram.traffic_class), (33, 0xb9));
    assert_eq!((datagram.ip_length, datagram.udp_length), (64, 40));
    assert_eq!(datagram.payload_bytes(), 32);
    assert!(datagram.dont_fragment);
    assert_eq!(datagram.defect(&frame), None);
}

#[test]
fn leaves_to_the_stack_what_is_not_ours() {
    let frame = craft().frame();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = frame.clone();
        change(&mut frame);
        ethernet(&frame)
    };
    let cases = [
        (
            NotOurs::Vlan,
            with(&|f| f[12..14].copy_from_slice(&[0x81, 0])),
        ),
        (
            NotOurs::Vlan,
            with(&|f| f[12..14].copy_from_slice(&[0x88, 0xa8])),
        ),
        (
            NotOurs::Ethertype,
            with(&|f| f[12..14].copy_from_slice(&[0x08, 6])),
        ),
        (NotOurs::Version, with(&|f| f[14] = 0x55)),
        (NotOurs::HeaderLength, with(&|f| f[14] = 0x44)),
        (NotOurs::Truncated, with(&|f| f.truncate(14 + 19))),
        (NotOurs::Truncated, with(&|f| f.truncate(14 + 27))),
        (
            NotOurs::Truncated,
            with(&|f| {
                f[14] = 0x4f;
                f.truncate(14 + 59)
            }),
        ),
        (NotOurs::Protocol, with(&|f| f[23] = 6)),
        (NotOurs::Vlan, {
            let meta = Meta {
                vlan: true,
                ..Meta::default()
            };
            parse(&frame, Link::Ethernet, meta)
        }),
    ];
    for (number, (why, parsed)) in cases.into_iter().enumerate() {
        assert_eq!(parsed, Parsed::NotOurs(why), "case {number}");
    }
}

#[test]
fn names_each_defect() {
    let with = |at: usize, value: u16| {
        let mut frame = craft().frame();
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        if at != 24 {
            fix_ipv4_checksum(&mut frame, 14);
        }
        defect(&frame)
    };
    assert_eq!(with(16, 60), None);
    assert_eq!(with(16, 61), Some(Defect::LengthBeyondPacket));
    assert_eq!(with(16, 27), Some(Defect::LengthTooShort));
    assert_eq!(with(38, 7), Some(Defect::UdpLengthTooShort));
    assert_eq!(with(38, 39), None);
    assert_eq!(with(38, 41), Some(Defect::UdpLengthBeyondPacket));
    assert_eq!(with(24, 0xbad), Some(Defect::HeaderChecksum));
}

#[test]
fn padding_is_no_defect() {
    assert_eq!(
        defect(
            &Craft {
                padding: 18,
                ..craft()
            }
            .frame()
        ),
        None
    );
}

#[test]
fn fragments_share_a_key_and_the_first_shows_the_ports() {
    let first = Craft {
        fragment: 0x2000,
        ..craft()
    }
    .frame();
    let last = Craft {
        fragment: 5,
        ..craft()
    }
    .frame();
    let (Parsed::Fragment(first), Parsed::Fragment(last)) = (ethernet(&first), ethernet(&last))
    else {
        panic!()
    };
    assert_eq!(first.key, last.key);
    assert_eq!((first.offset, first.more), (0, true));
    assert_eq!((last.offset, last.more), (40, false));
    assert_eq!(
        first.datagram.map(|datagram| datagram.destination_port),
        Some(5000)
    );
    assert_eq!(
        last.datagram.map(|datagram| datagram.part),
        Some(Part::Later)
    );
}

#[test]
fn skips_the_extension_headers_of_ipv6() {
    // Hop-by-hop (8 bytes), used-up routing (8), destination options (16), UDP.
    let mut options = vec![
        43, 0, 1, 4, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 17, 1, 1, 12,
    ];
    options.resize(32, 0);
    let frame = Craft {
        options,
        first_extension: 0,
        ..craft6()
    }
    .frame();
    let Parsed::Udp(datagram) = ethernet(&frame) else {
        panic!()
    };
    assert_eq!(datagram.udp_offset, 14 + 40 + 32);
    assert_eq!(datagram.defect(&frame), None);
}

#[test]
fn leaves_ipv6_that_it_cannot_follow_to_the_stack() {
    let segments_left = vec![17, 0, 0, 1, 0, 0, 0, 0];
    let routed = Craft {
        options: segments_left,
        first_extension: 43,
        ..craft6()
    }
    .frame();
    assert_eq!(ethernet(&routed), Parsed::NotOurs(NotOurs::Protocol));
    let many = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    let many = Craft {
        options: many,
        first_extension: 60,
        ..craft6()
    }
    .frame();
    assert_eq!(ethernet(&many), Parsed::NotOurs(NotOurs::Protocol));
}

#[test]
fn a_zero_checksum_is_a_defect_only_on_ipv6() {
    let zero = packet::craft::CraftChecksum::Zero;
    assert_eq!(
        defect(
            &Craft {
                checksum: zero,
                ..craft()
            }
            .frame()
        ),
        None
    );
    let frame = Craft {
        checksum: zero,
        ..craft6()
    }
    .frame();
    assert_eq!(defect(&frame), Some(Defect::ZeroChecksum));
}

#[test]
fn reads_ipv6_fragments_and_takes_an_atomic_one_as_whole() {
    let header = |offset: u16| {
        let [a, b] = offset.to_be_bytes();
        vec![17, 0, a, b, 0, 0, 0, 9]
    };
    let frame = |offset| {
        Craft {
            options: header(offset),
            first_extension: 44,
            ..craft6()
        }
        .frame()
    };
    assert!(matches!(ethernet(&frame(0)), Parsed::Udp(_)));
    let Parsed::Fragment(first) = ethernet(&frame(1)) else {
        panic!()
    };
    assert_eq!((first.offset, first.more, first.key.id), (0, true, 9));
    assert!(first.datagram.is_some());
    let Parsed::Fragment(last) = ethernet(&frame(16)) else {
        panic!()
    };
    assert_eq!((last.offset, last.more), (16, false));
    assert_eq!(
        last.datagram.map(|datagram| datagram.part),
        Some(Part::Later)
    );
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for link in [Link::Ethernet, Link::None] {
            if let Parsed::Udp(datagram) = parse(&bytes, link, Meta::default()) {
                let _ = datagram.defect(&bytes);
                prop_assert!(datagram.payload_offset() <= bytes.len());
            }
        }
    }

    #[test]
    fn cut_and_mutated_packets_give_an_answer_that_holds(
        v6 in any::<bool>(),
        words in 0usize..=10,
        cut in any::<prop::sample::Index>(),
        mutations in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let craft = if v6 { craft6() } else { Craft { options: vec![1; words * 4], ..craft() } };
        let mut frame = craft.frame();
        for (at, value) in mutations {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        frame.truncate(cut.index(frame.len() + 1));
        if let Parsed::Udp(datagram) = ethernet(&frame) {
            prop_assert!(datagram.payload_offset() <= frame.len());
            prop_assert!(datagram.end() <= frame.len());
            if datagram.defect(&frame).is_none() {
                let end = datagram.payload_offset() + datagram.payload_bytes();
                prop_assert!(end <= datagram.end());
                prop_assert_eq!(datagram.payload_bytes() + 8, usize::from(datagram.udp_length));
            }
        }
    }
}
