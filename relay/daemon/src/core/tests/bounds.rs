//! Limits on what clients may add.

use super::*;

/// Their interfaces are missing, so that no path's own limit is reached first.
#[test]
fn clients_add_no_more_rules_than_permitted() {
    let mut core = core().at_most(2, 100);
    let nowhere = host(&[]);
    execute(
        &mut core,
        &add(vec![plain("a", 1), plain("b", 2)]),
        &nowhere,
    );
    let refusal = ApiError::from(core.resolve(&add(vec![plain("c", 3)])).unwrap_err());
    assert_eq!(refusal.code, Code::Unavailable);
    let expected = "3 rules, of at most 2: ";
    assert!(refusal.message.starts_with(expected), "{}", refusal.message);
    assert!(refusal.message.contains("--max-rules"));
    let set = vec![plain("a", 1), plain("b", 2), plain("c", 3)];
    assert!(core.resolve(&replace(set, None)).is_err());
    let instead = Request::Change(Transaction {
        remove: vec!["a".to_owned()],
        add: vec![plain("c", 3)],
        ..Transaction::default()
    });
    assert!(core.resolve(&instead).is_ok());
}

#[test]
fn clients_add_no_more_outputs_than_permitted() {
    let core = core().at_most(1, 100);
    let with = |outputs: u8| {
        let outputs =
            (1..=outputs).map(|n| OutputDocument::Text(format!("239.10.1.{n}%eth1:6001")));
        let rule = plain("a", 1);
        add(vec![RuleDocument {
            outputs: outputs.collect(),
            ..rule
        }])
    };
    assert!(core.resolve(&with(7)).is_ok());
    let refused = core.resolve(&with(8)).unwrap_err().to_string();
    let expected = "9 inputs and outputs, of at most 8: ";
    assert!(refused.starts_with(expected), "{refused}");
}

#[test]
fn clients_add_no_more_memberships_than_permitted() {
    let mut core = core().at_most(20, 300);
    let here = two_links();
    let of = |name: &str, input: &str| RuleDocument {
        inputs: vec![input.to_owned()],
        ..plain(name, 1)
    };
    execute(&mut core, &add(vec![of("a", "239.1.0.0/24%eth0:1")]), &here);
    // The same groups at another port, and a range too large to be joined, are no more memberships.
    let same = [
        of("b", "239.1.0.0/24%eth0:2"),
        of("c", "239.0.0.0/8%eth0:3"),
        of("d", "10.0.0.5,10.0.0.6@232.1.0.0/28%eth0:1"),
    ];
    assert!(core.resolve(&add(same.to_vec())).is_ok());
    for (input, asked) in [
        ("239.2.0.0/24%eth0:1", 512),
        ("239.2.0.0/24%eth9:1", 512),
        ("239.2.0.0/24%eth*:1", 768),
        ("10.0.0.5,10.0.0.6,10.0.0.7@232.1.0.0/28%eth0:1", 304),
    ] {
        let refusal = ApiError::from(core.resolve(&add(vec![of("b", input)])).unwrap_err());
        assert_eq!(refusal.code, Code::Unavailable);
        let expected = format!("{asked} memberships, of at most 300: ");
        assert!(
            refusal.message.starts_with(&expected),
            "{}",
            refusal.message
        );
        assert!(refusal.message.contains("--max-memberships"));
    }
}

/// A configuration may have more than clients may add, and clients may reduce the excess.
#[test]
fn too_many_rules_may_become_fewer() {
    let (mut core, nowhere) = (core(), host(&[]));
    let set = vec![plain("a", 1), plain("b", 2), plain("c", 3)];
    execute(&mut core, &add(set), &nowhere);
    let core = core.at_most(1, 100);
    let fewer = Request::Change(Transaction {
        remove: vec!["a".to_owned()],
        ..Transaction::default()
    });
    assert!(core.resolve(&fewer).is_ok());
    assert!(core.resolve(&add(vec![plain("d", 4)])).is_err());
}
