//! One media section: the groups, ports and senders of what it describes.

use std::net::IpAddr;

use rules::net::{Ports, Prefix};

use super::filter::{Filter, filters, senders};
use super::groups::{Groups, Left, groups};
use super::lines::{Block, Line};
use crate::parsed::{Leg, Parsed};
use crate::remark::{Position, Why, excerpt};

/// What a section describes, and what of it was left.
pub(super) struct Section<'t> {
    pub(super) place: Position,
    /// `video`, `audio` …
    pub(super) media: &'t str,
    /// What its `i=` says.
    pub(super) title: Option<String>,
    pub(super) mid: Option<&'t str>,
    /// Where it is sent to; more than one are streams of their own.
    pub(super) legs: Vec<Leg>,
    pub(super) left: Vec<Left<'t>>,
}

/// What holds for all sections that do not say otherwise.
pub(super) struct Common<'t> {
    is_inactive: bool,
    groups: Vec<Groups>,
    filters: Vec<Filter<'t>>,
}

impl<'t> Common<'t> {
    pub(super) fn of(head: &Block<'t>, parsed: &mut Parsed) -> Self {
        let mut left = unsupported(head);
        let groups = groups(head, &mut left);
        let filters = filters(head, &mut left);
        for (place, text, why) in left {
            parsed.leave(place, text, why);
        }
        Self {
            is_inactive: is_inactive(head).unwrap_or_default(),
            groups,
            filters,
        }
    }
}

impl<'t> Section<'t> {
    pub(super) fn of(block: &Block<'t>, common: &Common) -> Self {
        let mut left = unsupported(block);
        let line = block.first('m');
        let (place, text) = line.map_or((Position::default(), ""), |m| (m.place.clone(), m.text));
        let media = Media::of(line.map_or("", |line| line.value));
        let legs = media.as_ref().map_err(Why::clone);
        let legs = if is_inactive(block).unwrap_or(common.is_inactive) {
            legs.and(Err(Why::Inactive))
        } else {
            legs.and_then(|media| legs_of(media, block, common, &mut left))
        };
        let legs = legs.unwrap_or_else(|why| {
            left.push((place.clone(), text, why));
            Vec::new()
        });
        let title = block.first('i').map(|line| line.value.trim().to_owned());
        Self {
            place,
            media: media.map_or("", |media| media.kind),
            title: title.filter(|title| !title.is_empty()),
            mid: block.attributes("mid").next().map(|(_, mid)| mid),
            legs,
            left,
        }
    }
}

/// What an `m=` line says.
struct Media<'t> {
    kind: &'t str,
    ports: Vec<u16>,
}

impl<'t> Media<'t> {
    fn of(value: &'t str) -> Result<Self, Why> {
        const FORM: Why = Why::Form("m=MEDIA PORT[/NUMBER] PROTOCOL FORMAT");
        let mut words = value.split_whitespace();
        let (Some(kind), Some(port), Some(protocol)) = (words.next(), words.next(), words.next())
        else {
            return Err(FORM);
        };
        let protocol = protocol.to_ascii_uppercase();
        let mut layers = protocol.split('/');
        if !layers.any(|layer| matches!(layer, "RTP" | "UDP" | "UDPTL")) || protocol.contains("TCP")
        {
            return Err(Why::Transport(excerpt(&protocol)));
        }
        let (first, count) = match port.split_once('/') {
            Some((first, count)) => (first, count.parse().map_err(|_| FORM)?),
            None => (port, 1_u16),
        };
        let wrong = || Why::Port(excerpt(port));
        let first: u16 = first.parse().map_err(|_| wrong())?;
        if first == 0 {
            return Err(Why::Off);
        }
        // Each port of RTP has that of its RTCP behind it (RFC 8866 section 5.14).
        let step = if protocol.contains("RTP") { 2 } else { 1 };
        let ports = (0..count.max(1)).map(|n| first.checked_add(n.checked_mul(step)?));
        let ports = ports.collect::<Option<Vec<u16>>>().ok_or_else(wrong)?;
        Ok(Self { kind, ports })
    }
}

fn legs_of<'t>(
    media: &Media,
    block: &Block<'t>,
    common: &Common,
    left: &mut Vec<Left<'t>>,
) -> Result<Vec<Leg>, Why> {
    let before = left.len();
    let own = groups(block, left);
    let own_filters = filters(block, left);
    let is_said = left.len() > before;
    let groups = if own.is_empty() { &common.groups } else { &own };
    let filters = if own_filters.is_empty() {
        &common.filters
    } else {
        &own_filters
    };
    let all: Vec<(IpAddr, Groups)> = groups.iter().flat_map(Groups::each).collect();
    if !all.is_empty() {
        left.extend(own_filters.iter().filter_map(|filter| filter.stray(&all)));
    }
    let (groups, ports) = (all.len(), media.ports.len());
    let pairs: Vec<_> = match (groups, ports) {
        // The line that cannot be used is named already.
        (0, _) if is_said => return Ok(Vec::new()),
        (0, _) => return Err(Why::NoConnection),
        (_, 1) => all.iter().map(|group| (group, media.ports[0])).collect(),
        (1, _) => media.ports.iter().map(|port| (&all[0], *port)).collect(),
        _ if groups == ports => all.iter().zip(media.ports.iter().copied()).collect(),
        _ => return Err(Why::PortsAndGroups { ports, groups }),
    };
    let leg = |((group, of), port): (&(IpAddr, Groups), u16)| {
        Ok(Leg {
            sources: senders(*group, of, filters)?,
            group: Prefix::host(*group),
            ports: Some(Ports::single(port)),
            interface: None,
            number: 0,
        })
    };
    pairs.into_iter().map(leg).collect()
}

/// Says whether a session or section is switched off, where it says which way it goes.
fn is_inactive(block: &Block) -> Option<bool> {
    let ways = block.all('a').map(|line| line.value.trim());
    let is_way = |way: &&str| matches!(*way, "inactive" | "sendonly" | "recvonly" | "sendrecv");
    Some(ways.filter(is_way).last()? == "inactive")
}

/// What a session or section says beyond groups, ports and senders, and rules have nothing for.
fn unsupported<'t>(block: &Block<'t>) -> Vec<Left<'t>> {
    let left = |(line, why): (&Line<'t>, Why)| (line.place.clone(), line.text, why);
    let of = |name, why: Why| {
        block
            .attributes(name)
            .map(move |(line, _)| (line, why.clone()))
    };
    let copies = block.attributes("ssrc-group");
    let copies = copies.filter(|(_, value)| value.starts_with("DUP"));
    of("rtcp", Why::Rtcp)
        .chain(copies.map(|(line, _)| (line, Why::SsrcCopies)))
        .map(left)
        .collect()
}
