//! Addresses of this host that somebody else on the link has too.

use super::finding::{Finding, Severity};
use super::snapshot::{Duplicate, Snapshot};

pub(super) fn check(snapshot: &Snapshot) -> Vec<Finding> {
    let found = snapshot.duplicates.iter().map(|duplicate| {
        let Duplicate {
            interface,
            address,
            other,
        } = duplicate;
        let other = match other {
            Some(mac) => format!("{mac} answers for it on the same link"),
            None => "another host on the link has it, and the kernel does not use it here".to_owned(),
        };
        let evidence = format!(
            "this host's address {address} is somebody else's too: {other}. Replies, joins and copies from \
             it go astray, and packets of the other count as the relay's own"
        );
        let finding = Finding::new(Severity::Harms, interface, evidence);
        finding.remedy(format!(
            "give one of the two another address: ip address del {address} dev {interface} here"
        ))
    });
    found.collect()
}
