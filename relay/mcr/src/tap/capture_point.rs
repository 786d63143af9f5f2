//! The points where a rule's packets can be captured: an interface, a direction and a destination for every
//! input and output.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::reply::InterfaceStatus;
use rules::document::RuleDocument;
use rules::endpoint::Endpoint;
use rules::net::Prefix;
use rules::rule::SourceChoice;
use rules::{near, wildcard};
use sys::sniffer::Direction;

use crate::control::Control;
use crate::failure::{Failure, Status, usage};

/// One point to capture at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CapturePoint {
    /// What it is, for people: `rule cam1, output 1: 239.10.1.1%eth1:6001`.
    pub(crate) what: String,
    pub(crate) interface: String,
    /// The interface's number in the daemon's network namespace.
    pub(crate) index: u32,
    pub(crate) direction: Direction,
    pub(crate) endpoint: Endpoint,
    /// The source port that an output sets: it may be the only difference from another output.
    pub(crate) source_port: Option<u16>,
}

/// The capture points of a rule.
#[derive(Debug, Default)]
pub(crate) struct CapturePoints {
    pub(crate) present: Vec<CapturePoint>,
    /// Points where nothing can be captured at present, each with the reason.
    pub(crate) missing: Vec<String>,
}

/// Queries the capture points of a rule, or only those of its output number `output`, counted from 1.
pub(crate) fn query_points(
    control: &Control,
    document: &RuleDocument,
    output: Option<usize>,
) -> Result<CapturePoints, Failure> {
    let parsed = document.to_rule(0);
    let rule = parsed.map_err(|problems| Failure::new(Status::Refused, problems))?;
    if let Some(number) = output.filter(|number| !(1..=rule.outputs.len()).contains(number)) {
        let message = format!(
            "rule {:?}: no output {number} (have 1 to {})",
            rule.name,
            rule.outputs.len()
        );
        return Err(usage(message));
    }
    let all = control.interfaces()?;
    let mut points = CapturePoints::default();
    if output.is_none() {
        for input in &rule.inputs {
            let what = format!("rule {}, input: {input}", rule.name);
            points.add(&what, input, Direction::In, &all);
        }
    }
    for (number, spec) in (1..).zip(&rule.outputs) {
        if output.is_some_and(|selected| selected != number) {
            continue;
        }
        let what = format!("rule {}, output {number}: {}", rule.name, spec.to);
        let mut to = spec.to.clone();
        if let SourceChoice::Address(source) = spec.source {
            to.sources = vec![source.into()];
        }
        let before = points.present.len();
        if to.interface.is_some() {
            points.add(&what, &to, Direction::Out, &all);
        } else {
            // A unicast output follows the kernel's route, which the daemon queries in the same way.
            match route_to(control, &all, to.destination.address) {
                Some(link) => {
                    points
                        .present
                        .push(CapturePoint::new(&what, &to, Direction::Out, link))
                }
                None => points.missing.push(format!("{what}: no route to it")),
            }
        }
        for point in &mut points.present[before..] {
            point.source_port = spec.source_port;
        }
    }
    Ok(points)
}

impl CapturePoint {
    fn new(what: &str, endpoint: &Endpoint, direction: Direction, link: &InterfaceStatus) -> Self {
        Self {
            what: what.to_owned(),
            interface: link.name.clone(),
            index: link.index,
            direction,
            endpoint: endpoint.clone(),
            source_port: None,
        }
    }
}

impl CapturePoints {
    /// Adds an endpoint on each of the interfaces that it names.
    fn add(
        &mut self,
        what: &str,
        endpoint: &Endpoint,
        direction: Direction,
        all: &[InterfaceStatus],
    ) {
        let pattern = endpoint.interface.as_deref().unwrap_or("*");
        let before = self.present.len();
        let matching = all
            .iter()
            .filter(|link| wildcard::matches(pattern, &link.name));
        for link in matching {
            let destinations = destinations(endpoint, link).into_iter();
            self.present.extend(destinations.map(|destination| {
                let endpoint = Endpoint {
                    destination,
                    ..endpoint.clone()
                };
                CapturePoint::new(what, &endpoint, direction, link)
            }));
        }
        if self.present.len() == before {
            if let Some(link) = all.iter().find(|link| link.name == pattern) {
                let name = &link.name;
                let missing = format!("{what}: interface {name} has no such address");
                return self.missing.push(missing);
            }
            let names: Vec<&str> = all.iter().map(|link| link.name.as_str()).collect();
            let have = names.join(", ") + &near::hint(pattern, names.iter().copied());
            self.missing
                .push(format!("{what}: no interface {pattern} (have: {have})"));
        }
    }
}

/// The destinations that an endpoint covers on one interface.
fn destinations(endpoint: &Endpoint, link: &InterfaceStatus) -> Vec<Prefix> {
    if !endpoint.is_every_address() {
        return vec![endpoint.destination];
    }
    let own = link.addresses.iter().filter_map(|text| text.parse().ok());
    own.filter(|address: &IpAddr| address.is_ipv4() == endpoint.is_ipv4())
        .map(Prefix::host)
        .collect()
}

/// The interface of the route to an address.
fn route_to<'a>(
    control: &Control,
    all: &'a [InterfaceStatus],
    destination: IpAddr,
) -> Option<&'a InterfaceStatus> {
    let via = control.block_on(async {
        let handle = host::connect().ok()?;
        let policy = host::RoutingPolicy::default();
        let packet = (None, compile::host::PacketQuery::default());
        let none = BTreeMap::new();
        let via = host::query_route((&handle, &policy), destination, packet, &none).await;
        via.ok()
    })?;
    all.iter().find(|link| link.index == via.interface.0)
}
