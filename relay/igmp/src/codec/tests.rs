use proptest::prelude::*;

use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn query(group: Option<&str>, sources: &[&str]) -> Query {
    Query {
        version: Version::V3,
        group: group.map(address),
        sources: sources.iter().map(|source| address(source)).collect(),
        response: Duration::from_secs(10),
        suppress: true,
        robustness: 2,
        interval: Duration::from_secs(125),
    }
}

fn report(version: Version, kind: RecordKind, group: &str, sources: &[&str]) -> Report {
    let records = vec![Record {
        kind,
        group: address(group),
        sources: sources.iter().map(|source| address(source)).collect(),
    }];
    Report { version, records }
}

/// Corrects the checksum of an IGMP message behind a header of 24 bytes.
fn fix_checksum(packet: &mut [u8]) {
    packet[26..28].fill(0);
    let sum = !packet::checksum::sum(&packet[24..]);
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn reads_what_it_writes() {
    for (from, group, source, all_hosts) in [
        ("10.0.0.1", "239.1.1.1", "10.9.9.9", "224.0.0.1"),
        ("fe80::1", "ff3e::1", "2001:db8::9", "ff02::1"),
    ] {
        for query in [
            query(None, &[]),
            query(Some(group), &[]),
            query(Some(group), &[source]),
        ] {
            let to = query.group.unwrap_or_else(|| address(all_hosts));
            let message = RouterMessage::Query(query.clone());
            let (sent_to, packet) = write(address(from), &message).unwrap();
            assert_eq!(sent_to, to);
            let received = read(&packet).unwrap();
            assert_eq!(received.from, address(from));
            assert_eq!(received.message, Message::Query(query));
        }
        let advertisement = RouterMessage::Advertisement {
            interval_s: 20,
            query_interval_s: 125,
            robustness: 2,
        };
        let (_, packet) = write(address(from), &advertisement).unwrap();
        // Routers ignore the advertisements of others.
        assert_eq!(read(&packet), Err(Defect::Other));
    }
}

#[test]
fn reads_a_report_as_the_rfc_lays_it_out() {
    // RFC 3376 section 4.2, by hand: 10.0.0.2 listens to 239.1.1.1.
    let v3 = [
        0x46, 0xc0, 0, 40, 0, 0, 0x40, 0, 1, 2, 0xf9, 0xf7, 10, 0, 0, 2, 224, 0, 0, 22, 0x94, 4, 0,
        0, 0x22, 0, 0xe9, 0xfb, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 1, 1,
    ];
    let received = read(&v3).unwrap();
    let expected = report(Version::V3, RecordKind::ToExclude, "239.1.1.1", &[]);
    assert_eq!(received.from, address("10.0.0.2"));
    assert_eq!(received.message, Message::Report(expected));
}

#[test]
fn reads_every_version_of_both_families() {
    for (from, group, source) in [
        ("10.0.0.2", "239.1.1.1", "10.9.9.9"),
        ("fe80::2", "ff3e::1", "2001:db8::9"),
    ] {
        let old = [
            report(Version::V2, RecordKind::IsExclude, group, &[]),
            report(Version::V2, RecordKind::ToInclude, group, &[]),
        ];
        let new = [
            report(Version::V3, RecordKind::Allow, group, &[source]),
            report(Version::V3, RecordKind::ToExclude, group, &[]),
        ];
        for report in old.into_iter().chain(new) {
            let (_, packet) = craft::report(address(from), &report).unwrap();
            assert_eq!(read(&packet).unwrap().message, Message::Report(report));
        }
    }
    let oldest = report(Version::V1, RecordKind::IsExclude, "239.1.1.1", &[]);
    let (_, packet) = craft::report(address("10.0.0.2"), &oldest).unwrap();
    assert_eq!(read(&packet).unwrap().message, Message::Report(oldest));
}

#[test]
fn refuses_what_may_come_from_elsewhere_or_is_broken() {
    let good = report(
        Version::V3,
        RecordKind::ToExclude,
        "239.1.1.1",
        &["10.9.9.9"],
    );
    let (_, packet) = craft::report(address("10.0.0.2"), &good).unwrap();
    let with = |at: usize, byte: u8| {
        let mut changed = packet.clone();
        changed[at] = byte;
        changed[10..12].fill(0);
        let sum = !packet::checksum::sum(&changed[..24]);
        changed[10..12].copy_from_slice(&sum.to_be_bytes());
        changed
    };
    assert_eq!(read(&with(8, 2)), Err(Defect::Ttl));
    assert_eq!(read(&with(9, 17)), Err(Defect::Other));
    assert_eq!(read(&with(3, 200)), Err(Defect::Malformed));
    assert_eq!(read(&with(12, 239)), Err(Defect::Sender));
    assert_eq!(read(&with(40, 1)), Err(Defect::Checksum));
    // More sources than there are bytes.
    let mut short = packet.clone();
    short[35] = 9;
    fix_checksum(&mut short);
    assert_eq!(read(&short), Err(Defect::Malformed));
    // A record of an unknown type is ignored.
    let mut unknown = packet;
    unknown[32] = 77;
    fix_checksum(&mut unknown);
    let Message::Report(unknown) = read(&unknown).unwrap().message else {
        panic!("no report");
    };
    assert_eq!(unknown.records, []);
}

#[test]
fn mld_comes_from_the_link_and_alerts_routers() {
    let good = report(Version::V3, RecordKind::ToExclude, "ff3e::1", &[]);
    let (_, far) = craft::report(address("2001:db8::2"), &good).unwrap();
    assert_eq!(read(&far), Err(Defect::Sender));
    let (_, mut without_alert) = craft::report(address("fe80::2"), &good).unwrap();
    // Router Alert becomes padding of the same length.
    without_alert[42] = 1;
    assert_eq!(read(&without_alert), Err(Defect::RouterAlert));
    let (_, mut far) = craft::report(address("fe80::2"), &good).unwrap();
    far[7] = 255;
    assert_eq!(read(&far), Err(Defect::Ttl));
}

#[test]
fn recognises_the_version_of_a_query_by_its_length() {
    let (_, mut packet) =
        write(address("10.0.0.1"), &RouterMessage::Query(query(None, &[]))).unwrap();
    packet.truncate(24 + 8);
    packet[3] = 32;
    packet[10..12].fill(0);
    let sum = !packet::checksum::sum(&packet[..24]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    fix_checksum(&mut packet);
    let version = |packet: &[u8]| match read(packet).unwrap().message {
        Message::Query(query) => query.version,
        _ => panic!("no query"),
    };
    assert_eq!(version(&packet), Version::V2);
    packet[25] = 0;
    fix_checksum(&mut packet);
    assert_eq!(version(&packet), Version::V1);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }
}
