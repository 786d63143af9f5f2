//! Where a rule's packets can be seen: an interface, a direction, a destination for every input and
//! output.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use model::document::RuleDocument;
use model::endpoint::Endpoint;
use model::rule::Rule;
use sys::sniffer::Direction;

use crate::control::Control;
use crate::failure::{Failure, Status};

/// One place to look at.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// What it is, for people: `rule cam1, output 1: 239.10.1.1%eth1:6001`.
    pub(crate) what: String,
    pub(crate) interface: String,
    pub(crate) direction: Direction,
    pub(crate) endpoint: Endpoint,
}

/// The places of a rule; with `output` that output's alone, counted from 1.
pub(crate) fn points(
    control: &Control,
    document: &RuleDocument,
    output: Option<usize>,
) -> Result<Vec<Point>, Failure> {
    let rule = document.to_rule(0);
    let rule = rule.map_err(|problems| Failure::new(Status::Refused, problems))?;
    let names: Vec<String> = interfaces(control)?;
    if let Some(number) = output {
        let Some(spec) = number.checked_sub(1).and_then(|at| rule.outputs.get(at)) else {
            let message = format!(
                "rule {:?}: no output {number} (have 1 to {})",
                rule.name,
                rule.outputs.len()
            );
            return Err(Failure::new(Status::Usage, message));
        };
        return of_output(control, &rule, number, &spec.to, &names);
    }
    let mut points = Vec::new();
    for input in &rule.inputs {
        let what = format!("rule {}, input: {input}", rule.name);
        points.extend(at(&what, input, Direction::In, &names));
    }
    for (number, spec) in (1..).zip(&rule.outputs) {
        points.extend(of_output(control, &rule, number, &spec.to, &names)?);
    }
    if points.is_empty() {
        let have = names.join(", ");
        let message = format!(
            "rule {:?}: none of its interfaces is there (have: {have})",
            rule.name
        );
        return Err(Failure::new(Status::Unavailable, message));
    }
    Ok(points)
}

fn of_output(
    control: &Control,
    rule: &Rule,
    number: usize,
    to: &Endpoint,
    names: &[String],
) -> Result<Vec<Point>, Failure> {
    let what = format!("rule {}, output {number}: {to}", rule.name);
    if to.interface.is_some() {
        return Ok(at(&what, to, Direction::Out, names));
    }
    // A unicast output goes where the route says: ask the kernel, as the daemon does.
    let interface = route_to(control, to.destination.address)?;
    let interface = interface.into_iter().map(|interface| Point {
        what: what.clone(),
        interface,
        direction: Direction::Out,
        endpoint: to.clone(),
    });
    Ok(interface.collect())
}

/// An endpoint on each of the interfaces that it names.
fn at(what: &str, endpoint: &Endpoint, direction: Direction, names: &[String]) -> Vec<Point> {
    let pattern = endpoint.interface.as_deref().unwrap_or("*");
    let matching = names.iter().filter(|name| matches(pattern, name));
    matching
        .map(|name| Point {
            what: what.to_owned(),
            interface: name.clone(),
            direction,
            endpoint: endpoint.clone(),
        })
        .collect()
}

fn interfaces(control: &Control) -> Result<Vec<String>, Failure> {
    let all = control.interfaces()?;
    Ok(all.into_iter().map(|interface| interface.name).collect())
}

/// The interface that owns the address which the kernel would send from.
fn route_to(control: &Control, address: IpAddr) -> Result<Option<String>, Failure> {
    let any: SocketAddr = match address {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    let Ok(local) = local else { return Ok(None) };
    let local = local.ip().to_string();
    let owns = |text: &String| text.split('/').next() == Some(local.as_str());
    let mut all = control.interfaces()?.into_iter();
    Ok(all
        .find(|interface| interface.addresses.iter().any(owns))
        .map(|interface| interface.name))
}

/// Wildcards `*` and `?` as rules have them.
fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.chars().next(), name.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            matches(&pattern[1..], name)
                || name
                    .chars()
                    .next()
                    .is_some_and(|c| matches(pattern, &name[c.len_utf8()..]))
        }
        (Some('?'), Some(c)) => matches(&pattern[1..], &name[c.len_utf8()..]),
        (Some(p), Some(c)) if p == c => matches(&pattern[p.len_utf8()..], &name[c.len_utf8()..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards_stand_for_letters() {
        for (pattern, name) in [
            ("eth*", "eth0"),
            ("*", "lo"),
            ("e?h0", "eth0"),
            ("eth0", "eth0"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("eth*", "veth0"), ("eth", "eth0"), ("eth?", "eth")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
