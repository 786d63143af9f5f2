//! How many groups an input joins.

use crate::net::Prefix;

/// The most groups of one range that are joined. Of a larger range none is, because the kernel keeps each
/// membership separately; the interface accepts all groups that arrive instead.
pub const JOINED_GROUPS_MAX: u128 = 4096;

/// Counts the groups that are joined for an input; if it is on demand, the most that may be.
pub fn joined_groups(groups: Prefix, on_demand: bool) -> usize {
    match groups_too_many(groups) {
        _ if !groups.address.is_multicast() => 0,
        None => 1 << groups.host_bits(),
        Some(_) if on_demand => JOINED_GROUPS_MAX as usize,
        Some(_) => 0,
    }
}

/// Why none of the groups is joined, if they are too many.
pub fn groups_too_many(groups: Prefix) -> Option<String> {
    let count = 1_u128.checked_shl(groups.host_bits().into());
    if count.is_some_and(|count| count <= JOINED_GROUPS_MAX) {
        return None;
    }
    Some(format!(
        "{groups} holds more than {JOINED_GROUPS_MAX} groups, so none is joined: the interface takes \
         all that arrive (allmulticast), and what a router or switch sends to members alone does not; \
         divide the range to have it joined"
    ))
}
