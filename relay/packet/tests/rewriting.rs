//! Properties of the rewrite: every copy is a valid packet that carries what was asked for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use packet::checksum;
use packet::craft::{Craft, CraftChecksum};
use packet::datagram::Datagram;
use packet::parse::{ChecksumState, Gso, Link, Meta, Parsed, parse};
use packet::rewrite::{LinkChange, Rewrite, TtlChange, rewrite};
use packet::verdict::DropReason;
use proptest::prelude::*;

const LINK: LinkChange = LinkChange::Ethernet {
    source: [2, 0, 0, 0, 0, 1],
    destination: [1, 0, 0x5e, 9, 9, 9],
};

fn group(v6: bool, bits: u128) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::from_bits(bits | 0xff << 120))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(0xe000_0000 | bits as u32 & 0x0fff_ffff))
    }
}

fn host(v6: bool, bits: u128) -> IpAddr {
    if v6 {
        IpAddr::V6(bits.into())
    } else {
        IpAddr::V4((bits as u32).into())
    }
}

prop_compose! {
    fn crafts()(
        v6 in any::<bool>(),
        source in any::<u128>(), destination in any::<u128>(),
        ports in (1u16.., 1u16..),
        payload in prop_oneof![
            4 => proptest::collection::vec(any::<u8>(), 0..64),
            1 => proptest::collection::vec(any::<u8>(), 8900..9000),
        ],
        ttl in any::<u8>(), traffic_class in any::<u8>(),
        options in 0usize..=10,
        checksum in prop_oneof![
            Just(CraftChecksum::Complete), Just(CraftChecksum::Partial), Just(CraftChecksum::Zero)
        ],
        padding in 0usize..20,
    ) -> Craft {
        let mut craft = Craft::new(
            SocketAddr::new(host(v6, source), ports.0),
            SocketAddr::new(group(v6, destination), ports.1),
            payload,
        );
        craft.ttl = ttl;
        craft.traffic_class = traffic_class;
        craft.padding = padding;
        craft.checksum = checksum;
        if v6 && checksum == CraftChecksum::Zero {
            craft.checksum = CraftChecksum::Complete;
        }
        if !v6 {
            craft.options = vec![1; options * 4];
        } else if options > 5 {
            // A hop-by-hop header of 16 bytes: router alert-sized padding, then UDP.
            craft.first_extension = 0;
            craft.options = vec![17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        }
        craft
    }
}

prop_compose! {
    fn changes()(
        source in proptest::option::of(any::<u128>()), destination in any::<u128>(),
        source_port in proptest::option::of(any::<u16>()), destination_port in any::<u16>(),
        ttl in prop_oneof![
            Just(TtlChange::Keep), Just(TtlChange::Decrement), any::<u8>().prop_map(TtlChange::Set)
        ],
        dscp in proptest::option::of(0u8..64),
        bare in any::<bool>(),
    ) -> [Rewrite; 2] {
        [false, true].map(|v6| Rewrite {
            source: source.map(|bits| host(v6, bits)),
            destination: group(v6, destination),
            source_port,
            destination_port,
            ttl,
            dscp,
            link: if bare { LinkChange::None } else { LINK },
        })
    }
}

fn meta(craft: &Craft) -> Meta {
    let checksum = match craft.checksum {
        CraftChecksum::Partial => ChecksumState::Partial,
        _ => ChecksumState::Complete,
    };
    Meta {
        checksum,
        ..Meta::default()
    }
}

fn datagram(frame: &[u8], meta: Meta) -> Datagram {
    match parse(frame, Link::Ethernet, meta) {
        Parsed::Udp(datagram) => datagram,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_copy_is_the_packet_one_would_have_crafted(craft in crafts(), change in changes()) {
        let v6 = craft.source.is_ipv6();
        let change = change[usize::from(v6)];
        let mut frame = craft.frame();
        let parsed = datagram(&frame, meta(&craft));
        prop_assert_eq!(parsed.defect(&frame), None);

        let expired = change.ttl == TtlChange::Decrement && craft.ttl <= 1;
        let start = match rewrite(&mut frame, &parsed, &change) {
            Ok(start) => start,
            Err(reason) => {
                prop_assert!(expired);
                prop_assert_eq!(reason, DropReason::TtlExpired);
                return Ok(());
            }
        };
        prop_assert!(!expired);

        let mut expected = craft.clone();
        expected.source = SocketAddr::new(
            change.source.unwrap_or(craft.source.ip()),
            change.source_port.unwrap_or(craft.source.port()),
        );
        expected.destination = SocketAddr::new(change.destination, change.destination_port);
        expected.ttl = match change.ttl {
            TtlChange::Keep => craft.ttl,
            TtlChange::Decrement => craft.ttl - 1,
            TtlChange::Set(ttl) => ttl,
        };
        if let Some(dscp) = change.dscp {
            expected.traffic_class = dscp << 2 | craft.traffic_class & 3;
        }
        match change.link {
            LinkChange::Ethernet { source, destination } => expected.macs = (destination, source),
            LinkChange::None => expected.link = Link::None,
        }
        let expected = expected.frame();
        let field = start + (parsed.udp_offset - start) + 6;
        let (mut got, mut want) = (frame[start..].to_vec(), expected);
        let at = field - start;
        // The two forms of zero in a partial sum mean the same.
        for bytes in [&mut got, &mut want] {
            if craft.checksum == CraftChecksum::Partial && bytes[at..at + 2] == [0, 0] {
                bytes[at..at + 2].fill(0xff);
            }
        }
        prop_assert_eq!(got, want);
    }

    #[test]
    fn headers_alone_suffice(craft in crafts(), change in changes()) {
        let change = change[usize::from(craft.source.is_ipv6())];
        let mut whole = craft.frame();
        let parsed = datagram(&whole, meta(&craft));
        let mut headers = vec![0; 14];
        headers.extend(&whole[parsed.ip_offset..parsed.payload_offset()]);
        let moved = parsed.moved(14);
        let verdict = rewrite(&mut whole, &parsed, &change);
        prop_assert_eq!(rewrite(&mut headers, &moved, &change), verdict);
        if let Ok(start) = verdict {
            prop_assert_eq!(&headers[start..], &whole[start..parsed.payload_offset()]);
        }
    }

    #[test]
    fn a_partial_checksum_is_finished_right_by_the_device(
        craft in crafts(), change in changes()
    ) {
        let craft = Craft { checksum: CraftChecksum::Partial, ..craft };
        let change = change[usize::from(craft.source.is_ipv6())];
        let mut frame = craft.frame();
        let parsed = datagram(&frame, meta(&craft));
        if rewrite(&mut frame, &parsed, &change).is_ok() {
            let udp = &mut frame[parsed.udp_offset..parsed.end()];
            checksum::finish_partial(udp, 0, 6).unwrap();
            let source = change.source.unwrap_or(craft.source.ip());
            prop_assert!(checksum::udp_is_valid(source, change.destination, udp));
        }
    }

    #[test]
    fn a_wrong_checksum_stays_wrong(craft in crafts(), change in changes(), error in 1u16..0xffff) {
        let craft = Craft { checksum: CraftChecksum::Complete, ..craft };
        let change = change[usize::from(craft.source.is_ipv6())];
        let mut frame = craft.frame();
        let at = datagram(&frame, meta(&craft)).udp_offset + 6;
        let right = u16::from_be_bytes([frame[at], frame[at + 1]]);
        let wrong = checksum::fold(u32::from(right) + u32::from(error));
        prop_assume!(wrong != 0);
        frame[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
        let parsed = datagram(&frame, meta(&craft));
        if rewrite(&mut frame, &parsed, &change).is_ok() {
            let udp = &frame[parsed.udp_offset..parsed.end()];
            let source = change.source.unwrap_or(craft.source.ip());
            prop_assert!(!checksum::udp_is_valid(source, change.destination, udp));
        }
    }

    #[test]
    fn a_super_packet_counts_its_segments(size in 1u16..1500, payload in 0usize..60_000) {
        let craft = Craft::new(
            "10.0.0.1:4000".parse().unwrap(), "239.1.1.1:5000".parse().unwrap(),
            vec![0; payload],
        );
        let frame = craft.frame();
        let meta = Meta { gso: Some(Gso { size }), ..Meta::default() };
        let parsed = datagram(&frame, meta);
        prop_assert_eq!(parsed.packets() as usize, payload.div_ceil(usize::from(size)).max(1));
        prop_assert_eq!(parsed.payload_bytes(), payload);
        prop_assert_eq!(parsed.largest_packet(), 28 + usize::from(size));
    }
}

#[test]
fn a_header_that_does_not_fit_is_an_error_not_a_panic() {
    let craft = Craft::new(
        "10.0.0.1:4000".parse().unwrap(),
        "239.1.1.1:5000".parse().unwrap(),
        vec![0; 4],
    );
    let frame = craft.frame();
    let parsed = datagram(&frame, Meta::default());
    let change = Rewrite {
        source: None,
        destination: "239.9.9.9".parse().unwrap(),
        source_port: None,
        destination_port: 6000,
        ttl: TtlChange::Keep,
        dscp: None,
        link: LINK,
    };
    for length in 0..parsed.payload_offset() {
        let mut cut = frame[..length].to_vec();
        assert_eq!(
            rewrite(&mut cut, &parsed, &change),
            Err(DropReason::EgressError)
        );
    }
    let bare = Craft {
        link: Link::None,
        ..craft
    }
    .frame();
    let Parsed::Udp(parsed) = parse(&bare, Link::None, Meta::default()) else {
        panic!()
    };
    assert_eq!(
        rewrite(&mut bare.clone(), &parsed, &change),
        Err(DropReason::EgressError)
    );
    let family = Rewrite {
        destination: "ff3e::1".parse().unwrap(),
        ..change
    };
    let parsed = datagram(&frame, Meta::default());
    assert_eq!(
        rewrite(&mut frame.clone(), &parsed, &family),
        Err(DropReason::EgressError)
    );
}
