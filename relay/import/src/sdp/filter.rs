//! The senders that a session or section names: `a=source-filter` (RFC 4570).

use std::net::IpAddr;

use super::groups::{Groups, Left};
use super::lines::Block;
use crate::address::{address, hosts};
use crate::remark::{Position, SOURCES_MAX, Why};

/// The most filters of a session or section.
const FILTERS_MAX: usize = 1024;

/// What an `a=source-filter:incl` says.
pub(super) struct Filter<'t> {
    place: Position,
    text: &'t str,
    /// None is for all groups.
    group: Option<IpAddr>,
    sources: Vec<IpAddr>,
}

/// The filters of a block; what cannot be used is left.
pub(super) fn filters<'t>(block: &Block<'t>, left: &mut Vec<Left<'t>>) -> Vec<Filter<'t>> {
    let mut filters = Vec::new();
    for (line, value) in block.attributes("source-filter") {
        let read = if filters.len() < FILTERS_MAX {
            read(value)
        } else {
            Err(Why::TooManySources)
        };
        let (place, text) = (line.place.clone(), line.text);
        match read {
            Ok((group, sources)) => filters.push(Filter {
                place,
                text,
                group,
                sources,
            }),
            Err(why) => left.push((place, text, why)),
        }
    }
    filters
}

/// Reads `incl IN IP4|IP6|* GROUP|* SENDER...`.
fn read(value: &str) -> Result<(Option<IpAddr>, Vec<IpAddr>), Why> {
    const FORM: Why = Why::Form("a=source-filter: incl IN IP4 GROUP SENDER...");
    let mut words = value.split_whitespace();
    match words.next() {
        Some("incl") => {}
        Some("excl") => return Err(Why::Excludes),
        _ => return Err(FORM),
    }
    let (Some("IN"), Some(_), Some(group)) = (words.next(), words.next(), words.next()) else {
        return Err(FORM);
    };
    let group = match group {
        "*" => None,
        group => Some(address(group)?),
    };
    let mut sources = Vec::new();
    for word in words {
        if sources.len() == SOURCES_MAX {
            return Err(Why::TooManySources);
        }
        sources.push(address(word)?);
    }
    if sources.is_empty() {
        Err(FORM)
    } else {
        Ok((group, sources))
    }
}

impl<'t> Filter<'t> {
    /// Says whether it is for a group: it names that, or the first of its `c=` line, or none.
    fn is_for(&self, group: IpAddr, of: &Groups) -> bool {
        let is_for = |to: IpAddr| to == group || to == of.first;
        self.group.is_none_or(is_for)
    }

    /// What there is to say of a filter for a group that is none of these.
    pub(super) fn stray(&self, groups: &[(IpAddr, Groups)]) -> Option<Left<'t>> {
        let is_used = groups.iter().any(|(group, of)| self.is_for(*group, of));
        (!is_used).then(|| (self.place.clone(), self.text, Why::StrayFilter))
    }
}

/// The senders of a group, by every filter that is for it.
pub(super) fn senders(group: IpAddr, of: &Groups, filters: &[Filter]) -> Result<Vec<IpAddr>, Why> {
    let filters = filters.iter().filter(|filter| filter.is_for(group, of));
    let sources = filters.flat_map(|filter| &filter.sources).copied();
    hosts(
        sources.filter(|source| source.is_ipv4() == group.is_ipv4()),
        group,
    )
}
