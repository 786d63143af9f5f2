//! Which copies the host's own stack must send, and why: sent by device and link address alone they would
//! bypass what it does with packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rules::net::{Ports, Prefix};
use rules::rule::{OutputSpec, SourceChoice};

use super::{Receiver, down};
use crate::host::{Detour, Framing, Host, Interface};
use crate::ipsec::{Flow, Judgement};
use crate::table::{DownReason, LinkHeader};
use crate::{Down, Links};

/// Why the host's own stack must send everything that leaves by an interface.
pub(super) fn foreign(link: &Interface) -> Option<(DownReason, String)> {
    let why = || format!("{} has a link header of its own", link.name);
    (link.framing == Framing::Stack).then(|| (DownReason::NoNeighbour, why()))
}

/// The header of copies that the stack sends. The IPv6 stack prefers the address to which the socket is bound
/// to selecting one.
pub(super) fn by_stack(spec: &OutputSpec, receiver: &Receiver, links: &Links<'_>) -> LinkHeader {
    let by = spec
        .to
        .interface
        .as_deref()
        .and_then(|name| links.named(name));
    LinkHeader::Routed {
        by: by.map(|link| link.index),
        finds_source: spec.source == SourceChoice::Auto
            && spec.to.is_ipv4()
            && matches!(receiver, Receiver::Routed(Detour::ByPacket)),
    }
}

/// Why the host's own stack must send the copies, if it must: sent by device and link address alone they
/// would bypass what it does with packets.
pub(super) fn detour(
    spec: &OutputSpec,
    link: &Interface,
    (receiver, source): (&Receiver, Option<IpAddr>),
    host: &Host,
) -> Result<Option<(DownReason, String)>, Down> {
    if matches!(receiver, Receiver::Here) {
        return Ok(None);
    }
    let flow = Flow {
        source,
        destination: spec.to.destination,
        source_port: spec.source_port,
        ports: spec.to.ports,
        interface: link.index,
    };
    let refused = |text| Err(down(DownReason::IpsecPolicy, text));
    match host.policies.judge(&flow) {
        Judgement::Free => match receiver {
            Receiver::Routed(why) => Ok(Some((DownReason::NoRoute, why.to_string()))),
            _ => Ok(None),
        },
        Judgement::Judged(policy) => {
            let why = format!("the IPsec policy {} may be for it", policy.text);
            Ok(Some((DownReason::IpsecPolicy, why)))
        }
        Judgement::Blocked(policy) => refused(format!(
            "the IPsec policy {} lets none of it out",
            policy.text
        )),
        Judgement::Waits(policy) => refused(format!(
            "the IPsec policy {} lets it out encrypted only, and there is no security association \
             to do so yet; `ip xfrm state` shows those that there are",
            policy.text
        )),
    }
}

/// Why the kernel must judge answers that leave by an interface, if it must: their senders and receivers are
/// unknown beforehand.
pub(super) fn judged_answers(link: &Interface, spec: &OutputSpec, host: &Host) -> Option<String> {
    let any: IpAddr = if spec.to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let flow = Flow {
        source: None,
        destination: Prefix::new(any, 0),
        source_port: None,
        ports: Ports::ALL,
        interface: link.index,
    };
    match host.policies.judge(&flow) {
        Judgement::Free => None,
        Judgement::Judged(policy) | Judgement::Blocked(policy) | Judgement::Waits(policy) => {
            Some(format!("the IPsec policy {} may be for them", policy.text))
        }
    }
}
