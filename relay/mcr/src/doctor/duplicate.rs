//! Addresses of this host that somebody else on the link has too.

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(super) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let found = snapshot.duplicates.iter();
    found
        .map(|one| Finding::new(Severity::Harms, &one.interface, one.told()).remedy(one.remedy()))
        .collect()
}
