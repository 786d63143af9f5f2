//! Rules that reflect, compiled.

use super::*;

fn reflecting(group: &str, interfaces: &[&str]) -> RuleDocument {
    RuleDocument {
        name: interfaces.join("-"),
        mode: Some("reflect".to_owned()),
        interfaces: interfaces.iter().map(ToString::to_string).collect(),
        group: Some(group.to_owned()),
        ..Default::default()
    }
}

#[test]
fn what_comes_by_an_interface_of_a_rule_that_reflects_leaves_by_all_others() {
    let mut host = usual();
    let third = link(4, "eth2", "10.0.2.1");
    host.interfaces.insert(third.index, third);
    for group in ["224.0.0.251:5353", "239.255.255.250:1900"] {
        let documents = [reflecting(group, &["eth0", "eth1", "eth2"])];
        let rules = RuleSet::from_documents(&documents, Policy::default()).unwrap();
        let compiled = compile(&rules, &host, &support(), &PathChoices::default());
        let routes = compiled.table.routes.iter().map(|(key, route)| {
            let outputs = route.outputs.iter().map(|output| match &output.state {
                OutputState::Up(egress) => (
                    output.index,
                    egress.interface.0,
                    egress.source.unwrap().to_string(),
                ),
                OutputState::Down(reason) => panic!("{reason:?}"),
            });
            assert_eq!(route.merge.as_ref().unwrap().how.by, rules::merge::By::Once);
            (key.ingress.0, outputs.collect::<Vec<_>>())
        });
        let by = |index: u32| (u64::from(index), index + 2, format!("10.0.{index}.1"));
        assert_eq!(
            routes.collect::<Vec<_>>(),
            [
                (2, vec![by(1), by(2)]),
                (3, vec![by(0), by(2)]),
                (4, vec![by(0), by(1)])
            ]
        );
    }
    // The output to the missing interface is down, and the others are served.
    host.interfaces.remove(&Ifindex(4));
    let documents = [reflecting("224.0.0.251:5353", &["eth0", "eth1", "eth2"])];
    let rules = RuleSet::from_documents(&documents, Policy::default()).unwrap();
    let compiled = compile(&rules, &host, &support(), &PathChoices::default());
    assert_eq!(compiled.table.routes.len(), 2);
    assert_eq!(first(&compiled).troubles().len(), 2);
    assert!(
        compiled
            .table
            .routes
            .values()
            .all(|route| route.outputs.len() == 2)
    );
}

#[test]
fn two_rules_do_not_reflect_the_same_group_on_one_interface() {
    let refused = |rules: &[&[&str]]| {
        let documents: Vec<RuleDocument> = rules
            .iter()
            .map(|interfaces| reflecting("224.0.0.251:5353", interfaces))
            .collect();
        RuleSet::from_documents(&documents, Policy::default())
            .err()
            .map(|problems| problems.to_string())
    };
    let twice = refused(&[&["eth0", "eth1"], &["eth1", "eth0"]]).unwrap();
    assert_eq!(
        twice.lines().next().unwrap(),
        "rule \"eth1-eth0\": input 224.0.0.251%eth1:5353: is an input of rule \"eth0-eth1\" already; \
         a stream belongs to one rule: where both reflect it, name all interfaces in one of them"
    );
    let chain: [&[&str]; 3] = [&["eth0", "eth1"], &["eth1", "eth2"], &["eth2", "eth0"]];
    assert_eq!(refused(&chain).unwrap().lines().count(), 3);
    assert_eq!(refused(&[&["eth0", "eth1"], &["eth2", "eth3"]]), None);
}

#[test]
fn isolated_interfaces_receive_from_the_others_and_not_from_each_other() {
    let mut host = usual();
    let third = link(4, "eth2", "10.0.2.1");
    host.interfaces.insert(third.index, third);
    for (link, network) in [(2, 0), (3, 1), (4, 2)] {
        let link = host.interfaces.get_mut(&Ifindex(link)).unwrap();
        link.broadcasts = vec![[10, 0, network, 255].into()];
    }
    for group in ["239.255.255.250:1900", "255.255.255.255:9302"] {
        let document = RuleDocument {
            isolated: vec!["eth1".to_owned(), "eth2".to_owned()],
            ..reflecting(group, &["eth0", "eth1", "eth2"])
        };
        let rules = RuleSet::from_documents(&[document], Policy::default()).unwrap();
        let compiled = compile(&rules, &host, &support(), &PathChoices::default());
        let is_broadcast = group.starts_with("255");
        for (key, route) in &compiled.table.routes {
            let outputs = route.outputs.iter().map(|output| match &output.state {
                OutputState::Up(egress) => {
                    assert!(egress.answers);
                    let header = if is_broadcast {
                        LinkHeader::Neighbour {
                            source: Mac([2, 0, 0, 0, 0, egress.interface.0 as u8]),
                            destination: Mac([0xff; 6]),
                        }
                    } else {
                        LinkHeader::Group {
                            source: Mac([2, 0, 0, 0, 0, egress.interface.0 as u8]),
                        }
                    };
                    assert_eq!(egress.link, header);
                    egress.interface.0
                }
                OutputState::Down(reason) => panic!("{reason:?}"),
            });
            let expected: &[u32] = if key.ingress.0 == 2 { &[3, 4] } else { &[2] };
            assert_eq!(outputs.collect::<Vec<_>>(), expected, "{key:?}");
        }
        // Broadcasts to each of the networks and to all hosts, by each interface.
        let routes = if is_broadcast { 4 * 3 } else { 3 };
        assert_eq!(compiled.table.routes.len(), routes);
    }
}

#[test]
fn reflecting_among_too_many_interfaces_takes_the_userspace_path() {
    let names: Vec<String> = (0..300).map(|number| format!("eth{number}")).collect();
    let links: Vec<Interface> = names
        .iter()
        .zip(2..)
        .map(|(name, index)| link(index, name, "10.0.0.1"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (count, path) in [(256, Path::Kernel), (257, Path::Userspace)] {
        let mut document = reflecting("239.255.255.250:1900", &names[..count]);
        document.name = "many".to_owned();
        let rules = RuleSet::from_documents(&[document], Policy::default()).unwrap();
        let compiled = compile(&rules, &host(&links), &support(), &PathChoices::default());
        assert_eq!(first(&compiled).placement.path, path, "{count}");
    }
}
