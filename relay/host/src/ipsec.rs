//! IPsec policies for packets that leave this host, and whether there are security associations for them,
//! as the kernel lists them (NETLINK_XFRM).
//!
//! A notification only signals a change; its content is not used, and keys are skipped.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;

use compile::host::{Host, NextHop};
use compile::ipsec::{Action, Flow, Judgement, Policies, Policy, Selector, Template};
use futures::StreamExt;
use netlink_packet_xfrm::{
    AF_INET6, Address, UserPolicyDefault, UserPolicyInfo, UserSaInfo, UserTemplate,
    XFRM_MSG_GETDEFAULT, XFRM_MSG_GETPOLICY, XFRM_MSG_GETSA, XFRM_USER_POLICY_INFO_LEN,
    XFRM_USER_TEMPLATE_LEN, XFRMA_IF_ID, XFRMA_MARK, XFRMA_POLICY_TYPE, XFRMA_TMPL,
};
use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use rtnetlink::sys::SocketAddr;
use rtnetlink::sys::protocols::NETLINK_XFRM;
use rules::net::{Ifindex, Prefix};
use rules::rule::SourceChoice;

use super::raw::{Changes, Handle, Message, connect, follow};

/// XFRMNLGRP_EXPIRE, _SA, _POLICY and _MIGRATE of linux/xfrm.h.
const GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
// linux/xfrm.h.
const POLICY_OUT: u8 = 1;
const POLICY_BLOCK: u8 = 1;
const DEFAULT_BLOCK: u8 = 1;
const TYPE_MAIN: u8 = 0;
const MODE_TRANSPORT: u8 = 0;
/// Sizes of the structs that the requests begin with, in bytes.
const POLICY_ID: usize = 64;
const SA_ID: usize = 24;

/// Follows the kernel's policies.
pub struct Ipsec {
    /// `None` if the kernel has no IPsec, or does not show it to this process.
    handle: Option<Handle>,
    changes: Changes,
    cached: Option<Arc<Policies>>,
}

impl Ipsec {
    /// Begins to follow the policies of the calling thread's network namespace.
    pub fn follow() -> Self {
        let (handle, changes) = match open() {
            Ok((handle, changes)) => (Some(handle), changes),
            Err(error) => {
                tracing::debug!(%error, "no IPsec policies are followed");
                (None, futures::channel::mpsc::unbounded().1)
            }
        };
        Self {
            handle,
            changes,
            cached: None,
        }
    }

    /// Waits for the next change.
    pub async fn changed(&mut self) {
        match (self.changes.next().await, &self.handle) {
            (Some(_), _) => {}
            (None, Some(_)) => *self = Self::follow(),
            (None, None) => std::future::pending().await,
        }
        while self.changes.try_recv().is_ok() {}
        self.cached = None;
    }

    /// The current policies.
    pub async fn policies(&mut self) -> Arc<Policies> {
        let policies = match (self.cached.take(), &self.handle) {
            (Some(cached), _) => cached,
            (None, Some(handle)) => Arc::new(read(handle).await),
            (None, None) => Arc::default(),
        };
        Arc::clone(self.cached.insert(policies))
    }
}

fn open() -> io::Result<(Handle, Changes)> {
    // Requests use a separate socket, so that an overrun of notifications does not affect them.
    let changes = follow(NETLINK_XFRM, GROUPS)?;
    let (handle, _) = connect(NETLINK_XFRM, 0)?;
    Ok((handle, changes))
}

async fn read(handle: &Handle) -> Policies {
    let listed: Vec<Listed> = list(handle, XFRM_MSG_GETPOLICY, POLICY_ID, NLM_F_DUMP)
        .await
        .iter()
        .filter_map(|body| Listed::parse(body))
        .filter(Listed::concerns_copies)
        .collect();
    let bodies = if listed.iter().any(|policy| !policy.templates.is_empty()) {
        list(handle, XFRM_MSG_GETSA, SA_ID, NLM_F_DUMP).await
    } else {
        Vec::new()
    };
    let associations = bodies
        .iter()
        .filter_map(|body| UserSaInfo::parse(body).ok());
    let mut ready: BTreeMap<(u8, u8, u32), Vec<IpAddr>> = BTreeMap::new();
    // An association without an SPI is still being negotiated.
    for association in associations.filter(|one| one.id.spi != 0) {
        let key = (association.id.proto, association.mode, association.reqid);
        let peer = ip(association.id.daddr, association.family);
        ready.entry(key).or_default().push(peer);
    }
    let mut policies: Vec<Policy> = listed.iter().map(|one| policy(one, &ready)).collect();
    let defaults = list(handle, XFRM_MSG_GETDEFAULT, 3, 0).await;
    let body = defaults.first();
    let default = body.and_then(|body| UserPolicyDefault::parse(body).ok());
    if default.is_some_and(|default| default.output == DEFAULT_BLOCK) {
        policies.extend([false, true].map(blocked_by_default));
    }
    Policies::new(policies)
}

/// Makes the kernel ask key managers for the associations that outputs wait for, as a program's first packet
/// would: with a socket that is connected and sends nothing.
pub(crate) fn ask_for_associations(host: &Host) {
    for (query, next_hop) in &host.next_hops {
        let (interface, source) = match next_hop {
            NextHop::Resolved {
                interface, source, ..
            }
            | NextHop::Unresolved {
                interface, source, ..
            }
            | NextHop::Routed {
                interface, source, ..
            } => (*interface, *source),
            NextHop::NoRoute(_) | NextHop::Here { .. } => continue,
        };
        let (packet, destination) = (query.packet, host.address(&query.destination));
        let (Some(destination), Some(ports)) = (destination, packet.ports) else {
            continue;
        };
        let flow = Flow {
            source: match packet.source {
                SourceChoice::Auto => source,
                SourceChoice::Keep => None,
                SourceChoice::Address(address) => Some(address),
            },
            destination: Prefix::host(destination),
            source_port: packet.source_port,
            ports,
            interface,
        };
        if let Judgement::Waits(policy) = host.policies.judge(&flow) {
            let from = flow.source.or(source).unwrap_or(any(destination.is_ipv4()));
            let asked = UdpSocket::bind((from, packet.source_port.unwrap_or(0)))
                .or_else(|_| UdpSocket::bind((from, 0)))
                .and_then(|socket| socket.connect((destination, ports.first)));
            tracing::debug!(
                ?asked,
                policy = policy.text,
                "asked for a security association"
            );
        }
    }
}

/// The bodies of all answers; none if the kernel refuses.
async fn list(handle: &Handle, kind: u16, length: usize, flags: u16) -> Vec<Vec<u8>> {
    let body = vec![0; length];
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let request = NetlinkMessage::new(header, NetlinkPayload::from(Message { kind, body }));
    let Ok(answers) = handle.request(request, SocketAddr::new(0, 0)) else {
        return Vec::new();
    };
    let bodies = answers.filter_map(async |answer| match answer.payload {
        NetlinkPayload::InnerMessage(message) => Some(message.body),
        NetlinkPayload::Error(error) => {
            tracing::debug!(%error, kind, "cannot list what IPsec has");
            None
        }
        _ => None,
    });
    bodies.collect().await
}

/// A policy as the kernel lists it.
struct Listed {
    info: UserPolicyInfo,
    templates: Vec<UserTemplate>,
    /// Whether it is a sub-policy: those are evaluated first, and main policies in addition.
    is_sub: bool,
    /// Whether it applies to packets without mark and interface ID.
    is_plain: bool,
}

impl Listed {
    fn parse(body: &[u8]) -> Option<Self> {
        let mut listed = Self {
            info: UserPolicyInfo::parse(body).ok()?,
            templates: Vec::new(),
            is_sub: false,
            is_plain: true,
        };
        let attributes = NlasIterator::new(body.get(XFRM_USER_POLICY_INFO_LEN..)?);
        for attribute in attributes.map_while(Result::ok) {
            let value = attribute.value();
            match attribute.kind() {
                XFRMA_TMPL => {
                    let chunks = value.chunks_exact(XFRM_USER_TEMPLATE_LEN);
                    let templates = chunks.filter_map(|chunk| UserTemplate::parse(chunk).ok());
                    listed.templates = templates.collect();
                }
                XFRMA_POLICY_TYPE => listed.is_sub = value.first() != Some(&TYPE_MAIN),
                // Copies have mark 0, whatever the mask, and interface ID 0.
                XFRMA_MARK | XFRMA_IF_ID => {
                    listed.is_plain &= value.iter().take(4).all(|byte| *byte == 0);
                }
                _ => {}
            }
        }
        Some(listed)
    }

    /// Whether it decides about copies. A sub-policy that passes packets does not decide by itself.
    fn concerns_copies(&self) -> bool {
        let passes = self.info.action != POLICY_BLOCK && self.templates.is_empty();
        self.info.direction == POLICY_OUT && self.is_plain && !(self.is_sub && passes)
    }
}

fn policy(listed: &Listed, ready: &BTreeMap<(u8, u8, u32), Vec<IpAddr>>) -> Policy {
    let info = &listed.info;
    let from = &info.selector;
    let prefix = |address, length| Prefix::new(ip(address, from.family), length);
    let selector = Selector {
        source: prefix(from.saddr, from.prefixlen_s),
        destination: prefix(from.daddr, from.prefixlen_d),
        source_port: (from.sport, from.sport_mask),
        port: (from.dport, from.dport_mask),
        protocol: from.proto,
        interface: u32::try_from(from.ifindex)
            .ok()
            .filter(|link| *link != 0)
            .map(Ifindex),
    };
    let templates = listed.templates.iter();
    let is_required = |template: &&UserTemplate| template.optional == 0;
    let required = templates.filter(is_required).map(|template| Template {
        peer: (template.mode != MODE_TRANSPORT).then(|| ip(template.id.daddr, template.family)),
        ready: ready
            .get(&(template.id.proto, template.mode, template.reqid))
            .cloned()
            .unwrap_or_default(),
    });
    let action = match (info.action, listed.templates.as_slice()) {
        (POLICY_BLOCK, _) => Action::Block,
        (_, []) => Action::Pass,
        _ => Action::Protect(required.collect()),
    };
    Policy {
        text: text(&selector, &action),
        selector,
        priority: info.priority,
        action,
    }
}

fn blocked_by_default(is_ipv4: bool) -> Policy {
    let any = any(is_ipv4);
    Policy {
        selector: Selector {
            source: Prefix::new(any, 0),
            destination: Prefix::new(any, 0),
            source_port: (0, 0),
            port: (0, 0),
            protocol: 0,
            interface: None,
        },
        priority: u32::MAX,
        action: Action::Block,
        text: "that is the default for what none is for (`ip xfrm policy getdefault`)".to_owned(),
    }
}

const fn any(is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    }
}

/// The text of a policy in the form of `ip xfrm policy`.
fn text(selector: &Selector, action: &Action) -> String {
    let prefix = |prefix: Prefix| format!("{}/{}", prefix.address, prefix.length);
    let mut text = format!(
        "`src {} dst {}",
        prefix(selector.source),
        prefix(selector.destination)
    );
    match selector.protocol {
        0 => {}
        17 => text.push_str(" proto udp"),
        other => text.push_str(&format!(" proto {other}")),
    }
    for (name, (port, mask)) in [("sport", selector.source_port), ("dport", selector.port)] {
        if mask != 0 {
            text.push_str(&format!(" {name} {port}"));
        }
    }
    text.push_str(match action {
        Action::Block => " dir out action block`",
        Action::Protect(_) | Action::Pass => " dir out`",
    });
    text
}

fn ip(address: Address, family: u16) -> IpAddr {
    if family == AF_INET6 {
        return Ipv6Addr::from(address.addr).into();
    }
    let [a, b, c, d, ..] = address.addr;
    Ipv4Addr::new(a, b, c, d).into()
}
