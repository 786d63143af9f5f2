//! Parses an endpoint from text. Never panics, whatever the text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Endpoint, EndpointProblem, INTERFACE_NAME_MAX, UNICAST};
use crate::net::{Ports, Prefix};
use crate::printable::is_misleading;

use EndpointProblem as Problem;

pub(super) fn endpoint(text: &str) -> Result<Endpoint, Problem> {
    let (body, ports, family) = split_ports(text)?;
    let (addresses, interface) = match body.split_once('%') {
        Some((addresses, name)) => (addresses, Some(self::interface(name)?)),
        None => (body, None),
    };
    let (sources, destination) = match addresses.rsplit_once('@') {
        Some((sources, destination)) => (Some(sources), destination),
        None => (None, addresses),
    };
    let destination = self::destination(destination, family)?;
    let mut endpoint = Endpoint {
        sources: Vec::new(),
        destination,
        interface,
        ports: self::ports(ports)?,
        rejoin: None,
    };
    if let Some(sources) = sources {
        endpoint.sources = self::sources(sources, family)?;
        let range = endpoint.sources.iter().find(|source| !source.is_host());
        if let Some(range) = range.filter(|_| endpoint.is_multicast()) {
            return Err(Problem::SourcesOfGroup(range.to_string()));
        }
    }
    Ok(endpoint)
}

#[derive(Clone, Copy, PartialEq)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }

    const fn every_address(self) -> Prefix {
        Prefix::host(match self {
            Self::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        })
    }

    fn parse(self, text: &str) -> Option<IpAddr> {
        match self {
            Self::Ipv4 => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            Self::Ipv6 => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        }
    }
}

/// Splits the text into what precedes the ports (without brackets), the ports, and the family.
fn split_ports(text: &str) -> Result<(&str, &str, Family), Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(Problem::WhiteSpace);
    }
    if text.contains("://") {
        return Err(Problem::Url);
    }
    if let Some(rest) = text.strip_prefix('[') {
        return split_bracketed(text, rest);
    }
    if text.contains(['[', ']']) {
        return Err(Problem::BracketMisplaced);
    }
    match text.rsplit_once(':') {
        Some((body, _)) if body.contains(':') => Err(Problem::BracketsMissing),
        Some((_, "")) | None => Err(Problem::PortMissing(text.trim_end_matches(':').to_owned())),
        Some((body, ports)) => match ports.split_once('%') {
            Some((ports, interface)) => Err(Problem::InterfaceAfterPort(format!(
                "{body}%{interface}:{ports}"
            ))),
            None => Ok((body, ports, Family::Ipv4)),
        },
    }
}

fn split_bracketed<'a>(
    text: &'a str,
    rest: &'a str,
) -> Result<(&'a str, &'a str, Family), Problem> {
    let (body, after) = rest.split_once(']').ok_or(Problem::BracketOpen)?;
    let group = body.rsplit_once('@').map_or(body, |(_, group)| group);
    let address = group.split(['%', '/']).next().unwrap_or(group);
    if address.parse::<Ipv4Addr>().is_ok() {
        return Err(Problem::BracketsForIpv4(format!("{body}{after}")));
    }
    if body.contains('[') || after.contains(['[', ']']) {
        return Err(Problem::BracketMisplaced);
    }
    if let Some((ports, interface)) = misplaced(after) {
        let right = format!("[{body}%{interface}]:{ports}");
        return Err(Problem::InterfaceOutside(right));
    }
    match after.strip_prefix(':') {
        Some("") => Err(Problem::PortMissing(text.trim_end_matches(':').to_owned())),
        Some(ports) => Ok((body, ports, Family::Ipv6)),
        None if after.is_empty() => Err(Problem::PortMissing(text.to_owned())),
        None => Err(Problem::BracketMisplaced),
    }
}

/// Port and interface after a bracket, in either order.
fn misplaced(after: &str) -> Option<(&str, &str)> {
    match after.strip_prefix(':') {
        Some(rest) => rest.split_once('%'),
        None => after
            .strip_prefix('%')?
            .rsplit_once(':')
            .map(|(name, ports)| (ports, name)),
    }
}

pub(super) fn interface(name: &str) -> Result<String, Problem> {
    if name.is_empty() {
        return Err(Problem::InterfaceEmpty);
    }
    if name.contains('@') {
        return Err(Problem::InterfaceWithPeer(name.to_owned()));
    }
    // Names from a configuration have not been checked for white space before.
    if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(Problem::WhiteSpace);
    }
    // The kernel's dev_valid_name(), and the delimiters of this notation.
    let is_forbidden = |c: char| matches!(c, '/' | ':' | ',' | '%' | '[' | ']') || is_misleading(c);
    if let Some(character) = name.chars().find(|c| is_forbidden(*c)) {
        return Err(Problem::InterfaceCharacter {
            name: name.to_owned(),
            character,
        });
    }
    if name == "." || name == ".." {
        return Err(Problem::InterfaceCharacter {
            name: name.to_owned(),
            character: '.',
        });
    }
    if name.len() > INTERFACE_NAME_MAX {
        return Err(Problem::InterfaceTooLong(name.to_owned()));
    }
    Ok(name.to_owned())
}

fn destination(text: &str, family: Family) -> Result<Prefix, Problem> {
    let every_address = family.every_address();
    if text == UNICAST {
        return Ok(every_address);
    }
    match prefix(text, family)? {
        unspecified if unspecified == every_address => Err(Problem::Unspecified(text.to_owned())),
        destination => Ok(destination),
    }
}

fn prefix(text: &str, family: Family) -> Result<Prefix, Problem> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let parsed = family
        .parse(address)
        .ok_or_else(|| Problem::AddressInvalid {
            text: address.to_owned(),
            family: family.name(),
        })?;
    let Some(length) = length else {
        return Ok(Prefix::host(parsed));
    };
    let longest = Prefix::host(parsed).length;
    let length = decimal(length)
        .and_then(|length| u8::try_from(length).ok())
        .filter(|length| *length <= longest)
        .ok_or_else(|| Problem::LengthInvalid {
            text: length.to_owned(),
            longest,
            example: match family {
                Family::Ipv4 => "239.1.1.0/24",
                Family::Ipv6 => "ff3e::/120",
            },
        })?;
    let range = Prefix::new(parsed, length);
    if range.address != parsed {
        return Err(Problem::HostBits {
            range: range.to_string(),
            single: parsed.to_string(),
        });
    }
    Ok(range)
}

fn sources(text: &str, family: Family) -> Result<Vec<Prefix>, Problem> {
    let mut sources = Vec::new();
    for text in text.split(',') {
        let source = prefix(text, family).map_err(|problem| match problem {
            Problem::AddressInvalid { text, family } => Problem::SourceInvalid { text, family },
            other => other,
        })?;
        if source.length == 0 {
            return Err(Problem::SourceAny(text.to_owned()));
        }
        let address = source.address;
        let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
        let is_unspecified = source == family.every_address();
        if address.is_multicast() || is_unspecified || is_broadcast {
            return Err(Problem::SourceNotUnicast(text.to_owned()));
        }
        if sources.contains(&source) {
            return Err(Problem::SourceTwice(text.to_owned()));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn ports(text: &str) -> Result<Ports, Problem> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |part: &str| {
        let number = decimal(part).and_then(|number| u16::try_from(number).ok());
        match number {
            Some(0) => Err(Problem::PortZero),
            Some(number) => Ok(number),
            None => Err(Problem::PortInvalid(part.to_owned())),
        }
    };
    let (first, last) = (port(first)?, port(last)?);
    if last < first {
        return Err(Problem::PortsReversed { first, last });
    }
    Ok(Ports { first, last })
}

/// Parses ASCII digits and nothing else: no sign, no space, no underscore.
fn decimal(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}
