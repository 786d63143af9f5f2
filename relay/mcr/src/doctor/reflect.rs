//! Rules that reflect: answers that nobody routes, and other reflectors.

use rules::rule::{Rule, SourceChoice};

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;
use crate::render::number;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let rules = snapshot.rules.set.iter();
    let reflecting = rules.filter(|rule| rule.enabled && rule.reflect.is_some());
    let findings = reflecting.flat_map(|rule| {
        let findings = [unrouted(rule, snapshot), other_reflectors(rule, snapshot)];
        findings.into_iter().flatten()
    });
    findings.collect()
}

/// Unicast answers to the original senders, if this host does not route them.
fn unrouted(rule: &Rule, snapshot: &Snapshot) -> Option<Finding> {
    let key = if rule.inputs.first()?.is_ipv4() {
        "net/ipv4/ip_forward"
    } else {
        "net/ipv6/conf/all/forwarding"
    };
    let mut outputs = rule.outputs.iter();
    let keeps_sources = outputs.all(|output| output.source == SourceChoice::Keep);
    if !keeps_sources || snapshot.number(key)? != 0 {
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

/// Packets that came back, which shows that something else than this host also joins the networks.
fn other_reflectors(rule: &Rule, snapshot: &Snapshot) -> Option<Finding> {
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
