//! Receivers of outputs: whether the relay can learn of them on the interfaces of outputs on demand, and
//! which outputs have none.

use api::reply::{DemandStats, RuleStats};

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(super) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let links = snapshot.rules.stats.iter().flat_map(|stats| &stats.demand);
    let rules = snapshot.rules.stats.iter().flat_map(|stats| &stats.rules);
    links
        .filter_map(interface)
        .chain(rules.flat_map(without_receivers))
        .collect()
}

/// Outputs whose group nobody has joined, as the relay knows. For one on demand that may be as intended.
fn without_receivers(rule: &RuleStats) -> impl Iterator<Item = Finding> {
    rule.outputs.iter().filter_map(|output| {
        let severity = if output.is_idle() {
            Severity::Note
        } else {
            Severity::Harms
        };
        let (what, remedy) = output.unheard.as_deref()?.split_once("; ")?;
        let evidence = format!("output {}: {what}", output.to);
        Some(Finding::of_rule(severity, &rule.name, evidence).remedy(remedy))
    })
}

fn interface(link: &DemandStats) -> Option<Finding> {
    let protocol = link.protocol.to_uppercase();
    let finding = |severity, evidence: String, remedy: &str| {
        let subject = format!("interface {}", link.interface);
        Some(Finding::new(severity, subject, evidence).remedy(remedy))
    };
    if let Some(reason) = &link.reason {
        let evidence = format!("{protocol}: {reason}, so outputs on demand send nothing there");
        return finding(
            Severity::Stops,
            evidence,
            "mend that; it is tried again every second",
        );
    }
    match (&link.querier, link.is_querier, link.reports) {
        (None, ..) => finding(
            Severity::Harms,
            format!(
                "{protocol}: nobody asks who listens, so hosts say what they join and not that they \
                 are still there: what outputs on demand send ends after some 4 minutes"
            ),
            "set querier=yes at an output on demand there, or turn a router's or switch's querier on",
        ),
        (Some(querier), false, 0) => finding(
            Severity::Note,
            format!(
                "{protocol}: {querier} asks who listens, and no host's answer has come here: nobody \
                 listens, or a switch that snoops does not take this port for a router's"
            ),
            "if somebody listens, set the switch's port as a router's (bridge link set dev PORT \
             mcast_router 2), or let this relay ask (querier=yes) from a lower address",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(querier: Option<&str>, is_querier: bool, reports: u64) -> DemandStats {
        DemandStats {
            interface: "eth1".to_owned(),
            protocol: "igmp".to_owned(),
            querier: querier.map(str::to_owned),
            is_querier,
            groups: 0,
            reports,
            refused: 0,
            barred: 0,
            reason: None,
        }
    }

    #[test]
    fn tells_where_nobody_asks_and_where_no_answer_comes() {
        let severity = |link: &DemandStats| interface(link).map(|finding| finding.severity);
        assert_eq!(severity(&link(None, false, 3)), Some(Severity::Harms));
        assert_eq!(
            severity(&link(Some("10.0.1.9"), false, 0)),
            Some(Severity::Note)
        );
        assert_eq!(severity(&link(Some("10.0.1.9"), false, 1)), None);
        assert_eq!(severity(&link(Some("10.0.1.1"), true, 0)), None);
        let broken = DemandStats {
            reason: Some("cannot hear who listens: no".to_owned()),
            ..link(Some("10.0.1.1"), true, 0)
        };
        assert_eq!(severity(&broken), Some(Severity::Stops));
    }
}
