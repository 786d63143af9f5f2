//! Addresses of this host that another host on the link has too.

use super::finding::{Finding, Severity};
use super::snapshot::Snapshot;

pub(super) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let duplicates = snapshot.duplicates.iter();
    duplicates
        .map(|one| {
            Finding::new(Severity::Harms, &one.interface, one.describe()).remedy(one.remedy())
        })
        .collect()
}
