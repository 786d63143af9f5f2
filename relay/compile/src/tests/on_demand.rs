//! Rules with outputs on demand, compiled.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rules::demand::{Groups, SourceFilter};

use super::*;

/// Listeners on eth1, each a group and its sources: `+` these, `-` all but these.
fn on_eth1(groups: &[(&str, &str)]) -> Listening {
    let parsed = groups.iter().map(|(group, filter)| {
        let sources = filter[1..]
            .split(' ')
            .filter_map(|text| text.parse::<IpAddr>().ok());
        let filter = if filter.starts_with('+') {
            SourceFilter::Include(sources.collect())
        } else {
            SourceFilter::Exclude(sources.collect())
        };
        (group.parse().unwrap(), filter)
    });
    let groups: Groups = parsed.collect();
    Listening(BTreeMap::from([(Ifindex(3), Arc::new(groups))]))
}

fn made(inputs: &[&str], outputs: &[&str], listening: &Listening) -> Compiled {
    let rules = rules(&[("a", inputs, outputs)]);
    let mut compiled = Compiled::default();
    let changes = RuleChanges::of_all(&RuleSet::default(), &rules);
    let (host, choices) = (usual(), PathChoices::default());
    let amendment = compiled.amended(&changes, (&host, listening), &support(), &choices);
    compiled.apply(amendment);
    compiled
}

/// Each route as `[SOURCE@]GROUPS` with its outputs: the destination, or `-`.
fn shown(compiled: &Compiled) -> Vec<String> {
    let routes = compiled.table.routes.iter().map(|(key, route)| {
        let source = key.source.map(|source| format!("{source}@"));
        let outputs = route.outputs.iter().map(|output| match &output.state {
            OutputState::Up(egress) => egress.destination.to_string(),
            OutputState::Down(DownReason::NotWanted) => "-".to_owned(),
            OutputState::Down(reason) => reason.as_str().to_owned(),
        });
        let outputs: Vec<String> = outputs.collect();
        format!(
            "{}{} {}",
            source.unwrap_or_default(),
            key.groups,
            outputs.join(",")
        )
    });
    routes.collect()
}

fn joined(compiled: &Compiled) -> Vec<String> {
    let inputs = first(compiled).inputs.iter();
    let joins = inputs.flat_map(|input| &input.joins).map(|join| {
        let sources: Vec<String> = join.sources.iter().map(ToString::to_string).collect();
        format!("{}@{}", sources.join(","), join.groups)
    });
    joins.collect()
}

#[test]
fn a_range_leads_to_the_groups_that_are_listened_to_and_joins_them() {
    let listening = on_eth1(&[("239.9.9.7", "-"), ("239.9.9.8", "-"), ("239.9.8.1", "-")]);
    let output = "239.9.9.0/24%eth1:6001,demand=igmp";
    let compiled = made(&["239.1.1.0/24%eth0:5001"], &[output], &listening);
    assert_eq!(
        shown(&compiled),
        [
            "239.1.1.0/24 -",
            "239.1.1.7 239.9.9.7",
            "239.1.1.8 239.9.9.8"
        ]
    );
    assert_eq!(joined(&compiled), ["@239.1.1.7", "@239.1.1.8"]);
    assert_eq!(first(&compiled).outputs[0].wanted, Some(2));
    assert_eq!(first(&compiled).troubles(), Vec::<String>::new());
    let nobody = made(&["239.1.1.0/24%eth0:5001"], &[output], &nobody());
    assert_eq!(shown(&nobody), ["239.1.1.0/24 -"]);
    assert_eq!(joined(&nobody), Vec::<String>::new());
    assert_eq!(first(&nobody).troubles(), Vec::<String>::new());
}

#[test]
fn a_single_group_needs_no_route_of_its_own() {
    let made = |listening: &Listening| {
        made(
            &["239.1.1.1%eth0:5001"],
            &["239.9.9.9%eth1:6001,demand=igmp"],
            listening,
        )
    };
    let wanted = made(&on_eth1(&[("239.9.9.9", "-")]));
    assert_eq!(shown(&wanted), ["239.1.1.1 239.9.9.9"]);
    assert_eq!(joined(&wanted), ["@239.1.1.1"]);
    assert_eq!(shown(&made(&nobody())), ["239.1.1.1 -"]);
}

#[test]
fn an_ordinary_output_is_served_always_and_all_is_joined() {
    let outputs = [
        "239.9.9.0/30%eth1:6001,demand=igmp",
        "239.8.8.0/30%eth1:6001",
    ];
    let compiled = made(
        &["239.1.1.0/30%eth0:5001"],
        &outputs,
        &on_eth1(&[("239.9.9.1", "-")]),
    );
    assert_eq!(
        shown(&compiled),
        [
            "239.1.1.0/30 -,239.8.8.0/30",
            "239.1.1.1 239.9.9.1,239.8.8.1"
        ]
    );
    assert_eq!(joined(&compiled), ["@239.1.1.0/30"]);
}

#[test]
fn receivers_choose_among_sources_if_outputs_keep_them() {
    let output = "239.9.9.0/30%eth1:6001,source=keep,demand=igmp";
    let listening = on_eth1(&[("239.9.9.1", "+10.0.0.5"), ("239.9.9.2", "-10.0.0.6")]);
    let compiled = made(&["239.1.1.0/30%eth0:5001"], &[output], &listening);
    assert_eq!(
        shown(&compiled),
        [
            "239.1.1.0/30 -",
            "239.1.1.1 -",
            "10.0.0.5@239.1.1.1 239.9.9.1",
            "239.1.1.2 239.9.9.2",
            "10.0.0.6@239.1.1.2 -",
        ]
    );
    assert_eq!(joined(&compiled), ["10.0.0.5@239.1.1.1", "@239.1.1.2"]);
}

#[test]
fn the_inputs_own_sources_remain_the_only_ones() {
    let output = "239.9.9.1%eth1:6001,source=keep,demand=igmp";
    let input = "10.0.0.5,10.0.0.6@239.1.1.1%eth0:5001";
    let compiled = made(
        &[input],
        &[output],
        &on_eth1(&[("239.9.9.1", "+10.0.0.5 10.0.0.7")]),
    );
    assert_eq!(
        shown(&compiled),
        ["10.0.0.5@239.1.1.1 239.9.9.1", "10.0.0.6@239.1.1.1 -"]
    );
    assert_eq!(joined(&compiled), ["10.0.0.5@239.1.1.1"]);
}

#[test]
fn a_source_that_is_set_has_to_be_one_that_is_listened_to() {
    for (filter, leads) in [
        ("+10.0.1.1", true),
        ("+10.0.0.5", false),
        ("-10.0.1.1", false),
        ("-", true),
    ] {
        let listening = on_eth1(&[("239.9.9.9", filter)]);
        let output = "239.9.9.9%eth1:6001,demand=igmp";
        let compiled = made(&["239.1.1.1%eth0:5001"], &[output], &listening);
        let expected = if leads {
            "239.1.1.1 239.9.9.9"
        } else {
            "239.1.1.1 -"
        };
        assert_eq!(shown(&compiled), [expected], "{filter}");
    }
}

#[test]
fn a_range_to_one_group_is_requested_whole() {
    let output = "239.9.9.9%eth1:6001,source=keep,demand=igmp";
    let listening = on_eth1(&[("239.9.9.9", "-10.0.0.6")]);
    let compiled = made(&["239.1.1.0/30%eth0:5001"], &[output], &listening);
    assert_eq!(
        shown(&compiled),
        ["239.1.1.0/30 239.9.9.9", "10.0.0.6@239.1.1.0/30 -"]
    );
    assert_eq!(joined(&compiled), ["@239.1.1.0/30"]);
}

#[test]
fn a_range_too_large_to_join_is_joined_where_it_is_wanted() {
    let output = "239.9.0.0/16%eth1:6001,demand=igmp";
    let compiled = made(
        &["239.1.0.0/16%eth0:5001"],
        &[output],
        &on_eth1(&[("239.9.3.4", "-")]),
    );
    assert_eq!(joined(&compiled), ["@239.1.3.4"]);
    assert_eq!(first(&compiled).inputs[0].pending, None);
}

#[test]
fn an_address_of_this_host_is_relayed_on_demand() {
    let output = "239.9.9.9%eth1:6001,demand=igmp";
    let input = "10.9.9.0/24@10.0.0.1%eth0:5001";
    let wanted = made(&[input], &[output], &on_eth1(&[("239.9.9.9", "-")]));
    assert_eq!(shown(&wanted), ["10.9.9.0/24@10.0.0.1 239.9.9.9"]);
    assert_eq!(
        shown(&made(&[input], &[output], &nobody())),
        ["10.9.9.0/24@10.0.0.1 -"]
    );
}

#[test]
fn an_output_that_is_down_requests_nothing() {
    let output = "239.9.9.0/24%eth9:6001,demand=igmp";
    let compiled = made(
        &["239.1.1.0/24%eth0:5001"],
        &[output],
        &on_eth1(&[("239.9.9.7", "-")]),
    );
    assert_eq!(shown(&compiled), ["239.1.1.0/24 interface_missing"]);
    assert_eq!(joined(&compiled), Vec::<String>::new());
    assert_eq!(first(&compiled).troubles().len(), 1);
}

/// Listeners on eth1, to few groups and sources.
fn listeners() -> impl Strategy<Value = Listening> {
    let sources = proptest::sample::subsequence(vec!["10.0.0.5", "10.0.0.6", "10.0.1.1"], 0..=3);
    let filter = (any::<bool>(), sources).prop_map(|(includes, sources)| {
        format!("{}{}", if includes { '+' } else { '-' }, sources.join(" "))
    });
    proptest::collection::btree_map(0_u8..4, filter, 0..4).prop_map(|groups| {
        let named = |n: &u8| format!("239.9.9.{n}");
        let groups: Vec<(String, String)> = groups
            .iter()
            .map(|(group, filter)| (named(group), filter.clone()))
            .collect();
        let groups: Vec<(&str, &str)> = groups
            .iter()
            .map(|(group, filter)| (group.as_str(), filter.as_str()))
            .collect();
        on_eth1(&groups)
    })
}

proptest! {
    /// A packet's route leads where a listener wants it from its source, and nowhere else.
    #[test]
    fn each_packet_goes_to_its_listeners(listening in listeners(), keeps: bool, single: bool) {
        let option = if keeps { ",source=keep" } else { "" };
        let to = if single { "239.9.9.1" } else { "239.9.9.0/30" };
        let output = format!("{to}%eth1:6001{option},demand=igmp");
        let compiled = made(&["239.1.1.0/30%eth0:5001"], &[&output], &listening);
        for (group, source) in (0_u8..4).flat_map(|g| [(g, "10.0.0.5"), (g, "10.0.0.7")]) {
            let to: IpAddr = [239, 9, 9, if single { 1 } else { group }].into();
            let from: IpAddr = if keeps { source } else { "10.0.1.1" }.parse().unwrap();
            let filter = listening.0[&Ifindex(3)].get(&to);
            let wanted = filter.is_some_and(|filter| filter.passes(from));
            let source = Prefix::host(source.parse().unwrap());
            let takes = |key: &&RouteKey| {
                key.groups.contains([239, 1, 1, group].into())
                    && key.source.is_none_or(|own| own == source)
            };
            // Exact sources before any, longer prefixes before shorter.
            let keys = compiled.table.routes.keys().filter(takes);
            let key = keys.max_by_key(|key| (key.source.is_some(), key.groups.length)).unwrap();
            let leads = matches!(compiled.table.routes[key].outputs[0].state, OutputState::Up(_));
            prop_assert_eq!(leads, wanted, "{:?} {}", key, group);
        }
    }

    /// The table depends only on the current listeners, not on previous ones.
    #[test]
    fn a_change_of_listeners_results_in_the_same_table_as_compiling_anew(old in listeners(), new in listeners()) {
        let outputs = ["239.9.9.0/30%eth1:6001,source=keep,demand=igmp", "239.8.8.8%eth1:6001"];
        let rules = rules(&[("a", &["239.1.1.0/30%eth0:5001"], &outputs)]);
        let (host, choices) = (usual(), PathChoices::default());
        let none = RuleSet::default();
        let mut compiled = Compiled::default();
        for (changes, listening) in [
            (RuleChanges::of_all(&none, &rules), &old),
            (RuleChanges::of_all(&rules, &rules), &new),
        ] {
            let amendment = compiled.amended(&changes, (&host, listening), &support(), &choices);
            compiled.apply(amendment);
        }
        let anew = made(&["239.1.1.0/30%eth0:5001"], &outputs, &new);
        prop_assert_eq!(compiled, anew);
    }
}
