//! The senders that a session or section names: `a=source-filter` (RFC 4570).

use std::net::IpAddr;

use super::groups::{Groups, Rejected};
use super::lines::Block;
use crate::address::{address, hosts};
use crate::remark::{Position, SOURCES_MAX, Why};

/// The most filters of a session or section.
const FILTERS_MAX: usize = 1024;

/// An `a=source-filter:incl`.
pub(super) struct Filter<'t> {
    position: Position,
    text: &'t str,
    /// `None`: all groups.
    group: Option<IpAddr>,
    sources: Vec<IpAddr>,
}

/// The filters of a block; adds those that cannot be used to `rejected`.
pub(super) fn filters<'t>(block: &Block<'t>, rejected: &mut Vec<Rejected<'t>>) -> Vec<Filter<'t>> {
    let mut filters = Vec::new();
    for (line, value) in block.attributes("source-filter") {
        let parsed = if filters.len() < FILTERS_MAX {
            parse(value)
        } else {
            Err(Why::TooManySources)
        };
        let (position, text) = (line.position.clone(), line.text);
        match parsed {
            Ok((group, sources)) => filters.push(Filter {
                position,
                text,
                group,
                sources,
            }),
            Err(why) => rejected.push((position, text, why)),
        }
    }
    filters
}

/// Parses `incl IN IP4|IP6|* GROUP|* SENDER...`.
fn parse(value: &str) -> Result<(Option<IpAddr>, Vec<IpAddr>), Why> {
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
    /// Whether it applies to a group: it names that, or the first of its `c=` line, or none.
    fn is_for(&self, group: IpAddr, of: &Groups) -> bool {
        self.group.is_none_or(|to| to == group || to == of.first)
    }

    /// The remark on a filter that applies to none of these groups.
    pub(super) fn stray(&self, groups: &[(IpAddr, Groups)]) -> Option<Rejected<'t>> {
        let is_used = groups.iter().any(|(group, of)| self.is_for(*group, of));
        (!is_used).then(|| (self.position.clone(), self.text, Why::StrayFilter))
    }
}

/// The senders of a group, from every filter that applies to it.
pub(super) fn senders(group: IpAddr, of: &Groups, filters: &[Filter]) -> Result<Vec<IpAddr>, Why> {
    let relevant = filters.iter().filter(|filter| filter.is_for(group, of));
    let sources = relevant.flat_map(|filter| &filter.sources).copied();
    hosts(
        sources.filter(|source| source.is_ipv4() == group.is_ipv4()),
        group,
    )
}
