//! One media section: the groups, ports and senders of what it describes.

use std::net::IpAddr;

use rules::net::{Ports, Prefix};

use super::filter::{Filter, filters, senders};
use super::groups::{Groups, Rejected, groups};
use super::lines::{Block, Line};
use crate::parsed::{Leg, Parsed};
use crate::remark::{Position, Why, excerpt};

/// A media section, and what of it is not taken over.
pub(super) struct Section<'t> {
    pub(super) position: Position,
    /// `video`, `audio` …
    pub(super) media: &'t str,
    /// Its `i=`.
    pub(super) title: Option<String>,
    pub(super) mid: Option<&'t str>,
    /// Where it is sent to; several are separate streams.
    pub(super) legs: Vec<Leg>,
    pub(super) rejected: Vec<Rejected<'t>>,
}

/// What applies to all sections that do not override it.
pub(super) struct Common<'t> {
    is_inactive: bool,
    groups: Vec<Groups>,
    filters: Vec<Filter<'t>>,
}

impl<'t> Common<'t> {
    pub(super) fn of(head: &Block<'t>, parsed: &mut Parsed) -> Self {
        let mut rejected = unsupported(head);
        let groups = groups(head, &mut rejected);
        let filters = filters(head, &mut rejected);
        for (position, text, why) in rejected {
            parsed.skip(position, text, why);
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
        let mut rejected = unsupported(block);
        let line = block.first('m');
        let (position, text) =
            line.map_or((Position::default(), ""), |m| (m.position.clone(), m.text));
        let media = Media::of(line.map_or("", |line| line.value));
        let is_inactive = is_inactive(block).unwrap_or(common.is_inactive);
        let parsed = match &media {
            Err(why) => Err(why.clone()),
            Ok(_) if is_inactive => Err(Why::Inactive),
            Ok(media) => legs_of(media, block, common, &mut rejected),
        };
        let legs = parsed.unwrap_or_else(|why| {
            rejected.push((position.clone(), text, why));
            Vec::new()
        });
        let title = block.first('i').map(|line| line.value.trim().to_owned());
        Self {
            position,
            media: media.map_or("", |media| media.kind),
            title: title.filter(|title| !title.is_empty()),
            mid: block.attributes("mid").next().map(|(_, mid)| mid),
            legs,
            rejected,
        }
    }
}

/// An `m=` line.
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
        // Each RTP port is followed by that of its RTCP (RFC 8866 section 5.14).
        let step = if protocol.contains("RTP") { 2 } else { 1 };
        let numbers = (0..count.max(1)).map(|n| first.checked_add(n.checked_mul(step)?));
        let ports = numbers.collect::<Option<Vec<u16>>>().ok_or_else(wrong)?;
        Ok(Self { kind, ports })
    }
}

fn legs_of<'t>(
    media: &Media,
    block: &Block<'t>,
    common: &Common,
    rejected: &mut Vec<Rejected<'t>>,
) -> Result<Vec<Leg>, Why> {
    let before = rejected.len();
    let own = groups(block, rejected);
    let own_filters = filters(block, rejected);
    let is_reported = rejected.len() > before;
    // Lines of its own override the session's even if they cannot be used (RFC 8866 section 5.7, RFC 4570
    // section 3).
    let groups = match block.first('c') {
        None => &common.groups,
        Some(_) => &own,
    };
    let filters = match block.attributes("source-filter").next() {
        None => &common.filters,
        Some(_) => &own_filters,
    };
    let all: Vec<(IpAddr, Groups)> = groups.iter().flat_map(Groups::each).collect();
    if !all.is_empty() {
        rejected.extend(own_filters.iter().filter_map(|filter| filter.stray(&all)));
    }
    let (groups, ports) = (all.len(), media.ports.len());
    let pairs: Vec<_> = match (groups, ports) {
        // The line that cannot be used is reported already.
        (0, _) if is_reported => return Ok(Vec::new()),
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

/// Whether a session or section is switched off; `None` if it has no direction attribute.
fn is_inactive(block: &Block) -> Option<bool> {
    let values = block.all('a').map(|line| line.value.trim());
    let is_mode = |mode: &&str| matches!(*mode, "inactive" | "sendonly" | "recvonly" | "sendrecv");
    Some(values.filter(is_mode).last()? == "inactive")
}

/// Attributes of a session or section that rules have no equivalent for.
fn unsupported<'t>(block: &Block<'t>) -> Vec<Rejected<'t>> {
    let reject = |line: &Line<'t>, why| (line.position.clone(), line.text, why);
    let rtcp = block
        .attributes("rtcp")
        .map(|(line, _)| reject(line, Why::Rtcp));
    let copies = block
        .attributes("ssrc-group")
        .filter(|(_, value)| value.starts_with("DUP"))
        .map(|(line, _)| reject(line, Why::SsrcCopies));
    rtcp.chain(copies).collect()
}
