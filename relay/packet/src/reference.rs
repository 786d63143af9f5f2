//! What both paths must do, in the plainest code: one packet against a table of routes gives a
//! verdict, the copies and the counts. It allocates and searches linearly; no packet runs on it, but
//! tests and `mcr explain` do.

mod range;

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::datagram::Datagram;
use crate::fragment::{Attribution, Fragment};
use crate::fragment_cache::FragmentCache;
use crate::limit::Limit;
use crate::parse::{Link, Meta, Parsed, parse};
use crate::rewrite::{LINK_HEADROOM, LinkChange, Rewrite, TtlChange, rewrite};
use crate::verdict::{DropReason, Verdict};
use range::{carry, is_one, network, nth, number};

/// The table.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Routes in any order; the most specific match wins.
    pub routes: Vec<Route>,
    /// Addresses that betray a loop, each by the interface where it does.
    pub own_addresses: BTreeSet<(u32, IpAddr)>,
    /// What first fragments said.
    pub fragments: FragmentCache,
    /// Cap on what all unicast outputs send together.
    pub budget: Option<Bucket>,
    /// A limit lets all of a super-packet pass or nothing where the host takes the original too: the
    /// kernel path has one packet for both, and what was cut cannot be put together again.
    pub whole_for_host: bool,
}

/// One route: what it matches and the copies it makes.
#[derive(Clone, Debug)]
pub struct Route {
    /// Rule it belongs to; routes of one rule and sender make the same copies.
    pub rule: String,
    /// Interface the packet arrives on.
    pub ingress: u32,
    /// Destination groups, or an address of this host: first address and prefix length.
    pub groups: (IpAddr, u8),
    /// Destination ports, first and last.
    pub ports: (u16, u16),
    /// Senders, first address and prefix length; `None` for any.
    pub source: Option<(IpAddr, u8)>,
    /// What becomes of the packet on this host.
    pub local: Local,
    /// Whether another input of the rule is relayed in its place.
    pub stands_by: bool,
    /// Whether its gate is shut: another relay makes the copies.
    pub is_shut: bool,
    /// Cap on what is accepted.
    pub limit: Option<Bucket>,
    /// The copies.
    pub outputs: Vec<Output>,
}

/// A rate limit and its state.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Rate and depth.
    pub limit: Limit,
    /// Tokens are bits of UDP payload; otherwise datagrams.
    pub bits: bool,
    /// When the bucket is full again, 0 at first.
    pub due_ns: u64,
}

/// What becomes of a relayed packet on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Consumed, unless a UDP socket is bound to the port.
    Auto,
    /// Always passed up as well.
    Yes,
    /// Always consumed.
    No,
}

/// One copy to make.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// It cannot be sent; every packet is dropped under the reason.
    Down(DropReason),
    /// It can.
    Up(Egress),
}

/// How a copy is made and where it leaves.
#[derive(Clone, Copy, Debug)]
pub struct Egress {
    /// Interface it leaves by.
    pub interface: u32,
    /// That interface's MTU in bytes.
    pub mtu: u32,
    /// New destination: first address and prefix length; the packet's host bits are kept, or where
    /// the route has one address, its offset into the route's ports.
    pub destination: (IpAddr, u8),
    /// New destination port of the route's first port; a range (first below last) keeps the
    /// packet's offset, of ports or else of groups.
    pub ports: (u16, u16),
    /// New source address, `None` to keep.
    pub source: Option<IpAddr>,
    /// New source port, `None` to keep.
    pub source_port: Option<u16>,
    /// TTL.
    pub ttl: TtlChange,
    /// DSCP, `None` to keep.
    pub dscp: Option<u8>,
    /// Link header.
    pub link: LinkTo,
    /// Cap on what is sent.
    pub limit: Option<Bucket>,
}

/// Link header of a copy.
#[derive(Clone, Copy, Debug)]
pub enum LinkTo {
    /// Ethernet to the group's address, from `source`.
    Group {
        /// The egress interface's address.
        source: [u8; 6],
    },
    /// Ethernet to a neighbour.
    Neighbour {
        /// The egress interface's address.
        source: [u8; 6],
        /// The next hop's address.
        destination: [u8; 6],
    },
    /// None.
    Bare,
}

/// What became of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The packet's verdict.
    pub verdict: Verdict,
    /// Whether the host's stack sees the packet, unmodified.
    pub passed_up: bool,
    /// Index of the route it took, `None` if it was merely passed.
    pub route: Option<usize>,
    /// Datagrams in the packet, as `received` and every drop and every copy count them.
    pub packets: u64,
    /// UDP payload bytes, as `received` and every `sent` count them.
    pub bytes: u64,
    /// Datagrams of a forwarded super-packet that the rule's limit drops: its last ones.
    pub limited: u64,
    /// The verdict of each output of the route, in order; empty unless the packet was forwarded.
    pub outputs: Vec<Verdict>,
    /// The copies that left, in order.
    pub copies: Vec<Copy>,
}

/// One copy that left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Index of the output in its route.
    pub output: usize,
    /// Interface it left by.
    pub interface: u32,
    /// Its bytes, Ethernet padding included as it came.
    pub frame: Vec<u8>,
    /// Datagrams in it that leave: its first ones.
    pub packets: u64,
    /// UDP payload bytes of those.
    pub bytes: u64,
    /// Why the others do not.
    pub rest: Option<DropReason>,
}

impl Reference {
    /// Executes the table for one packet that arrives at `now_ns` by any clock. `socket_bound`
    /// answers `bpf_sk_lookup_udp`: a UDP socket on this host is bound to that port.
    pub fn execute(
        &mut self,
        (ingress, link): (u32, Link),
        frame: &[u8],
        meta: Meta,
        socket_bound: impl Fn(u16) -> bool,
        now_ns: u64,
    ) -> Outcome {
        let found = match parse(frame, link, meta) {
            Parsed::Udp(datagram) => self
                .find(ingress, &datagram)
                .map(|index| (datagram, index, Whose::Certain)),
            Parsed::Fragment(fragment) => self.attribute(&fragment, ingress, now_ns),
            Parsed::NotOurs(_) => None,
        };
        let Some((datagram, index, whose)) = found else {
            return Outcome::passed();
        };
        let own_source = self.own_addresses.contains(&(ingress, datagram.source));
        let route = &mut self.routes[index];
        let mut outcome = Outcome {
            verdict: Verdict::Forwarded,
            passed_up: false,
            route: Some(index),
            packets: u64::from(datagram.packets()),
            bytes: datagram.payload_bytes() as u64,
            limited: 0,
            outputs: Vec::new(),
            copies: Vec::new(),
        };
        let is_for_host = match route.local {
            // A socket of another port may wait for it.
            _ if whose == Whose::OnlyByGroup => true,
            Local::Auto => socket_bound(datagram.destination_port),
            Local::Yes => true,
            Local::No => false,
        };
        let whole = self.whole_for_host && is_for_host;
        let mut passed = outcome.packets;
        let mut admits = |limit| {
            passed = admitted(limit, &datagram, (passed, whole), now_ns);
            passed > 0
        };
        let reason = if datagram.defect(frame).is_some() {
            Some(DropReason::Malformed)
        } else if own_source {
            Some(DropReason::OwnSource)
        } else if whose == Whose::OneOfSeveral {
            Some(DropReason::FragmentUnknown)
        } else if route.stands_by || route.is_shut {
            Some(DropReason::Standby)
        } else if !admits(&mut route.limit) {
            Some(DropReason::RateLimited)
        } else {
            None
        };
        if let Some(reason) = reason {
            let is_elsewhere = reason == DropReason::Standby && !route.stands_by;
            outcome.verdict = Verdict::Dropped(reason);
            outcome.passed_up =
                reason == DropReason::FragmentUnknown || is_elsewhere && is_for_host;
            return outcome;
        }
        outcome.passed_up = is_for_host;
        outcome.limited = outcome.packets - passed;
        let ranges = (route.groups, route.ports);
        for (output, to) in route.outputs.iter_mut().enumerate() {
            let state = (&mut self.budget, (passed, whole), now_ns);
            match copy(frame, &datagram, ranges, to, state) {
                Ok(copy) => {
                    outcome.outputs.push(Verdict::Forwarded);
                    outcome.copies.push(Copy { output, ..copy });
                }
                Err(reason) => outcome.outputs.push(Verdict::Dropped(reason)),
            }
        }
        outcome
    }

    /// Finds the most specific route: (S,G) before (*,G), longer prefix before shorter, of
    /// senders first, fewer ports before more.
    fn find(&self, ingress: u32, datagram: &Datagram) -> Option<usize> {
        let port = datagram.destination_port;
        self.of_group(ingress, datagram)
            .find(|(_, route)| (route.ports.0..=route.ports.1).contains(&port))
            .map(|(index, _)| index)
    }

    /// Finds the route of a fragment. Without ports it takes the route of its group, if all that
    /// might take it belong to one rule.
    fn attribute(
        &mut self,
        fragment: &Fragment,
        ingress: u32,
        now_ns: u64,
    ) -> Option<(Datagram, usize, Whose)> {
        let datagram = fragment.datagram?;
        let candidates: Vec<usize> = self.of_group(ingress, &datagram).map(|(i, _)| i).collect();
        let first = *candidates.first()?;
        match fragment.attribute(&mut self.fragments, ingress, now_ns)? {
            Attribution::Known(datagram) => {
                let index = self.find(ingress, &datagram)?;
                Some((datagram, index, Whose::Certain))
            }
            Attribution::Orphan(datagram) => {
                let rule = |index: &usize| &self.routes[*index].rule;
                // Other ports of this host's addresses are nobody's here.
                let is_group = datagram.destination.is_multicast();
                let whose =
                    if is_group && candidates.iter().all(|other| rule(other) == rule(&first)) {
                        Whose::OnlyByGroup
                    } else {
                        Whose::OneOfSeveral
                    };
                Some((datagram, first, whose))
            }
        }
    }

    /// The routes that take a datagram's group and sender, whatever its ports, the most specific
    /// first.
    fn of_group(
        &self,
        ingress: u32,
        datagram: &Datagram,
    ) -> impl Iterator<Item = (usize, &Route)> + use<'_> {
        let (group, sender) = (datagram.destination, datagram.source);
        let matches = |route: &Route| {
            route.ingress == ingress
                && network(route.groups, group) == Some(route.groups.0)
                && (route.source).is_none_or(|range| network(range, sender) == Some(range.0))
        };
        let routes = self.routes.iter().enumerate();
        let mut found: Vec<_> = routes.filter(|(_, route)| matches(route)).collect();
        found.sort_by_key(|(_, route)| {
            let ports = route.ports.1 - route.ports.0;
            let wider = |range: (IpAddr, u8)| u8::MAX - range.1;
            let source = route.source.map_or(u8::MAX, wider);
            (source, wider(route.groups), ports, route.ports.0)
        });
        found.into_iter()
    }
}

/// How certain it is whose a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Its ports are known.
    Certain,
    /// A fragment without ports, of a group that only one rule takes.
    OnlyByGroup,
    /// A fragment without ports, of a group that several rules take.
    OneOfSeveral,
}

impl Outcome {
    const fn passed() -> Self {
        Self {
            verdict: Verdict::Passed,
            passed_up: true,
            route: None,
            packets: 0,
            bytes: 0,
            limited: 0,
            outputs: Vec::new(),
            copies: Vec::new(),
        }
    }
}

/// Of the first `most` datagrams, those that pass: all, or as many as the bucket holds, or none if only
/// the `whole` may.
fn admitted(
    bucket: &mut Option<Bucket>,
    datagram: &Datagram,
    (most, whole): (u64, bool),
    now_ns: u64,
) -> u64 {
    let Some(bucket) = bucket else { return most };
    let payload = datagram.payload_bytes() as u64;
    let size = datagram.segment_bytes() as u64;
    let bits = |datagrams: u64| payload.min(datagrams * size) * 8;
    let mut admit = |first: u64, count: u64| {
        let tokens = if bucket.bits {
            bits(first + count) - bits(first)
        } else {
            count
        };
        bucket.limit.admit(&mut bucket.due_ns, now_ns, tokens)
    };
    if admit(0, most) {
        return most;
    }
    let alone = if whole { 0 } else { most };
    (0..alone).take_while(|first| admit(*first, 1)).count() as u64
}

fn copy(
    frame: &[u8],
    datagram: &Datagram,
    ranges: Ranges,
    output: &mut Output,
    (budget, (all, whole), now_ns): (&mut Option<Bucket>, (u64, bool), u64),
) -> Result<Copy, DropReason> {
    let egress = match output {
        Output::Down(reason) => return Err(*reason),
        Output::Up(egress) => egress,
    };
    if egress.ttl == TtlChange::Decrement && datagram.ttl <= 1 {
        return Err(DropReason::TtlExpired);
    }
    if datagram.largest_packet() > egress.mtu as usize {
        return Err(DropReason::TooBig);
    }
    let (mut packets, mut rest) = (all, None);
    let unicast = !egress.destination.0.is_multicast();
    let budget = Some(budget).filter(|_| unicast);
    let limits = [
        (Some(&mut egress.limit), DropReason::RateLimited),
        (budget, DropReason::OverBudget),
    ];
    for (bucket, reason) in limits {
        let before = packets;
        packets = bucket.map_or(packets, |bucket| {
            admitted(bucket, datagram, (packets, whole), now_ns)
        });
        if packets == 0 {
            return Err(reason);
        }
        rest = if packets < before { Some(reason) } else { rest };
    }
    let change = change(datagram, ranges, egress);
    let mut copy = vec![0; LINK_HEADROOM];
    let packet = frame.get(datagram.ip_offset..datagram.end());
    copy.extend(packet.unwrap_or_default());
    let start = rewrite(&mut copy, &datagram.moved(LINK_HEADROOM), &change)?;
    Ok(Copy {
        output: 0,
        interface: egress.interface,
        frame: copy.split_off(start),
        packets,
        bytes: (datagram.payload_bytes() as u64).min(packets * datagram.segment_bytes() as u64),
        rest,
    })
}

/// A route's groups and ports.
type Ranges = ((IpAddr, u8), (u16, u16));

fn change(datagram: &Datagram, (groups, ports): Ranges, egress: &Egress) -> Rewrite {
    // An orphan has no port, and none is written to it.
    let port_number = datagram.destination_port.saturating_sub(ports.0);
    let group_number = number(groups, datagram.destination);
    let destination = if is_one(groups) && !is_one(egress.destination) {
        nth(egress.destination.0, port_number)
    } else {
        carry(egress.destination, datagram.destination)
    };
    let port_offset = if egress.ports.0 == egress.ports.1 {
        0
    } else if ports.0 < ports.1 {
        port_number
    } else {
        group_number
    };
    Rewrite {
        source: egress.source,
        destination,
        source_port: egress.source_port,
        destination_port: egress.ports.0.saturating_add(port_offset),
        ttl: egress.ttl,
        dscp: egress.dscp,
        link: match egress.link {
            LinkTo::Group { source } => LinkChange::Ethernet {
                source,
                destination: crate::craft::group_mac(destination),
            },
            LinkTo::Neighbour {
                source,
                destination,
            } => LinkChange::Ethernet {
                source,
                destination,
            },
            LinkTo::Bare => LinkChange::None,
        },
    }
}
