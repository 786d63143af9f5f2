//! Which packets are recognised as sent by this host, so that they must have looped.

use super::*;

#[test]
fn sources_that_rules_with_a_share_set_are_own_addresses() {
    let output = "239.10.1.1%eth1:6001,source=192.0.2.9";
    let shared = |name: &str, port: u16, share: Option<&str>| {
        let plain = rules(&[(name, &[&format!("239.1.1.1%eth0:{port}")], &[output])]);
        Rule {
            share: share.map(str::to_owned),
            ..plain.get(name).unwrap().clone()
        }
    };
    let set = |rules: Vec<Rule>| RuleSet::new(rules, Policy::default()).unwrap();
    let choices = PathChoices::default();
    let address: IpAddr = "192.0.2.9".parse().unwrap();
    let own = |compiled: &Compiled| compiled.table.own_addresses.betray(Ifindex(2), address);
    let steps = [
        (vec![shared("a", 1, None)], false),
        (vec![shared("a", 1, Some("x"))], true),
        (
            vec![shared("a", 1, Some("x")), shared("b", 2, Some("y"))],
            true,
        ),
        (vec![shared("b", 2, Some("y"))], true),
        (vec![shared("b", 2, None)], false),
    ];
    let mut compiled = Compiled::default();
    let mut before = RuleSet::default();
    for (step, is_own) in steps {
        let rules = set(step);
        let fresh = compile(&rules, &usual(), &support(), &choices);
        let changes = RuleChanges::between(&before, &rules);
        let amendment = compiled.amended(&changes, (&usual(), &nobody()), &support(), &choices);
        compiled.apply(amendment);
        assert_eq!(compiled, fresh);
        assert_eq!(own(&compiled), is_own, "{:?}", rules.get("a"));
        let shares = compiled.table.routes.values().map(|route| &route.share);
        assert!(shares.clone().all(|share| share.is_some() == is_own));
        before = rules;
    }
}

#[test]
fn a_packet_from_an_address_of_this_host_has_looped_whatever_interface_has_it() {
    let own = one(INPUT, OUTPUT, &usual()).table.own_addresses;
    let betray = |ingress, address: &str| own.betray(Ifindex(ingress), address.parse().unwrap());
    for address in [
        "10.0.0.1",
        "10.0.1.1",
        "10.0.1.2",
        "2001:db8::1",
        "127.0.0.1",
    ] {
        assert!(betray(2, address), "{address}");
        // Packets of this host's own programs arrive by it.
        assert!(!betray(1, address), "{address} by lo");
    }
    assert!(!betray(2, "10.0.0.2"));
    let none = compile(
        &RuleSet::default(),
        &usual(),
        &support(),
        &PathChoices::default(),
    );
    assert_eq!(none.table.own_addresses, OwnAddresses::default());
}

#[test]
fn an_address_of_another_vrf_indicates_no_loop() {
    let output: &[&str] = &["239.10.1.1%eth1:6001,source=192.0.2.9"];
    let set = rules(&[("a", &[INPUT], output)]);
    let mut rule = set.get("a").unwrap().clone();
    rule.share = Some("x".to_owned());
    let set = RuleSet::new(vec![rule], Policy::default()).unwrap();
    let own = compile(&set, &with_vrfs(), &support(), &PathChoices::default())
        .table
        .own_addresses;
    for (ingress, address, is_own) in [
        (2, "10.0.0.1", true),
        (2, "10.0.1.1", false),
        (3, "10.0.1.1", true),
        (3, "10.0.0.1", false),
        // The source of a share is this host's or another holder's on any interface.
        (2, "192.0.2.9", true),
        (3, "192.0.2.9", true),
        (4, "192.0.2.9", true),
    ] {
        let betrays = own.betray(Ifindex(ingress), address.parse().unwrap());
        assert_eq!(betrays, is_own, "{address} by {ingress}");
    }
}

#[test]
fn a_link_local_address_indicates_a_loop_on_its_interface_alone() {
    let mut host = with_vrfs();
    for (index, address) in [(2, "fe80::2"), (3, "fe80::3"), (3, "169.254.0.3")] {
        let link = host.interfaces.get_mut(&Ifindex(index)).unwrap();
        link.addresses.push(address.parse().unwrap());
    }
    let set = rules(&[("a", &[INPUT], &[OUTPUT])]);
    let compiled = compile(&set, &host, &support(), &PathChoices::default());
    let own = &compiled.table.own_addresses;
    for (ingress, address, is_own) in [
        (2, "fe80::2", true),
        (3, "fe80::2", false),
        (5, "fe80::2", false),
        (3, "169.254.0.3", true),
        (2, "169.254.0.3", false),
        (3, "10.0.1.1", true),
    ] {
        let betrays = own.betray(Ifindex(ingress), address.parse().unwrap());
        assert_eq!(betrays, is_own, "{address} by {ingress}");
    }
}

#[test]
fn own_addresses_follow_the_host_alone() {
    let set = rules(&[("a", &[INPUT], &[OUTPUT])]);
    let mut compiled = compile(&set, &usual(), &support(), &PathChoices::default());
    let again = RuleChanges::of_all(&set, &set);
    let mut own = |host: &Host| {
        let amendment = compiled.amended(
            &again,
            (host, &nobody()),
            &support(),
            &PathChoices::default(),
        );
        let own = amendment.diff.own.clone();
        compiled.apply(amendment);
        own
    };
    let mut host = usual();
    host.interfaces.get_mut(&Ifindex(3)).unwrap().up = false;
    assert_eq!(own(&host), None);
    let address = "10.7.7.7".parse().unwrap();
    host.interfaces
        .get_mut(&Ifindex(3))
        .unwrap()
        .addresses
        .push(address);
    assert!(own(&host).is_some_and(|own| own.betray(Ifindex(2), address)));
    assert_eq!(own(&host), None);
    host.interfaces
        .get_mut(&Ifindex(3))
        .unwrap()
        .addresses
        .pop();
    assert!(own(&host).is_some_and(|own| !own.betray(Ifindex(2), address)));
}
