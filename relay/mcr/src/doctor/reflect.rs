//! Rules that reflect: answers that nobody routes, and whoever else reflects.

use rules::rule::{Rule, SourceChoice};

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;
use crate::render::number;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let rules = snapshot.rules.set.iter();
    let reflecting = rules.filter(|rule| rule.enabled && rule.reflect.is_some());
    let findings = reflecting.flat_map(|rule| {
        let found = [unrouted(rule, snapshot), others(rule, snapshot)];
        found.into_iter().flatten()
    });
    findings.collect()
}

fn keeps_sources(rule: &Rule) -> bool {
    let mut outputs = rule.outputs.iter();
    outputs.all(|output| output.source == SourceChoice::Keep)
}

/// Answers to whoever asked, where this host does not carry them.
fn unrouted(rule: &Rule, snapshot: &Snapshot) -> Option<Finding> {
    let key = if rule.inputs.first()?.is_ipv4() {
        "net/ipv4/ip_forward"
    } else {
        "net/ipv6/conf/all/forwarding"
    };
    if !keeps_sources(rule) || snapshot.number(key)? != 0 {
        return None;
    }
    let key = key.replace('/', ".");
    let evidence = format!(
        "copies keep their sources, so answers by unicast must be routed to these, and this host \
         routes nothing ({key} = 0)"
    );
    let finding = Finding::of_rule(Severity::Note, &rule.name, evidence);
    let remedy = format!(
        "`sysctl {key}=1` where this host is to be the router; nothing where another one is"
    );
    Some(finding.remedy(remedy))
}

/// What came back, which says that the networks are joined by more than this host.
fn others(rule: &Rule, snapshot: &Snapshot) -> Option<Finding> {
    let rules = &snapshot.rules.stats.as_ref()?.rules;
    let stats = rules.iter().find(|stats| stats.name == rule.name)?;
    let count = stats.dropped.get("duplicate").filter(|count| **count > 0)?;
    let evidence = format!(
        "{} came again within the rule's window: another reflector or a bridge joins the same \
         networks, or who sent them repeats them; they did not pass twice",
        number::things(*count, "packet")
    );
    Some(Finding::of_rule(Severity::Note, &rule.name, evidence).remedy(
        "leave one reflector of the group between the same networks; where senders repeat what is \
         to pass, set a shorter window",
    ))
}
