//! Encodes the table's types as entries of the maps.

use bpf::layout::{self, address_bytes};
use compile::table::{
    Egress, LinkHeader, LocalDelivery, Output, OutputState, Path, Route, RouteKey, Ttl,
};
use rules::net::{Mac, Prefix, low_bits};

use crate::down::drop_reason;
use crate::error::Error;
use crate::kernel::key::{Key, RangeRoute};

/// The map key of a route.
pub(super) fn route_key(key: &RouteKey) -> Result<Key, Error> {
    let unsupported = |what| Error::Unsupported { key: *key, what };
    let is_one_sender = key.source.is_none_or(Prefix::is_host);
    if !key.groups.is_host() || !key.ports.is_single() || !is_one_sender {
        return Ok(Key::Range(RangeRoute {
            ifindex: key.ingress.0,
            groups: key.groups,
            ports: key.ports,
            source: key.source,
        }));
    }
    Key::new(
        key.ingress.0,
        key.groups.address,
        key.ports.first,
        key.source.map(|source| source.address),
    )
    .ok_or(unsupported("a source of the other family"))
}

/// Returns whether the kernel path can execute the route at all.
pub(super) fn check(key: &RouteKey, route: &Route) -> Result<(), Error> {
    if route.path == Path::Userspace {
        return Ok(());
    }
    let unsupported = |what| Error::Unsupported { key: *key, what };
    for output in &route.outputs {
        let OutputState::Up(egress) = &output.state else {
            continue;
        };
        if egress.fragment {
            return Err(unsupported("fragment=yes"));
        }
        match egress.link {
            LinkHeader::Host => return Err(unsupported("an output to sockets of this host")),
            LinkHeader::Routed { .. } => return Err(unsupported("an output by a socket")),
            LinkHeader::Group { .. } | LinkHeader::Neighbour { .. } | LinkHeader::None => {}
        }
        if egress.destination.address.is_ipv4() != key.groups.address.is_ipv4() {
            return Err(unsupported("an output of the other family"));
        }
    }
    Ok(())
}

/// The outputs of a route, of which a shadow has none, unless their copies are answered: then it consumes
/// the answers as well.
pub(super) fn outputs(route: &Route) -> &[Output] {
    match route.path {
        Path::Userspace if !route.is_answered() => &[],
        Path::Kernel | Path::Userspace => &route.outputs,
    }
}

/// The input that a route's packets are counted for beside its rule; a shadow counts nothing.
pub(super) fn input(route: &Route) -> Option<&str> {
    match route.path {
        Path::Kernel => route.input.as_deref(),
        Path::Userspace => None,
    }
}

/// The share whose gate a route's packets pass; a shadow passes none.
pub(super) fn share(route: &Route) -> Option<&str> {
    match route.path {
        Path::Kernel => route.share.as_deref(),
        Path::Userspace => None,
    }
}

pub(super) fn flags(route: &Route) -> u8 {
    let local = match route.local {
        LocalDelivery::Auto => layout::ROUTE_LOCAL_AUTO,
        LocalDelivery::Yes => layout::ROUTE_LOCAL_YES,
        LocalDelivery::No => 0,
    };
    let input = input(route).map_or(0, |_| layout::ROUTE_INPUT);
    match (route.path, route.limit) {
        (Path::Userspace, _) => local | layout::ROUTE_SHADOW,
        (Path::Kernel, Some(_)) => local | input | layout::ROUTE_LIMITED,
        (Path::Kernel, None) => local | input,
    }
}

/// The slot of an output; `counter` is its counter.
pub(super) fn output(key: &RouteKey, output: &Output, counter: u32) -> layout::Output {
    let limited = match output.limit {
        Some(_) => layout::OUTPUT_LIMITED,
        None => 0,
    };
    let mut slot = match &output.state {
        OutputState::Down(reason) => layout::Output {
            counter,
            flags: layout::OUTPUT_DOWN,
            down: drop_reason(*reason) as u8,
            ..Default::default()
        },
        OutputState::Up(egress) => up(key, egress, counter),
    };
    slot.flags |= limited;
    slot
}

fn up(key: &RouteKey, egress: &Egress, counter: u32) -> layout::Output {
    let mut slot = layout::Output {
        ifindex: egress.interface.0,
        counter,
        prefix: egress.destination.length,
        mtu: u16::try_from(egress.mtu).unwrap_or(u16::MAX),
        dport: egress.ports.first.to_be_bytes(),
        ..Default::default()
    };
    link(&mut slot, egress);
    destination(&mut slot, key, egress);
    if !egress.ports.is_single() {
        slot.flags |= layout::OUTPUT_PORT_DELTA;
        let first = if key.ports.is_single() {
            slot.flags |= layout::OUTPUT_PORT_OF_GROUP;
            low_bits(key.groups.address) as u16
        } else {
            key.ports.first
        };
        slot.dport = egress.ports.first.wrapping_sub(first).to_ne_bytes();
    }
    if !egress.destination.address.is_multicast() {
        slot.flags |= layout::OUTPUT_UNICAST;
    }
    if egress.answers {
        slot.flags |= layout::OUTPUT_ANSWERS;
    }
    if let Some(source) = egress.source {
        slot.flags |= layout::OUTPUT_SOURCE;
        slot.source = address_bytes(source);
    }
    if let Some(port) = egress.source_port {
        slot.flags |= layout::OUTPUT_SPORT;
        slot.sport = port.to_be_bytes();
    }
    match egress.ttl {
        Ttl::Keep => {}
        Ttl::Decrement => slot.flags |= layout::OUTPUT_TTL_DEC,
        Ttl::Set(ttl) => {
            slot.flags |= layout::OUTPUT_TTL_SET;
            slot.ttl = ttl;
        }
    }
    if let Some(dscp) = egress.dscp {
        slot.flags |= layout::OUTPUT_DSCP;
        slot.tos = dscp << 2;
    }
    slot
}

fn link(slot: &mut layout::Output, egress: &Egress) {
    let (destination, source) = match egress.link {
        LinkHeader::None | LinkHeader::Host | LinkHeader::Routed { .. } => return,
        LinkHeader::Group { source } => (Mac::of_group(egress.destination.address), source),
        LinkHeader::Neighbour {
            source,
            destination,
        } => (destination, source),
    };
    slot.flags |= layout::OUTPUT_MAC;
    slot.mac[..6].copy_from_slice(&destination.0);
    slot.mac[6..].copy_from_slice(&source.0);
}

fn destination(slot: &mut layout::Output, key: &RouteKey, egress: &Egress) {
    slot.destination = address_bytes(egress.destination.address);
    if egress.destination.is_host() {
        return;
    }
    slot.flags |= layout::OUTPUT_GROUP_RANGE;
    if key.groups.is_host() {
        slot.flags |= layout::OUTPUT_GROUP_OF_PORT;
        let last = if egress.destination.address.is_ipv4() {
            0..4
        } else {
            12..16
        };
        let first = low_bits(egress.destination.address);
        let less = first.wrapping_sub(key.ports.first.into());
        slot.destination[last].copy_from_slice(&less.to_be_bytes());
    } else if egress.destination.address.is_ipv4() {
        let host_bits = u32::MAX
            .checked_shr(u32::from(egress.destination.length))
            .unwrap_or(0);
        slot.destination[4..8].copy_from_slice(&host_bits.to_be_bytes());
    }
}
