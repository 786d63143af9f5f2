//! Outputs that send to the same group and port on the same interface, so that listeners get the packets
//! of both, mixed. That is not forbidden, so it is reported and never refused. Rules that reflect intend
//! it, and receivers that choose sources can distinguish an output with a source address of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::endpoint::Endpoint;
use crate::rule::{OutputSpec, Rule, SourceChoice};

/// The most outputs that are reported one by one.
const REPORTED_MAX: usize = 8;
/// The most pairs that are compared: of thousands on one group only the first are found.
const COMPARED_MAX: usize = 1 << 20;

/// An output and its rule.
#[derive(Clone, Copy)]
struct Sender<'a> {
    rule: &'a Rule,
    output: &'a OutputSpec,
    number: usize,
}

impl<'a> Sender<'a> {
    fn to(&self) -> &'a Endpoint {
        &self.output.to
    }

    fn is_host(&self) -> bool {
        self.to().destination.is_host()
    }

    fn address(&self) -> IpAddr {
        self.to().destination.address
    }

    fn key(&self) -> (&'a str, usize) {
        (&self.rule.name, self.number)
    }

    fn mixes_with(&self, other: &Self) -> bool {
        let (to, other_to) = (self.to(), other.to());
        let sources = [self.output.source, other.output.source];
        let are_apart = matches!(sources, [SourceChoice::Address(one), SourceChoice::Address(two)] if one != two);
        self.key() != other.key()
            && !are_apart
            && to.interface == other_to.interface
            && to.destination.overlaps(other_to.destination)
            && to.ports.overlaps(other_to.ports)
    }
}

/// The outputs of a rule that send to groups; none of a rule that is disabled or reflects.
fn senders(rule: &Rule) -> impl Iterator<Item = Sender<'_>> {
    let is_relevant = rule.enabled && rule.reflect.is_none();
    let outputs = rule.outputs.iter().enumerate();
    let groups = outputs.filter(move |(_, output)| is_relevant && output.to.is_multicast());
    groups.map(move |(number, output)| Sender {
        rule,
        output,
        number,
    })
}

/// Warns of outputs of the `new` rules where another output sends, too.
pub fn mixed<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    new: impl Iterator<Item = &'a Rule>,
) -> Vec<String> {
    // Few rules are new, usually, and the others are visited once.
    let mut hosts: Vec<Sender<'a>> = new.flat_map(senders).collect();
    let ranges: Vec<Sender<'a>> = hosts.iter().filter(|one| !one.is_host()).copied().collect();
    let names: BTreeSet<&str> = hosts.iter().map(|one| one.rule.name.as_str()).collect();
    hosts.retain(Sender::is_host);
    hosts.sort_by_key(Sender::address);
    let (mut warnings, mut compared) = (BTreeMap::new(), 0);
    let has_new = !names.is_empty();
    for other in rules.take_while(|_| has_new).flat_map(senders) {
        let (address, first) = if other.is_host() {
            let address = other.address();
            (
                Some(address),
                hosts.partition_point(|one| one.address() < address),
            )
        } else {
            (None, 0)
        };
        let near = hosts[first..]
            .iter()
            .take_while(|one| address.is_none_or(|address| one.address() == address));
        for one in near.chain(&ranges) {
            compared += 1;
            // Of two new ones only the later is reported.
            let is_later = || one.key() > other.key() || !names.contains(other.rule.name.as_str());
            if one.mixes_with(&other) && is_later() {
                let entry = warnings.entry(one.key());
                entry.or_insert_with(|| text(one, &other));
            }
        }
        if compared > COMPARED_MAX {
            break;
        }
    }
    let more = warnings.len().saturating_sub(REPORTED_MAX);
    let mut texts: Vec<String> = warnings.into_values().take(REPORTED_MAX).collect();
    texts.extend((more > 0).then(|| format!("{more} more outputs send where another does")));
    texts
}

fn text(sender: &Sender<'_>, other: &Sender<'_>) -> String {
    let (name, to) = (&sender.rule.name, sender.to());
    let who = if other.rule.name == *name {
        "another output of it".to_owned()
    } else {
        format!("rule {:?}", other.rule.name)
    };
    format!(
        "rule {name:?}: output {to}: {who} sends there too, and receivers get both mixed; give one of them \
         another group or port"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::RuleDocument;

    fn rule(name: &str, outputs: &[&str]) -> Rule {
        let document = RuleDocument {
            name: name.to_owned(),
            inputs: vec!["239.1.1.1%eth0:5001".to_owned()],
            outputs: outputs.iter().map(|output| (*output).into()).collect(),
            ..RuleDocument::default()
        };
        document.to_rule(0).unwrap()
    }

    fn warnings(second: &[&str]) -> Vec<String> {
        let rules = [rule("a", &["239.9.1.1%eth1:6001"]), rule("b", second)];
        mixed(rules.iter(), rules[1..].iter())
    }

    #[test]
    fn reports_outputs_to_one_group_port_and_interface() {
        for (second, who) in [
            (&["239.9.1.1%eth1:6001"][..], "rule \"a\""),
            (&["239.9.1.0/24%eth1:6001"], "rule \"a\""),
            (&["239.9.1.1%eth1:6000-6009"], "rule \"a\""),
            (
                &["239.9.1.9%eth1:1", "239.9.1.9%eth1:1,sport=7"],
                "another output of it",
            ),
        ] {
            let texts = warnings(second);
            assert_eq!(texts.len(), 1, "{second:?}: {texts:?}");
            assert!(
                texts[0].starts_with("rule \"b\": output ") && texts[0].contains(who),
                "{texts:?}"
            );
        }
        for second in [
            "239.9.1.1%eth1:6002",
            "239.9.1.1%eth2:6001",
            "239.9.1.2%eth1:6001",
            "10.9.9.9:6001",
        ] {
            assert_eq!(warnings(&[second]), [""; 0], "{second}");
        }
        let apart = [
            "239.9.1.9%eth1:1,source=10.0.0.1",
            "239.9.1.9%eth1:1,source=10.0.0.2",
        ];
        assert_eq!(warnings(&apart), [""; 0]);
        let old = [
            rule("a", &["239.9.1.1%eth1:6001"]),
            rule("b", &["239.9.1.1%eth1:6001"]),
        ];
        assert_eq!(mixed(old.iter(), [].iter()), [""; 0]);
        assert_eq!(mixed(old.iter(), old[..1].iter()).len(), 1);
        assert_eq!(mixed(old.iter(), old.iter()).len(), 1, "each pair once");
    }
}
