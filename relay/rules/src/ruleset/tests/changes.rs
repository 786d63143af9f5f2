//! How a set changes.

use super::*;

#[test]
fn changes_as_a_whole_or_not_at_all() {
    let before = set(&[1, 2, 3]);
    let change = |remove: &[&str], add| {
        let remove: Vec<String> = remove.iter().map(ToString::to_string).collect();
        before.changed(&remove, add, Policy::default())
    };
    assert_eq!(
        names(&change(&["r2"], vec![numbered(4)]).unwrap()),
        ["r1", "r3", "r4"]
    );
    let mut other = numbered(2);
    other.inputs = numbered(5).inputs;
    let replaced = change(&["r2"], vec![other.clone()]).unwrap();
    assert_eq!(names(&replaced), ["r1", "r2", "r3"]);
    assert_eq!(replaced.get("r2"), Some(&other));

    assert_eq!(
        change(&["x", "r9"], vec![]).unwrap_err().to_string(),
        "no rule \"x\" (have: r1, r2, r3)\nno rule \"r9\" (have: r1, r2, r3)"
    );
    assert_eq!(
        change(&[], vec![numbered(1)]).unwrap_err().to_string(),
        "rule \"r1\": is there already; remove it first or choose another name"
    );
    other.name = "new".to_owned();
    other.inputs = numbered(1).inputs;
    assert!(matches!(
        change(&[], vec![other]),
        Err(ChangeError::Invalid(_))
    ));
}

#[test]
fn finds_mistyped_names() {
    let set = RuleSet::new(
        vec![rule("studio", "239.1.1.1%eth0:1", "10.9.9.9:1")],
        Policy::default(),
    )
    .unwrap();
    for name in ["stduio", "Studio", "studi", "studioo", "sutido"] {
        let error = set.require(&[name.to_owned()]).unwrap_err().to_string();
        let guessed = error == format!("no rule {name:?}; did you mean \"studio\"?");
        assert_eq!(guessed, name != "sutido", "{error}");
    }
}

#[test]
fn adds_removes_and_replaces_single_rules() {
    let change = |set: &RuleSet, remove: &[&str], add| {
        let remove: Vec<String> = remove.iter().map(ToString::to_string).collect();
        set.changed(&remove, add, Policy::default())
    };
    let set = change(&set(&[1, 2]), &[], vec![numbered(3)]).unwrap();
    let set = change(&set, &["r1"], vec![]).unwrap();
    assert_eq!(names(&set), ["r2", "r3"]);
    assert_eq!(set.get("r3"), Some(&numbered(3)));
    let mut other = numbered(3);
    other.outputs = numbered(7).outputs;
    let set = change(&set, &["r3"], vec![other.clone()]).unwrap();
    assert_eq!(set.iter().nth(1), Some(&other));
    assert!(change(&set, &["r1"], vec![]).is_err());
}

/// A vacant slot is reserved for the rule that returns to it, even if others are added, too.
#[test]
fn appends_new_rules_after_all_existing_ones() {
    let before = set(&[1, 2]);
    let mut other = numbered(2);
    other.outputs = numbered(7).outputs;
    let add = vec![numbered(3), other];
    let after = before.changed(&["r2".to_owned()], add, Policy::default());
    assert_eq!(names(&after.unwrap()), ["r1", "r2", "r3"]);
}

#[test]
fn reports_added_removed_and_changed_rules() {
    let old = set(&[1, 2, 3]);
    let mut other = numbered(3);
    other.outputs = numbered(7).outputs;
    let rules = vec![numbered(4), other, numbered(1)];
    let new = RuleSet::new(rules, Policy::default()).unwrap();
    let diff = diff(&old, &new);
    assert_eq!(diff.added, ["r4"]);
    assert_eq!(diff.removed, ["r2"]);
    assert_eq!(diff.changed, ["r3"]);
    assert!(super::diff(&old, &old).is_empty());
}

proptest! {
    #[test]
    fn never_panics_on_rules_that_make_no_sense(
        rules in proptest::collection::vec(crate::samples::rule(), 0..6)
    ) {
        match RuleSet::new(rules, Policy::default()) {
            Ok(set) => {
                let documents = set.to_documents();
                let again = RuleSet::from_documents(&documents, Policy::default());
                prop_assert_eq!(again.unwrap(), set);
            }
            Err(problems) => prop_assert!(problems.to_string().starts_with("rule \"")),
        }
    }

    #[test]
    fn judges_a_change_as_it_would_the_whole(
        changes in proptest::collection::vec(small_change(), 1..12)
    ) {
        let mut before = RuleSet::default();
        for (remove, add) in changes {
            let is_there = |name: &String| before.get(name).is_some();
            let remove: Vec<String> = remove.into_iter().filter(is_there).collect();
            let changed = before.changed(&remove, add.clone(), Policy::default());
            if let Err(ChangeError::AlreadyThere(_)) = &changed {
                continue;
            }
            let (rearranged, _) = before.rearranged(&remove, add).unwrap();
            let rules: Vec<Rule> = rearranged.iter().cloned().collect();
            let whole = RuleSet::new(rules, Policy::default());
            prop_assert_eq!(&changed, &whole.map_err(ChangeError::from));
            let Ok(after) = changed else { continue };
            check(&after);
            check_changes(&before, &after);
            before = after;
        }
    }
}

/// Checks that a set's indices are as if they had been built anew.
fn check(set: &RuleSet) {
    let slots = set
        .rules()
        .iter()
        .map(|(slot, rule)| (rule.name.as_str(), *slot));
    for (position, (name, slot)) in slots.enumerate() {
        assert_eq!(set.slot(name), Some(slot));
        assert_eq!(set.position(slot), position);
    }
    assert_eq!(set.slots.len(), set.len());
    assert_eq!(
        set.endpoints(),
        set.iter().map(set::endpoints).sum::<usize>()
    );
    let mut index = InputIndex::default();
    for (slot, rule) in set.rules().iter() {
        index.insert(*slot, rule);
    }
    assert_eq!(set.index, index);
}

fn check_changes(old: &RuleSet, new: &RuleSet) {
    let is_in = |set: &RuleSet, (slot, rule): &(Slot, Arc<Rule>)| {
        let other = set.rules().get(slot);
        other.is_some_and(|other| Arc::ptr_eq(other, rule))
    };
    let lacking = |from: &RuleSet, other: &RuleSet| {
        let all = from.rules().iter().cloned();
        all.filter(|entry| !is_in(other, entry)).collect::<Vec<_>>()
    };
    let changes = RuleChanges::between(old, new);
    assert_eq!(changes.removed, lacking(old, new));
    assert_eq!(changes.added, lacking(new, old));
}

/// Removals and additions among few names, groups and ports, so that they meet.
fn small_change() -> impl Strategy<Value = (Vec<String>, Vec<Rule>)> {
    let name = || "[a-f]";
    let input = || {
        (0_u8..8, 29_u8..=32, "eth[01*]", 1_u16..4, 0_u16..2).prop_map(
            |(group, length, interface, port, more)| {
                let groups = crate::net::Prefix::new([239, 0, 0, group].into(), length);
                format!("{groups}%{interface}:{port}-{}", port + more)
            },
        )
    };
    let source = prop_oneof![Just(""), Just("10.0.0.5@")];
    let output = (0_u8..8, 0_u8..2, 1_u16..6)
        .prop_map(|(group, interface, port)| format!("239.0.0.{group}%eth{interface}:{port}"));
    let rule = (name(), source, input(), output).prop_map(|(name, source, input, output)| {
        rule(&name, &format!("{source}{input}"), &output)
    });
    let remove =
        proptest::collection::btree_set(name(), 0..4).prop_map(|names| names.into_iter().collect());
    (remove, proptest::collection::vec(rule, 0..3))
}

#[test]
fn checks_only_the_rule_that_is_added() {
    // Each rule's outputs feed nothing; only the new one is checked.
    let rules = (0..2000).map(|n| {
        let input = format!("239.1.1.1%eth0:{}", n + 1);
        rule(
            &format!("r{n}"),
            &input,
            &format!("239.2.1.1%eth1:{}", n + 1),
        )
    });
    let set = RuleSet::new(rules.collect(), Policy::default()).unwrap();
    let add = rule("new", "239.1.1.1%eth0:9000", "239.2.1.1%eth1:9000");
    let changed = set
        .changed(&["r7".to_owned()], vec![add], Policy::default())
        .unwrap();
    let changes = RuleChanges::between(&set, &changed);
    let slots = |rules: &[(Slot, Arc<Rule>)]| rules.iter().map(|(p, _)| p.0).collect::<Vec<_>>();
    assert_eq!(slots(&changes.removed), [7]);
    assert_eq!(slots(&changes.added), [2000]);
    assert_eq!(changed.get("r7"), None);
    assert_eq!(diff(&set, &changed).added, ["new"]);
}
