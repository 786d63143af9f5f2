//! The record on disk of what is joined through which membership socket, which the socket itself does not
//! reveal. A snapshot and lines of changes, perhaps written by a daemon of another version.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sys::membership::{Change, Membership};

use crate::state::journal::Contents;

/// The memberships of each socket, by its number.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record(pub(super) BTreeMap<u32, Vec<Claim>>);

/// One membership: interface, group, source.
pub(super) type Claim = (u32, IpAddr, Option<IpAddr>);

/// A change of the record, a line of its journal: whether joined, socket, membership.
type Line = (bool, u32, Claim);

impl Record {
    /// Parses a record as far as it is valid.
    pub(super) fn of(read: &Contents) -> Self {
        let mut record: Self = serde_json::from_slice(&read.snapshot).unwrap_or_default();
        for line in &read.lines {
            let Ok(line) = serde_json::from_slice(line) else {
                break;
            };
            record.apply(line);
        }
        record
    }

    /// Applies a change.
    fn apply(&mut self, (joined, number, claim): Line) {
        let claims = self.0.entry(number).or_default();
        if joined {
            claims.push(claim)
        } else {
            claims.retain(|held| *held != claim)
        }
    }
}

/// A membership as the record has it.
pub(super) const fn claim(membership: &Membership) -> Claim {
    (membership.interface, membership.group, membership.source)
}

/// A change as the journal has it.
pub(super) const fn line(change: &Change) -> Line {
    (change.joined, change.number, claim(&change.membership))
}

/// The membership that the record has as this.
pub(super) const fn membership((interface, group, source): Claim) -> Membership {
    Membership {
        interface,
        group,
        source,
    }
}
