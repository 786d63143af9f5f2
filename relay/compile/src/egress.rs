//! How each output of a rule leaves this host, or why it cannot.

mod copies;
mod detour;

use std::borrow::Cow;
use std::net::IpAddr;

use rules::net::{Ifindex, Mac};
use rules::rule::{OutputSpec, Rule, SourceChoice};
use rules::ruleset::listed;

use self::detour::{by_stack, detour, foreign, judged_answers};
use super::{Down, Leaving, Links, OutputView, is_routed, link_down, next_hop_query, tunnel};
use crate::host::{Detour, Framing, Host, Interface, LOOPBACK, Named, NextHop};
use crate::table::{DownReason, Egress, LinkHeader, Output, OutputState};

/// The outputs of `rule` in its order, and the view of each.
pub(super) fn outputs(
    rule: &Rule,
    host: &Host,
    links: &Links<'_>,
    sockets_barred: Option<&str>,
) -> (Vec<Output>, Vec<OutputView>) {
    let context = EgressContext {
        reflects: rule.reflect.is_some(),
        host,
        links,
        sockets_barred,
    };
    // The exact capacity: an empty list would grow to four at once.
    let count = rule.outputs.len();
    let (mut all, mut views) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (spec, index) in rule.outputs.iter().zip(0..) {
        views.push(match spec.all {
            None => context.single(spec, index, &mut all),
            Some(_) => context.each(spec, index, &mut all),
        });
    }
    (all, views)
}

/// What the outputs of a rule are assessed by.
struct EgressContext<'a> {
    reflects: bool,
    host: &'a Host,
    links: &'a Links<'a>,
    sockets_barred: Option<&'a str>,
}

/// How an output leaves, or why it cannot.
struct Assessment {
    egress: Result<Egress, Down>,
    link: Option<Ifindex>,
    via: Option<IpAddr>,
    routed: Option<String>,
    unanswered: Option<String>,
}

impl EgressContext<'_> {
    /// An output to one address: its own, or that of its name.
    fn single(&self, spec: &OutputSpec, index: u64, all: &mut Vec<Output>) -> OutputView {
        let named = spec
            .name
            .as_ref()
            .and_then(|name| self.host.names.get(name));
        let address = named.and_then(|named| named.address(spec.to.is_ipv4()));
        let resolved = resolved(spec, named, address);
        let assessment =
            match resolved.and_then(|spec| self.broadcast(address).map_or(Ok(spec), Err)) {
                Ok(spec) => self.assess(&spec),
                Err(down) => Assessment {
                    egress: Err(down),
                    link: None,
                    via: None,
                    routed: None,
                    unanswered: None,
                },
            };
        let to = spec.target();
        let (state, leaving, down) = state(assessment.egress, assessment.via);
        all.push(Output {
            index,
            to: to.clone(),
            state,
            limit: spec.limit,
        });
        OutputView {
            to,
            address,
            name_error: named.and_then(|named| named.problem.clone()),
            link: assessment.link,
            leaving,
            down,
            routed: assessment.routed,
            unanswered: assessment.unanswered,
            wanted: spec.demand.map(|_| 0),
            copies: None,
        }
    }

    /// Why an address of a name is refused as a broadcast: whoever answers for the name may direct streams
    /// only to hosts.
    fn broadcast(&self, address: Option<IpAddr>) -> Option<Down> {
        let to = address?;
        let mut links = self.host.interfaces.values();
        let link = links.find(|link| link.is_broadcast(to))?;
        let text = format!(
            "{to} is refused, for it is every host on {}; write it in place of the name if it is meant",
            link.name
        );
        Some(down(DownReason::NoAddress, text))
    }

    /// How an output with an address leaves.
    fn assess(&self, spec: &OutputSpec) -> Assessment {
        let (mut by, mut to, mut routed, mut unanswered) = (None, None, None, None);
        let egress = next_hop(spec, self.host, self.links).and_then(|(link, receiver, preferred)| {
            by = Some(link.index);
            to = match &receiver {
                Receiver::At(_, via) => *via,
                _ => None,
            };
            let context = (self.host, self.links);
            let egress = egress(spec, link, (receiver, preferred), context, &mut routed)?;
            if let (Some((reason, why)), Some(bar)) = (
                routed.take_if(|_| self.sockets_barred.is_some()),
                self.sockets_barred,
            ) {
                let text = format!("{why}, so only a socket may send its copies, but {bar}");
                return Err(down(reason, text));
            }
            let answers = self.reflects && egress.source.is_some() && routed.is_none();
            if let Some(why) = judged_answers(link, spec, self.host).filter(|_| answers) {
                // If no socket may send them, no answers are taken.
                let answers = self.sockets_barred.is_none();
                match self.sockets_barred {
                    None => {
                        routed = Some((DownReason::IpsecPolicy, format!("answers alone, {why}")))
                    }
                    Some(bar) => {
                        unanswered = Some(format!(
                            "no answers go back: {why}, so only a socket may send them, but {bar}"
                        ));
                    }
                }
                return Ok(Egress {
                    answers,
                    answers_by_socket: answers,
                    ..egress
                });
            }
            Ok(Egress { answers, ..egress })
        });
        Assessment {
            egress,
            link: by,
            via: to,
            routed: routed.map(|(_, why)| why),
            unanswered,
        }
    }
}

/// What the paths execute, and what the view shows.
fn state(
    egress: Result<Egress, Down>,
    via: Option<IpAddr>,
) -> (OutputState, Option<Box<Leaving>>, Option<Down>) {
    match egress {
        Ok(egress) => {
            let leaving = Box::new(Leaving::of(&egress, via));
            (OutputState::Up(egress), Some(leaving), None)
        }
        Err(down) => (OutputState::Down(down.reason), None, Some(down)),
    }
}

/// The first output that this host's own stack delivers.
pub(super) fn first_delivered(outputs: &[Output]) -> Option<&str> {
    let first = outputs.iter().find(|output| {
        matches!(&output.state, OutputState::Up(egress) if egress.link == LinkHeader::Host)
    });
    first.map(|output| output.to.as_str())
}

/// The output with its name replaced by an address, if it has a name.
fn resolved<'a>(
    spec: &'a OutputSpec,
    named: Option<&Named>,
    address: Option<IpAddr>,
) -> Result<Cow<'a, OutputSpec>, Down> {
    let Some(name) = &spec.name else {
        return Ok(Cow::Borrowed(spec));
    };
    if let Some(address) = address {
        return Ok(Cow::Owned(spec.resolved(address)));
    }
    let text = match named {
        None => format!("{name} is being looked up"),
        Some(Named {
            problem: Some(problem),
            ..
        }) => format!("{name} cannot be looked up: {problem}"),
        Some(_) => {
            let family = if spec.to.is_ipv4() { "IPv4" } else { "IPv6" };
            format!("{name} has no {family} address, which the rule's input asks for")
        }
    };
    Err(down(DownReason::NoAddress, text))
}

/// The receiver of a copy, with its link-layer address once it is known.
enum Receiver {
    /// Sockets of this host.
    Here,
    Group,
    /// A link-layer address, and the IP address behind it if a route leads there.
    At(Option<Mac>, Option<IpAddr>),
    /// Unknown link-layer address: the receiver's role and IP address, and whether it does not answer.
    Unknown(&'static str, IpAddr, bool),
    /// To be found by this host's stack.
    Routed(Detour),
}

/// What a route prefers for its packets.
#[derive(Clone, Copy, Default)]
struct Preferred {
    /// The address that a socket would send from.
    source: Option<IpAddr>,
    mtu: Option<u32>,
}

/// The interface by which an output leaves, its receiver there, and the preferences of the route, if any.
type Hop<'a> = (&'a Interface, Receiver, Preferred);

/// Finds the interface by which an output leaves, and its receiver there.
fn next_hop<'a>(spec: &OutputSpec, host: &'a Host, links: &Links<'a>) -> Result<Hop<'a>, Down> {
    let Some(name) = spec.to.interface.as_deref() else {
        return by_route(spec, host);
    };
    let Some(link) = links.named(name) else {
        return Err(down(DownReason::InterfaceMissing, links.missing(name)));
    };
    if is_routed(&spec.to) {
        return by_route(spec, host);
    }
    if let Some(down) = tunnel::obstacle_of(name, host) {
        return Err(down);
    }
    if link.is_vrf() {
        let text = format!(
            "{name} is a VRF: groups leave by its interfaces; write one of them{}",
            links.ports(link)
        );
        return Err(down(DownReason::NoRoute, text));
    }
    let receiver = match link.name.as_str() {
        LOOPBACK => Receiver::Here,
        _ if spec.to.is_broadcast() => Receiver::At(link.mac.map(|_| Mac([0xff; 6])), None),
        _ => Receiver::Group,
    };
    let next_hop = host.next_hops.get(&next_hop_query(spec));
    if let (Some(NextHop::NoRoute(Some(kind))), false) = (next_hop, spec.to.is_ipv4()) {
        return Err(refused(spec.to.destination.address, kind));
    }
    let preferred = Preferred {
        source: next_hop.and_then(NextHop::source),
        mtu: None,
    };
    Ok((link, receiver, preferred))
}

/// Why nothing passes a route of a rejecting type. IPv4 consults no route for groups on a named interface
/// (`ip_route_output_key_hash_rcu`).
fn refused(destination: IpAddr, kind: &str) -> Down {
    let text = format!(
        "the route to {destination} is of the type {kind}, so nothing is sent there; `ip route` and `ip rule` \
         show it"
    );
    down(DownReason::NoRoute, text)
}

/// The same if the routing table decides.
fn by_route<'a>(spec: &OutputSpec, host: &'a Host) -> Result<Hop<'a>, Down> {
    let destination = spec.to.destination.address;
    let no_route = |text| Err(down(DownReason::NoRoute, text));
    let mut mtu = None;
    let (index, receiver, source) = match host.next_hops.get(&next_hop_query(spec)) {
        None => return no_route(format!("the route to {destination} is being looked up")),
        Some(NextHop::NoRoute(_)) if spec.to.is_multicast() => {
            return no_route(not_local(destination));
        }
        Some(NextHop::NoRoute(Some(kind))) => return Err(refused(destination, kind)),
        Some(NextHop::NoRoute(None)) => return no_route(no_route_to(spec, host)),
        Some(NextHop::Here { interface, source }) => (interface, Receiver::Here, *source),
        Some(NextHop::Unresolved {
            interface,
            via,
            silent,
            source,
        }) => {
            let is_itself = host.address(&next_hop_query(spec).destination) == Some(*via);
            let what = if is_itself { "neighbour" } else { "gateway" };
            (interface, Receiver::Unknown(what, *via, *silent), *source)
        }
        Some(NextHop::Routed {
            interface,
            source,
            why,
        }) => (interface, Receiver::Routed(*why), *source),
        Some(NextHop::Resolved {
            interface,
            via,
            mac,
            source,
            mtu: set,
        }) => {
            mtu = *set;
            (interface, Receiver::At(*mac, Some(*via)), *source)
        }
    };
    match host.interfaces.get(index) {
        Some(link) => match (&receiver, link.name == LOOPBACK) {
            (Receiver::Here, false) => no_route(format!(
                "{destination} is an address of this host, but within {}; outputs reach sockets \
                 outside of VRFs only",
                link.name
            )),
            (Receiver::Here, true) | (_, false) => Ok((link, receiver, Preferred { source, mtu })),
            (_, true) => no_route(not_local(destination)),
        },
        None => Err(down(
            DownReason::InterfaceMissing,
            format!("the route to {destination} leads through an interface that is gone"),
        )),
    }
}

fn no_route_to(spec: &OutputSpec, host: &Host) -> String {
    let destination = spec.to.destination.address;
    let named = spec.to.interface.as_deref();
    let through = named.map_or_else(String::new, |name| format!(" through {name}"));
    let vrfs = host.interfaces.values().filter(|link| link.is_vrf());
    let vrf_names: Vec<String> = vrfs.map(|link| link.name.clone()).collect();
    let remedy = match (named, vrf_names.first()) {
        (None, Some(vrf)) => format!(
            ", or name the VRF whose routes lead there, as in {destination}%{vrf} (have: {})",
            listed(&vrf_names)
        ),
        _ => String::new(),
    };
    format!(
        "no route to {destination}{through}; add one, `ip route get {destination}` shows it{remedy}"
    )
}

/// Why an address cannot be reached by the loopback interface: what leaves by it arrives by it, and reaches
/// sockets only if it is local.
fn not_local(destination: IpAddr) -> String {
    let family = if destination.is_ipv4() { "" } else { " -6" };
    format!(
        "no route says that {destination} is local, so nothing is delivered on {LOOPBACK}; \
         `ip{family} route add local {destination} dev {LOOPBACK} table local`"
    )
}

/// Assembles everything needed to rewrite and send a copy.
fn egress(
    spec: &OutputSpec,
    link: &Interface,
    (receiver, preferred): (Receiver, Preferred),
    (host, links): (&Host, &Links<'_>),
    routed: &mut Option<(DownReason, String)>,
) -> Result<Egress, Down> {
    if !link.up {
        return Err(down(DownReason::InterfaceDown, link_down(link)));
    }
    let to = &spec.to;
    let is_to_many =
        to.is_multicast() || to.is_broadcast() || link.is_broadcast(to.destination.address);
    if let Some(why) = link.reach.obstacle(&link.name, is_to_many) {
        return Err(down(DownReason::NoRoute, why));
    }
    let source = source(spec, link, preferred.source, host)?;
    *routed = detour(spec, link, (&receiver, source), host)?.or_else(|| foreign(link));
    let route_mtu = preferred.mtu.unwrap_or(u32::MAX).min(link.mtu);
    let (link_header, mtu) = match routed {
        // The stack fragments what it may.
        Some(_) if spec.fragment => (by_stack(spec, &receiver, links), u16::MAX.into()),
        Some(_) => (by_stack(spec, &receiver, links), route_mtu),
        None => (header(link, receiver)?, route_mtu),
    };
    Ok(Egress {
        interface: link.index,
        source,
        link: link_header,
        mtu,
        destination: spec.to.destination,
        ports: spec.to.ports,
        source_port: spec.source_port,
        ttl: spec.ttl,
        dscp: spec.dscp,
        fragment: spec.fragment,
        framed: link.framing == Framing::Kernel,
        answers: false,
        answers_by_socket: false,
    })
}

fn source(
    spec: &OutputSpec,
    link: &Interface,
    preferred: Option<IpAddr>,
    host: &Host,
) -> Result<Option<IpAddr>, Down> {
    match spec.source {
        SourceChoice::Keep => Ok(None),
        // Packets leave a tunnel as they arrived.
        SourceChoice::Auto if host.tunnels.contains_key(&link.name) => Ok(None),
        SourceChoice::Address(address) => Ok(Some(address)),
        SourceChoice::Auto => {
            let of_link = || link.primary_address(spec.to.destination.address);
            let primary = preferred.or_else(of_link);
            let family = if spec.to.is_ipv4() { "IPv4" } else { "IPv6" };
            primary.map(Some).ok_or_else(|| {
                let name = &link.name;
                let text = format!(
                    "interface {name} has no {family} address to send from; give it one, or the \
                     output source=ADDRESS or source=keep"
                );
                down(DownReason::NoAddress, text)
            })
        }
    }
}

fn header(link: &Interface, receiver: Receiver) -> Result<LinkHeader, Down> {
    match (link.mac, receiver) {
        (_, Receiver::Here) => Ok(LinkHeader::Host),
        (_, Receiver::Unknown(what, via, silent)) => {
            let protocol = if via.is_ipv4() {
                "ARP"
            } else {
                "neighbour discovery"
            };
            let name = &link.name;
            let text = if silent {
                format!("{what} {via} on {name} does not answer {protocol}; is it there?")
            } else {
                format!("{what} {via} on {name} has not answered {protocol} yet")
            };
            Err(down(DownReason::NoNeighbour, text))
        }
        (Some(source), Receiver::Group) => Ok(LinkHeader::Group { source }),
        (Some(source), Receiver::At(Some(destination), _)) => Ok(LinkHeader::Neighbour {
            source,
            destination,
        }),
        (None, _) | (_, Receiver::At(None, _) | Receiver::Routed(_)) => Ok(LinkHeader::None),
    }
}

const fn down(reason: DownReason, text: String) -> Down {
    Down { reason, text }
}
