//! Static joins, which do not depend on rules.

use api::request::Transaction;
use config::{Settings, StaticJoin};

use super::Refused;

/// The settings after the joins and leaves of a change.
pub(super) fn changed(settings: &Settings, change: &Transaction) -> Result<Settings, Refused> {
    let mut settings = settings.clone();
    for leave in &change.leave {
        let mut joins = settings.join.iter();
        let index = joins
            .position(|join| join.is_same(leave))
            .ok_or_else(|| Refused::NotJoined(leave.to_string()))?;
        settings.join.remove(index);
    }
    for join in &change.join {
        match settings.join.iter_mut().find(|held| held.is_same(join)) {
            Some(held) => held.until = join.until,
            None => settings.join.push(join.clone()),
        }
    }
    Ok(settings)
}

/// The joins that have not expired; `None` if none has.
pub(crate) fn remaining(joins: &[StaticJoin]) -> Option<Vec<StaticJoin>> {
    let now = sys::clock::realtime_ns() / 1_000_000_000;
    let is_over = |join: &&StaticJoin| join.is_over(now);
    joins.iter().find(is_over)?;
    let remaining = joins.iter().filter(|join| !is_over(join));
    Some(remaining.cloned().collect())
}

/// Counts the memberships of `joins`.
pub(super) fn count(joins: &[StaticJoin]) -> usize {
    joins.iter().map(StaticJoin::memberships).sum()
}
