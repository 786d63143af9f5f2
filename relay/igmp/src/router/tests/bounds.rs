//! Limits on what hosts may report, and which hosts may.

use super::*;

#[test]
fn a_flood_is_refused_and_counted() {
    let (mut router, now) = router(true);
    let setting = Setting {
        ranges: vec![Prefix::new(address("239.2.0.0"), 16)],
        ..router.setting.clone()
    };
    router.set(now, setting);
    for number in 0..GROUPS_MAX as u32 + 100 {
        let group = std::net::Ipv4Addr::from(0xef02_0000 + number).to_string();
        let kind = RecordKind::ToExclude;
        router.receive(now, &report("10.0.0.2", Version::V3, kind, &group, &[]));
    }
    assert_eq!((router.wanted().len(), router.refused()), (GROUPS_MAX, 100));
    let sources: Vec<String> = (0..200).map(|n| format!("10.9.0.{n}")).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let kind = RecordKind::Allow;
    router.receive(
        now,
        &report("10.0.0.2", Version::V3, kind, "239.2.0.1", &sources),
    );
    assert_eq!(
        router.refused(),
        100 + 200 - crate::group::SOURCES_MAX as u64
    );
}

#[test]
fn groups_that_no_output_leads_to_take_half_of_the_room_at_most() {
    let (mut router, now) = router(true);
    for number in 0..GROUPS_MAX as u32 {
        let group = std::net::Ipv4Addr::from(0xef02_0000 + number).to_string();
        let kind = RecordKind::ToExclude;
        router.receive(now, &report("10.0.0.2", Version::V3, kind, &group, &[]));
    }
    router.receive(now, &v3("10.0.0.2", RecordKind::ToExclude, &[]));
    assert_eq!(router.wanted().len(), GROUPS_MAX / 2 + 1);
    assert!(router.wanted().contains_key(&address(GROUP)));
}

#[test]
fn groups_that_no_output_leads_to_are_tracked_by_queriers_only() {
    let (mut router, now) = router(false);
    let kind = RecordKind::ToExclude;
    router.receive(
        now,
        &report("10.0.0.2", Version::V3, kind, "239.255.255.250", &[]),
    );
    assert!(router.groups.is_empty());
}

#[test]
fn joins_without_permission_or_above_the_limit_are_refused_and_counted() {
    let (mut router, now) = router(true);
    let range = Prefix::new(address("239.1.1.0"), 24);
    let hosts = |text: &str, length| vec![Prefix::new(address(text), length)];
    let setting = Setting {
        listeners: vec![(
            range,
            Admission {
                allow: hosts("10.0.0.0", 24),
                deny: hosts("10.0.0.66", 32),
                groups_each: Some(2),
                groups_all: Some(3),
            },
        )],
        ..router.setting.clone()
    };
    router.set(now, setting);
    let mut ask = |from: &str, group: &str, expected: usize, barred: u64| {
        let joins = report(from, Version::V3, RecordKind::ToExclude, group, &[]);
        router.receive(now, &joins);
        assert_eq!(
            (router.wanted().len(), router.barred()),
            (expected, barred),
            "{from} {group}"
        );
    };
    ask("10.0.1.1", "239.1.1.1", 0, 1);
    ask("10.0.0.66", "239.1.1.1", 0, 2);
    ask("10.0.0.1", "239.1.1.1", 1, 2);
    ask("10.0.0.1", "239.1.1.2", 2, 2);
    // A third group for one host, then one that it has joined already.
    ask("10.0.0.1", "239.1.1.3", 2, 3);
    ask("10.0.0.1", "239.1.1.2", 2, 3);
    ask("10.0.0.2", "239.1.1.3", 3, 3);
    // A fourth group for all hosts, then one that exists.
    ask("10.0.0.3", "239.1.1.4", 3, 4);
    ask("10.0.0.3", "239.1.1.1", 3, 4);
    // A leave makes room.
    let leaves = report(
        "10.0.0.1",
        Version::V3,
        RecordKind::ToInclude,
        "239.1.1.2",
        &[],
    );
    router.receive(now, &leaves);
    let later = pass(&mut router, now, 3.0);
    let joins = report(
        "10.0.0.1",
        Version::V3,
        RecordKind::ToExclude,
        "239.1.1.4",
        &[],
    );
    router.receive(later, &joins);
    assert_eq!((router.wanted().len(), router.barred()), (3, 4));
}
