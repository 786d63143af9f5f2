//! Messages received and queries sent on one link, second by second.

mod bounds;

use proptest::prelude::*;

use crate::codec::{Record, RecordKind};

use super::*;

const GROUP: &str = "239.1.1.1";

const SECOND: Duration = Duration::from_secs(1);

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A router at 10.0.0.9 for all groups in 239.1.1.0/24, and the time at which it starts.
fn router(may_ask: bool) -> (Router, Instant) {
    let now = Instant::now();
    let mut router = Router::default();
    router.set(
        now,
        Setting {
            own: Some(address("10.0.0.9")),
            may_ask,
            ranges: vec![Prefix::new(address("239.1.1.0"), 24)],
            ..Setting::default()
        },
    );
    router.poll(now);
    router.outbox();
    (router, now)
}

fn report(
    from: &str,
    version: Version,
    kind: RecordKind,
    group: &str,
    sources: &[&str],
) -> Received {
    let record = Record {
        kind,
        group: address(group),
        sources: sources.iter().map(|source| address(source)).collect(),
    };
    Received {
        from: address(from),
        message: Message::Report(Report {
            version,
            records: vec![record],
        }),
    }
}

fn v3(from: &str, kind: RecordKind, sources: &[&str]) -> Received {
    report(from, Version::V3, kind, GROUP, sources)
}

fn query(from: &str, group: Option<&str>) -> Received {
    Received {
        from: address(from),
        message: Message::Query(Query {
            version: Version::V3,
            group: group.map(address),
            sources: Vec::new(),
            response: SECOND * 10,
            suppress: false,
            robustness: 2,
            interval: SECOND * 125,
        }),
    }
}

fn wanted(router: &Router) -> Vec<String> {
    let mut lines = Vec::new();
    for (group, filter) in router.wanted() {
        let sources: Vec<String> = filter.sources().iter().map(ToString::to_string).collect();
        let sign = if filter.passes_others() { '-' } else { '+' };
        lines.push(format!("{group} {sign}{}", sources.join(",")));
    }
    lines
}

/// The groups and sources of the queries to send; an empty one is the general query.
fn asked(router: &mut Router) -> Vec<String> {
    let mut queries = Vec::new();
    for message in router.outbox() {
        if let RouterMessage::Query(query) = message {
            let group = query.group.map(|group| group.to_string());
            let sources: Vec<String> = query.sources.iter().map(ToString::to_string).collect();
            let text = format!("{} {}", group.unwrap_or_default(), sources.join(","));
            queries.push(text.trim().to_owned());
        }
    }
    queries
}

/// Lets time pass and polls the router whenever it is due.
fn pass(router: &mut Router, from: Instant, seconds: f64) -> Instant {
    let end = from + Duration::from_secs_f64(seconds);
    while let Some(due) = router.due().filter(|due| *due <= end) {
        router.poll(due);
    }
    router.poll(end);
    end
}

#[test]
fn a_querier_asks_who_is_left_and_lets_go_after_two_seconds() {
    let (mut router, now) = router(true);
    router.receive(now, &v3("10.0.0.2", RecordKind::ToExclude, &[]));
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    assert!(router.has_changed() && !router.has_changed());
    router.receive(now + SECOND, &v3("10.0.0.2", RecordKind::ToInclude, &[]));
    assert_eq!(asked(&mut router), ["239.1.1.1"]);
    let later = pass(&mut router, now + SECOND, 1.9);
    assert_eq!(asked(&mut router), ["239.1.1.1"]);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    pass(&mut router, later, 0.2);
    assert_eq!(wanted(&router), Vec::<String>::new());
    assert!(router.groups.is_empty() && router.due.is_empty() && router.entries == 0);
}

#[test]
fn whoever_answers_keeps_the_group() {
    let (mut router, now) = router(true);
    for host in ["10.0.0.2", "10.0.0.3"] {
        router.receive(now, &v3(host, RecordKind::ToExclude, &[]));
    }
    router.receive(now, &v3("10.0.0.2", RecordKind::ToInclude, &[]));
    router.receive(now + SECOND, &v3("10.0.0.3", RecordKind::IsExclude, &[]));
    pass(&mut router, now + SECOND, 100.0);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    let range = Prefix::new(address("239.1.1.0"), 24);
    let hosts: Vec<IpAddr> = router
        .hosts(range)
        .flat_map(|(_, hosts)| hosts.keys())
        .copied()
        .collect();
    assert_eq!(hosts, [address("10.0.0.3")]);
}

#[test]
fn a_late_process_keeps_the_group_of_a_host_that_answered_in_time() {
    let (mut router, now) = router(true);
    for host in ["10.0.0.1", "10.0.0.2"] {
        router.receive(now, &v3(host, RecordKind::ToExclude, &[]));
    }
    router.poll(now);
    assert!(router.has_changed());
    router.receive(now, &v3("10.0.0.1", RecordKind::ToInclude, &[]));
    router.poll(now);
    // The other host's answer waits in the socket, behind a report of another group.
    let late = now + 5 * SECOND;
    let other = report(
        "10.0.0.3",
        Version::V3,
        RecordKind::ToExclude,
        "239.1.1.2",
        &[],
    );
    router.receive(late, &other);
    router.receive(late, &v3("10.0.0.2", RecordKind::IsExclude, &[]));
    router.poll(late);
    assert_eq!(wanted(&router), ["239.1.1.1 -", "239.1.1.2 -"]);
    router.receive(late, &v3("10.0.0.2", RecordKind::ToInclude, &[]));
    let late = pass(&mut router, late, 1.9);
    assert_eq!(wanted(&router).len(), 2, "asked twice, a second apart");
    pass(&mut router, late, 0.2);
    assert_eq!(wanted(&router), ["239.1.1.2 -"]);
}

#[test]
fn a_silent_host_expires() {
    let (mut router, now) = router(true);
    router.receive(now, &v3("10.0.0.2", RecordKind::IsExclude, &[]));
    let later = pass(&mut router, now, 259.0);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    pass(&mut router, later, 2.0);
    assert_eq!(wanted(&router), Vec::<String>::new());
}

#[test]
fn sources_are_added_and_removed_one_by_one() {
    let (mut router, now) = router(true);
    router.receive(
        now,
        &v3("10.0.0.2", RecordKind::Allow, &["10.9.0.1", "10.9.0.2"]),
    );
    assert_eq!(wanted(&router), ["239.1.1.1 +10.9.0.1,10.9.0.2"]);
    router.receive(now, &v3("10.0.0.2", RecordKind::Block, &["10.9.0.1"]));
    assert_eq!(asked(&mut router), ["239.1.1.1 10.9.0.1"]);
    let now = pass(&mut router, now, 2.0);
    assert_eq!(asked(&mut router), ["239.1.1.1 10.9.0.1"]);
    assert_eq!(wanted(&router), ["239.1.1.1 +10.9.0.2"]);
    // Another host joins all but two sources; the first host's source stays.
    router.receive(
        now,
        &v3("10.0.0.3", RecordKind::ToExclude, &["10.9.0.2", "10.9.0.3"]),
    );
    assert_eq!(wanted(&router), ["239.1.1.1 -10.9.0.3"]);
    assert_eq!(asked(&mut router), ["239.1.1.1 10.9.0.2"]);
}

#[test]
fn a_host_of_an_old_version_is_not_cut_off_by_others() {
    let (mut router, now) = router(true);
    router.receive(
        now,
        &report("10.0.0.2", Version::V2, RecordKind::IsExclude, GROUP, &[]),
    );
    router.receive(now, &v3("10.0.0.3", RecordKind::Block, &["10.9.0.1"]));
    router.receive(now, &v3("10.0.0.3", RecordKind::ToExclude, &["10.9.0.1"]));
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    // A leave of version 2 triggers a query like any other.
    router.receive(
        now,
        &report("10.0.0.2", Version::V2, RecordKind::ToInclude, GROUP, &[]),
    );
    assert!(asked(&mut router).contains(&"239.1.1.1".to_owned()));
    // It does not with a host of version 1, which sends no leave and may stay silent.
    router.receive(
        now,
        &report("10.0.0.4", Version::V1, RecordKind::IsExclude, GROUP, &[]),
    );
    let now = pass(&mut router, now, 10.0);
    asked(&mut router);
    router.receive(
        now,
        &report("10.0.0.2", Version::V2, RecordKind::ToInclude, GROUP, &[]),
    );
    assert_eq!(asked(&mut router), Vec::<String>::new());
}

#[test]
fn the_lowest_address_is_the_querier() {
    let (mut router, now) = router(true);
    assert_eq!(router.querier(), Querier::Own(address("10.0.0.9")));
    router.receive(now, &query("10.0.0.10", None));
    assert_eq!(router.querier(), Querier::Own(address("10.0.0.9")));
    router.receive(now, &query("0.0.0.0", None));
    assert_eq!(router.querier(), Querier::Own(address("10.0.0.9")));
    router.receive(now, &query("10.0.0.3", None));
    assert_eq!(router.querier(), Querier::Other(address("10.0.0.3")));
    router.receive(now, &query("10.0.0.2", None));
    router.receive(now, &query("10.0.0.3", None));
    assert_eq!(router.querier(), Querier::Other(address("10.0.0.2")));
    let later = pass(&mut router, now, 254.0);
    assert_eq!(asked(&mut router), Vec::<String>::new());
    pass(&mut router, later, 2.0);
    assert_eq!(router.querier(), Querier::Own(address("10.0.0.9")));
    assert_eq!(asked(&mut router), [""]);
}

#[test]
fn a_group_ends_when_another_querier_gets_no_answer() {
    let (mut router, now) = router(false);
    router.receive(now, &query("10.0.0.20", None));
    router.receive(now, &v3("10.0.0.2", RecordKind::ToExclude, &[]));
    router.receive(now, &v3("10.0.0.2", RecordKind::ToInclude, &[]));
    assert_eq!(asked(&mut router), Vec::<String>::new());
    let now = pass(&mut router, now, 10.0);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    router.receive(now, &query("10.0.0.20", Some(GROUP)));
    pass(&mut router, now, 2.0);
    assert_eq!(wanted(&router), Vec::<String>::new());
}

#[test]
fn without_a_querier_the_last_host_s_leave_counts() {
    let (mut router, now) = router(false);
    for host in ["10.0.0.2", "10.0.0.3"] {
        router.receive(now, &v3(host, RecordKind::ToExclude, &[]));
    }
    router.receive(now, &v3("10.0.0.2", RecordKind::ToInclude, &[]));
    let now = pass(&mut router, now, 10.0);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    router.receive(now, &v3("10.0.0.3", RecordKind::ToInclude, &[]));
    pass(&mut router, now, 2.0);
    assert_eq!(wanted(&router), Vec::<String>::new());
    assert_eq!(asked(&mut router), Vec::<String>::new());
}

#[test]
fn a_new_querier_asks_at_once_and_then_in_the_rfc_s_rhythm() {
    let now = Instant::now();
    let mut router = Router::default();
    let setting = Setting {
        own: Some(address("10.0.0.9")),
        may_ask: true,
        ranges: Vec::new(),
        ..Setting::default()
    };
    router.set(now, setting);
    router.poll(now);
    assert_eq!(asked(&mut router).len(), 1);
    let now = pass(&mut router, now, 32.0);
    assert_eq!(asked(&mut router).len(), 1);
    pass(&mut router, now, 125.0);
    assert_eq!(asked(&mut router).len(), 1);
}

#[test]
fn restored_groups_stay_until_a_query_round_is_over() {
    let (mut router, now) = router(false);
    let before = [(address(GROUP), SourceFilter::Exclude(BTreeSet::new()))];
    router.restore(now, &before.into(), true);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    let later = pass(&mut router, now, 259.0);
    assert_eq!(wanted(&router), ["239.1.1.1 -"]);
    pass(&mut router, later, 2.0);
    assert_eq!(wanted(&router), Vec::<String>::new());
}

#[test]
fn a_switch_that_asks_for_routers_is_answered() {
    let (mut router, now) = router(false);
    let now = pass(&mut router, now, 8.0);
    router.outbox();
    let solicitation = Received {
        from: address("10.0.0.2"),
        message: Message::RouterSolicitation,
    };
    router.receive(now, &solicitation);
    router.poll(now);
    assert!(matches!(
        router.outbox()[..],
        [RouterMessage::Advertisement { .. }]
    ));
    // At most once a second.
    router.receive(now, &solicitation);
    router.poll(now);
    assert_eq!(router.outbox(), []);
}

/// Reports of a few hosts about a few sources.
fn reports() -> impl Strategy<Value = Vec<(u8, RecordKind, Vec<&'static str>)>> {
    let kind = prop_oneof![
        Just(RecordKind::ToInclude),
        Just(RecordKind::ToExclude),
        Just(RecordKind::Allow),
        Just(RecordKind::Block),
    ];
    let sources = proptest::sample::subsequence(vec!["10.9.0.1", "10.9.0.2", "10.9.0.3"], 0..=3);
    proptest::collection::vec((2_u8..5, kind, sources), 0..12)
}

proptest! {
    /// Whatever hosts report in whatever order: once all have answered the queries, the router's filter is
    /// the union of theirs.
    #[test]
    fn a_query_round_yields_the_union_of_all_hosts(reports in reports()) {
        let (mut router, mut now) = router(true);
        // What each host listens to, by the plainest reading of its reports.
        let mut hosts: BTreeMap<u8, SourceFilter> = BTreeMap::new();
        for (host, kind, sources) in reports {
            let named: BTreeSet<IpAddr> = sources.iter().map(|source| address(source)).collect();
            let none = SourceFilter::Include(BTreeSet::new());
            let previous = hosts.remove(&host).unwrap_or(none);
            let filter = match (kind, previous) {
                (RecordKind::ToInclude, _) => SourceFilter::Include(named),
                (RecordKind::ToExclude, _) => SourceFilter::Exclude(named),
                (RecordKind::Allow, SourceFilter::Include(old)) => SourceFilter::Include(&old | &named),
                (RecordKind::Allow, SourceFilter::Exclude(old)) => SourceFilter::Exclude(&old - &named),
                (_, SourceFilter::Include(old)) => SourceFilter::Include(&old - &named),
                (_, SourceFilter::Exclude(old)) => SourceFilter::Exclude(&old | &named),
            };
            router.receive(now, &v3(&format!("10.0.0.{host}"), kind, &sources));
            hosts.insert(host, filter);
            now = pass(&mut router, now, 0.1);
            // No listening host is ever cut off.
            for source in ["10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.9"].map(address) {
                let is_wanted = hosts.values().any(|filter| filter.passes(source));
                let filter = router.wanted().get(&address(GROUP));
                let passes = filter.is_some_and(|filter| filter.passes(source));
                prop_assert!(passes || !is_wanted, "{} {:?}", source, hosts);
            }
            // Each host answers the queries within a tenth of a second.
            for (host, filter) in &hosts {
                let kind = match filter {
                    SourceFilter::Include(_) => RecordKind::IsInclude,
                    SourceFilter::Exclude(_) => RecordKind::IsExclude,
                };
                let sources: Vec<String> = filter.sources().iter().map(ToString::to_string).collect();
                let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
                router.receive(now, &v3(&format!("10.0.0.{host}"), kind, &sources));
            }
        }
        pass(&mut router, now, 5.0);
        let tracked: BTreeMap<IpAddr, SourceFilter> = router
            .hosts(Prefix::host(address(GROUP)))
            .flat_map(|(_, hosts)| hosts.iter().map(|(address, host)| (*address, host.filter.clone())))
            .collect();
        let none = SourceFilter::Include(BTreeSet::new());
        hosts.retain(|_, filter| *filter != none);
        let expected: BTreeMap<IpAddr, SourceFilter> =
            hosts.into_iter().map(|(host, filter)| (address(&format!("10.0.0.{host}")), filter)).collect();
        prop_assert_eq!(tracked, expected);
    }
}
