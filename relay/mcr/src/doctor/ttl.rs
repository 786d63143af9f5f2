//! TTLs that expire at the next router: senders of multicast use TTL 1 by default (IP_MULTICAST_TTL,
//! RFC 1112 section 6.1), and MCR keeps the TTL of the packet.

use compile::table::Ttl;

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;
use crate::render::number;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    for output in snapshot.outputs() {
        let Some(router) = output.via else { continue };
        let (severity, ttl) = match output.spec.ttl {
            Ttl::Keep | Ttl::Decrement => (
                Severity::Harms,
                "the TTL of the sender, and senders of multicast use 1 unless told otherwise: the \
                 router drops it",
            ),
            Ttl::Set(1) => (Severity::Stops, "ttl=1, which drops it"),
            Ttl::Set(_) => continue,
        };
        let to = &output.spec.to;
        let evidence = format!("output {to} goes through router {router} with {ttl}");
        let finding = Finding::of_rule(severity, &output.rule.name, evidence);
        findings.push(finding.remedy("set ttl=64 at the output"));
    }
    findings.extend(expired(snapshot));
    findings
}

/// Packets that `ttl=dec` has already dropped.
fn expired(snapshot: &Snapshot) -> Vec<Finding> {
    let rules = snapshot.rules.stats.iter().flat_map(|stats| &stats.rules);
    let outputs = rules.flat_map(|rule| rule.outputs.iter().map(move |output| (rule, output)));
    let expired = outputs.filter_map(|(rule, output)| {
        let count = output
            .dropped
            .get("ttl_expired")
            .filter(|count| **count > 0)?;
        let evidence = format!(
            "output {} dropped {} as ttl_expired, for arriving with TTL 1",
            output.to,
            number::things(*count, "packet")
        );
        let finding = Finding::of_rule(Severity::Harms, &rule.name, evidence);
        Some(finding.remedy("raise the TTL at the sender, or set ttl=16 instead of ttl=dec"))
    });
    expired.collect()
}
