//! Reverse-path filters: they break kernel multicast routing, but not MCR. The note exists because everybody
//! asks.

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(crate) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let all = snapshot.number("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    let findings = snapshot.input_links().into_iter().filter_map(|link| {
        let key = format!("net/ipv4/conf/{}/rp_filter", link.name);
        // The kernel uses the larger of the two, IN_DEV_RPFILTER.
        let value = snapshot.number(&key)?.max(all);
        let mode = match value {
            0 => return None,
            1 => "strict",
            _ => "loose",
        };
        let evidence = format!(
            "rp_filter = {value} ({mode}): does not matter to MCR, which takes packets before the \
             host's routing sees them; only a local socket that listens too is bound by it"
        );
        Some(Finding::new(Severity::Note, &link.name, evidence).remedy("leave it as it is"))
    });
    findings.collect()
}
