//! Roles: the names that rules of a fleet use for interfaces, because each relay has its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::document::RuleDocument;
use crate::rule::Rule;

/// All roles that a rule uses: its inputs' and its outputs'. A rule that cannot be parsed uses none.
pub fn roles(document: &RuleDocument) -> BTreeSet<String> {
    let Ok(mut rule) = document.to_rule(0) else {
        return BTreeSet::new();
    };
    names(&mut rule).map(|name| name.clone()).collect()
}

/// The rule on a host whose interfaces have these roles. A rule that cannot be parsed is unchanged, so
/// that its recipient reports what is wrong.
///
/// # Errors
///
/// The first role that the host has no interface for.
pub fn on_host(
    document: &RuleDocument,
    interfaces: &BTreeMap<String, String>,
) -> Result<RuleDocument, String> {
    let Ok(mut rule) = document.to_rule(0) else {
        return Ok(document.clone());
    };
    for name in names(&mut rule) {
        let own = interfaces.get(name);
        *name = own.ok_or_else(|| name.clone())?.clone();
    }
    Ok(RuleDocument::from(&rule))
}

fn names(rule: &mut Rule) -> impl Iterator<Item = &mut String> {
    let inputs = rule.inputs.iter_mut();
    let outputs = rule.outputs.iter_mut().map(|output| &mut output.to);
    inputs
        .chain(outputs)
        .filter_map(|endpoint| endpoint.interface.as_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> RuleDocument {
        RuleDocument {
            name: "cam1".to_owned(),
            inputs: vec!["10.0.0.5@232.1.1.1%red:5001".to_owned()],
            outputs: vec![
                "239.10.1.1%out:6001,ttl=16".into(),
                "10.9.9.9:7000".into(),
                "[ff3e::1%out]:6001".into(),
            ],
            comment: Some("roof".to_owned()),
            ..RuleDocument::default()
        }
    }

    #[test]
    fn roles_become_the_names_of_this_host() {
        let rule = document();
        let expected = ["out", "red"].map(str::to_owned);
        assert_eq!(roles(&rule), BTreeSet::from(expected));
        let names = [("red", "eth0"), ("out", "vlan.7"), ("blue", "eth1")];
        let interfaces = names.map(|(role, name)| (role.to_owned(), name.to_owned()));
        let own = on_host(&rule, &BTreeMap::from(interfaces)).unwrap();
        assert_eq!(
            own.lines(),
            [
                "input 10.0.0.5@232.1.1.1%eth0:5001",
                "output 239.10.1.1%vlan.7:6001,ttl=16",
                "output 10.9.9.9:7000",
                "output [ff3e::1%vlan.7]:6001",
                "comment roof",
            ]
        );
    }

    #[test]
    fn the_interfaces_of_a_rule_that_reflects_are_roles() {
        let rule = RuleDocument {
            name: "mdns".to_owned(),
            mode: Some("reflect".to_owned()),
            interfaces: ["office", "guests"].map(str::to_owned).into(),
            group: Some("224.0.0.251:5353".to_owned()),
            ..RuleDocument::default()
        };
        let names = [("office", "eth0"), ("guests", "wlan0")];
        let interfaces = names.map(|(role, name)| (role.to_owned(), name.to_owned()));
        let own = on_host(&rule, &BTreeMap::from(interfaces)).unwrap();
        assert_eq!(own.interfaces, ["eth0", "wlan0"]);
        assert_eq!(roles(&rule).len(), 2);
    }

    #[test]
    fn a_role_that_a_host_lacks_is_named() {
        let interfaces = BTreeMap::from([("out".to_owned(), "eth2".to_owned())]);
        assert_eq!(on_host(&document(), &interfaces), Err("red".to_owned()));
    }
}
