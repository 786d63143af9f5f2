//! Outputs that send to one group and port on one interface, so that listeners get the packets of both,
//! mixed. Nothing forbids that, so it is reported and never refused. Rules that reflect intend it, and
//! receivers that choose sources can tell an output with a source address of its own apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::endpoint::Endpoint;
use crate::rule::{OutputSpec, Rule, SourceChoice};

/// So many are reported one by one.
const TOLD: usize = 8;
/// So many pairs are compared at most: of thousands on one group the first are found.
const COMPARED: usize = 1 << 20;

/// One output, and whose it is.
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
        let (to, of_other) = (self.to(), other.to());
        let sources = [self.output.source, other.output.source];
        let are_apart = matches!(sources, [SourceChoice::Address(one), SourceChoice::Address(two)] if one != two);
        self.key() != other.key()
            && !are_apart
            && to.interface == of_other.interface
            && to.destination.overlaps(of_other.destination)
            && to.ports.overlaps(of_other.ports)
    }
}

/// Those of a rule that send to groups.
fn senders(rule: &Rule) -> impl Iterator<Item = Sender<'_>> {
    let is_meant = rule.enabled && rule.reflect.is_none();
    let outputs = rule.outputs.iter().enumerate();
    let groups = outputs.filter(move |(_, output)| is_meant && output.to.is_multicast());
    groups.map(move |(number, output)| Sender {
        rule,
        output,
        number,
    })
}

/// Says of the `new` ones among rules which other output sends where one of theirs does.
pub fn mixed<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    new: impl Iterator<Item = &'a Rule>,
) -> Vec<String> {
    // Few are new as a rule, and the others are gone through once.
    let mut hosts: Vec<Sender<'a>> = new.flat_map(senders).collect();
    let ranges: Vec<Sender<'a>> = hosts.iter().filter(|one| !one.is_host()).copied().collect();
    let names: BTreeSet<&str> = hosts.iter().map(|one| one.rule.name.as_str()).collect();
    hosts.retain(Sender::is_host);
    hosts.sort_by_key(Sender::address);
    let (mut told, mut compared) = (BTreeMap::new(), 0);
    let is_any = !names.is_empty();
    for other in rules.take_while(|_| is_any).flat_map(senders) {
        let (address, first) = if other.is_host() {
            let address = other.address();
            (
                Some(address),
                hosts.partition_point(|one| one.address() < address),
            )
        } else {
            (None, 0)
        };
        let near = hosts[first..].iter();
        let near = near.take_while(|one| address.is_none_or(|address| one.address() == address));
        for one in near.chain(&ranges) {
            compared += 1;
            // Of two new ones the later tells.
            let is_later = || one.key() > other.key() || !names.contains(other.rule.name.as_str());
            if one.mixes_with(&other) && is_later() {
                told.entry(one.key()).or_insert_with(|| text(one, &other));
            }
        }
        if compared > COMPARED {
            break;
        }
    }
    let more = told.len().saturating_sub(TOLD);
    let mut told: Vec<String> = told.into_values().take(TOLD).collect();
    told.extend((more > 0).then(|| format!("{more} more outputs send where another does")));
    told
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

    fn told(second: &[&str]) -> Vec<String> {
        let rules = [rule("a", &["239.9.1.1%eth1:6001"]), rule("b", second)];
        mixed(rules.iter(), rules[1..].iter())
    }

    #[test]
    fn tells_of_outputs_to_one_group_port_and_interface() {
        for (second, who) in [
            (&["239.9.1.1%eth1:6001"][..], "rule \"a\""),
            (&["239.9.1.0/24%eth1:6001"], "rule \"a\""),
            (&["239.9.1.1%eth1:6000-6009"], "rule \"a\""),
            (
                &["239.9.1.9%eth1:1", "239.9.1.9%eth1:1,sport=7"],
                "another output of it",
            ),
        ] {
            let told = told(second);
            assert_eq!(told.len(), 1, "{second:?}: {told:?}");
            assert!(
                told[0].starts_with("rule \"b\": output ") && told[0].contains(who),
                "{told:?}"
            );
        }
        for second in [
            "239.9.1.1%eth1:6002",
            "239.9.1.1%eth2:6001",
            "239.9.1.2%eth1:6001",
            "10.9.9.9:6001",
        ] {
            assert_eq!(told(&[second]), [""; 0], "{second}");
        }
        let apart = [
            "239.9.1.9%eth1:1,source=10.0.0.1",
            "239.9.1.9%eth1:1,source=10.0.0.2",
        ];
        assert_eq!(told(&apart), [""; 0]);
        let old = [
            rule("a", &["239.9.1.1%eth1:6001"]),
            rule("b", &["239.9.1.1%eth1:6001"]),
        ];
        assert_eq!(mixed(old.iter(), [].iter()), [""; 0]);
        assert_eq!(mixed(old.iter(), old[..1].iter()).len(), 1);
        assert_eq!(mixed(old.iter(), old.iter()).len(), 1, "each pair once");
    }
}
