//! The groups of a session or section: its `c=` lines.

use std::net::IpAddr;

use super::lines::Block;
use crate::address::{address, offset};
use crate::remark::{Position, Why};

/// The most groups of one section.
const GROUPS_MAX: u32 = 1024;

/// A line that is not taken over: its position, its text and why.
pub(super) type Rejected<'t> = (Position, &'t str, Why);

/// The groups of a `c=` line.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub(super) first: IpAddr,
    count: u32,
}

/// The groups of a block; adds lines that cannot be used to `rejected`.
pub(super) fn groups<'t>(block: &Block<'t>, rejected: &mut Vec<Rejected<'t>>) -> Vec<Groups> {
    let mut groups = Vec::new();
    for line in block.all('c') {
        match Groups::of(line.value) {
            Ok(parsed) => groups.push(parsed),
            Err(why) => rejected.push((line.position.clone(), line.text, why)),
        }
    }
    let counts = groups.iter().map(|groups| groups.count);
    let total = counts.fold(0, u32::saturating_add);
    if total > GROUPS_MAX {
        if let Some(line) = block.first('c') {
            rejected.push((line.position.clone(), line.text, Why::TooManyGroups(total)));
        }
        groups.clear();
    }
    groups
}

impl Groups {
    /// Parses `IN IP4 GROUP[/TTL[/NUMBER]]` or `IN IP6 GROUP[/NUMBER]`. The TTL is the sender's: a copy
    /// has what remains of it.
    fn of(value: &str) -> Result<Self, Why> {
        const FORM: Why = Why::Form("c=IN IP4 GROUP/TTL or c=IN IP6 GROUP");
        let mut words = value.split_whitespace();
        let is_internet = words.next() == Some("IN");
        let (Some(_), Some(text)) = (words.next(), words.next()) else {
            return Err(FORM);
        };
        if !is_internet {
            return Err(FORM);
        }
        let mut parts = text.split('/');
        let first = address(parts.next().unwrap_or_default())?;
        if !first.is_multicast() {
            return Err(Why::Unicast(first.to_string()));
        }
        if first.is_ipv4() {
            let ttl = parts.next().map(str::parse::<u8>);
            ttl.transpose().map_err(|_| FORM)?;
        }
        let number = parts.next().map(str::parse).transpose().map_err(|_| FORM)?;
        let count = number.unwrap_or(1).max(1);
        if parts.next().is_some() {
            return Err(FORM);
        }
        let last = offset(first, count - 1).filter(IpAddr::is_multicast);
        last.map(|_| Self { first, count }).ok_or(FORM)
    }

    /// Each of its groups.
    pub(super) fn each(&self) -> impl Iterator<Item = (IpAddr, Self)> {
        let own = *self;
        (0..own.count).filter_map(move |n| Some((offset(own.first, n)?, own)))
    }
}
