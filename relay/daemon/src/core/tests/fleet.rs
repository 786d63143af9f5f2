//! Rules of a fleet beside those of the host.

use super::*;

fn of_share(share: &str, document: RuleDocument) -> RuleDocument {
    RuleDocument {
        share: Some(share.to_owned()),
        ..document
    }
}

fn install(core: &mut Core, rules: &[RuleDocument]) -> BTreeMap<String, String> {
    let (set, refused) = core.with_fleet(rules);
    let settings = Arc::clone(core.settings());
    let step = core.step(Arc::new(set), settings, two_links(), &BTreeSet::new());
    core.accept(step);
    refused
}

fn names(core: &Core) -> Vec<&str> {
    core.rules().names().collect()
}

#[test]
fn rules_of_a_fleet_are_added_and_removed_beside_those_of_the_host() {
    let mut core = core();
    execute(&mut core, &add(vec![plain("own", 1)]), &two_links());
    let a = of_share("a", plain("a1", 2));
    let b = of_share("b", plain("b1", 3));
    assert_eq!(install(&mut core, &[a.clone(), b]), BTreeMap::new());
    assert_eq!(names(&core), ["own", "a1", "b1"]);
    let generation = core.generation();
    assert_eq!(
        install(&mut core, &[a.clone(), of_share("b", plain("b1", 3))]),
        BTreeMap::new()
    );
    assert_eq!(core.generation(), generation, "nothing changed");
    install(&mut core, &[a]);
    assert_eq!(names(&core), ["own", "a1"]);
    // Another configuration of the host does not affect them.
    let list = RuleList {
        rules: vec![plain("other", 4)],
        ..RuleList::default()
    };
    execute(&mut core, &Request::Replace(Box::new(list)), &two_links());
    assert_eq!(names(&core), ["other", "a1"]);
}

#[test]
fn an_invalid_share_is_refused_with_its_reason_and_the_others_are_added() {
    let mut core = core().at_most(4, 100);
    execute(&mut core, &add(vec![plain("own", 1)]), &two_links());
    let shares = [
        of_share("good", plain("g1", 2)),
        of_share("name", plain("own", 3)),
        of_share("name", plain("n2", 4)),
        of_share("key", plain("k1", 1)),
        of_share("text", rule("t1", 5, "nowhere")),
        of_share("late", plain("l1", 6)),
        of_share("much", plain("m1", 7)),
        of_share("much", plain("m2", 8)),
    ];
    let refused = install(&mut core, &shares);
    assert_eq!(names(&core), ["own", "g1", "l1"]);
    let why = |share: &str, word: &str| assert!(refused[share].contains(word), "{refused:?}");
    why("name", "\"own\": is there already");
    why("key", "own");
    why("text", "nowhere");
    why("much", "5 rules, of at most 4");
    assert_eq!(refused.len(), 4, "{refused:?}");
}

#[test]
fn only_the_fleet_changes_its_rules() {
    let mut core = core();
    install(&mut core, &[of_share("a", plain("a1", 2))]);
    let remove = Request::Change(Transaction {
        remove: vec!["a1".to_owned()],
        ..Transaction::default()
    });
    for request in [remove, add(vec![plain("a1", 3)])] {
        let refused = core.resolve(&request).unwrap_err();
        assert!(refused.to_string().contains("mcr fleet apply"), "{refused}");
        assert_eq!(ApiError::from(refused).code, Code::Invalid);
    }
    let shared = vec![of_share("b", plain("b1", 3))];
    let list = RuleList {
        rules: shared.clone(),
        ..RuleList::default()
    };
    for request in [add(shared), Request::Replace(Box::new(list))] {
        let refused = core.resolve(&request).unwrap_err().to_string();
        assert!(
            refused.contains("only rules of a fleet have a share"),
            "{refused}"
        );
    }
}
