//! Routes as the worker executes them: everything that does not depend on the packet is worked out
//! when the table changes, so that a copy is the packet's headers, rewritten, before its payload.

use std::net::IpAddr;

use model::net::{Mac, Ports, Prefix};
use model::table::{DownReason, Egress, LinkHeader, Output, OutputState, RouteKey, Ttl};
use packet::checksum;
use packet::datagram::Datagram;
use packet::ethernet;
use packet::ipv6;
use packet::parse::{ChecksumState, Gso};
use packet::rewrite::{LinkChange, Rewrite, TtlChange, rewrite};
use packet::udp;
use packet::verdict::DropReason;
use sys::packet_socket::{VNET_HEADER, VnetHeader};

use super::handover::CountedRoute;
use super::limits::CompiledLimit;
use super::shared::{FlowOwner, OutputSlot, RuleSlot};

/// Where the IP header lies in a [`Head`]: behind room for vnet header and link header.
pub(super) const IP_AT: usize = VNET_HEADER + ethernet::HEADER;
/// Room for the largest headers: 60 bytes of IPv4 or 40 of IPv6 with extensions, 8 of UDP.
pub(super) const HEAD: usize = sys::uring::HEAD;

/// A route, ready to execute.
#[derive(Clone, Debug)]
pub(super) struct CompiledRoute {
    /// Its rule's counters.
    pub rule: RuleSlot,
    /// Cap on what the rule accepts.
    pub limit: Option<CompiledLimit>,
    /// Whether packets may leave merged: not where outputs judge each of them.
    pub merge: bool,
    /// Whether packets are looked at for the stream's health.
    pub is_watched: bool,
    /// Whether the budget applies to an output.
    pub unicast: bool,
    /// Whose flows are counted; only of a range.
    pub flows: Option<FlowOwner>,
    /// Its outputs, in the rule's order.
    pub outputs: Box<[CompiledOutput]>,
}

/// One output.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompiledOutput {
    /// Its counters.
    pub slot: OutputSlot,
    /// Cap on what it sends.
    pub limit: Option<CompiledLimit>,
    /// What becomes of its copies.
    pub action: Action,
}

/// What becomes of an output's copies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// They are dropped.
    Drop(DropReason),
    /// They are sent.
    Send(Sending),
}

/// How an output's copies are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// Interface they leave by.
    pub interface: u32,
    /// Its MTU in bytes.
    pub(super) mtu: usize,
    /// Whether copies above it are cut where that is allowed.
    pub(super) fragment: bool,
    /// Whether the budget applies.
    pub(super) unicast: bool,
    change: Rewrite,
    /// For ranges: what each packet's own destination is made of.
    range: Option<Range>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    destination: Prefix,
    ports: Ports,
    first_port: u16,
    group_mac: bool,
}

/// The headers of a packet or a run of packets, as they came, with room in front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// The headers, IP at [`IP_AT`].
    pub bytes: [u8; HEAD],
    /// The datagram, its offsets within `bytes`.
    pub datagram: Datagram,
}

/// One copy's headers: vnet header, link header, IP and UDP.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyHead {
    bytes: [u8; HEAD],
    start: usize,
    end: usize,
}

impl CompiledRoute {
    /// Works out what can be known beforehand.
    #[must_use]
    pub(super) fn compile(key: &RouteKey, counted: &CountedRoute) -> Self {
        let route = &counted.route;
        let outputs = route.outputs.iter().zip(&counted.outputs);
        let outputs = outputs.map(|(output, slot)| CompiledOutput {
            slot: *slot,
            limit: output.limit.as_ref().map(CompiledLimit::compile),
            action: compile_output(key, output),
        });
        Self {
            rule: counted.rule,
            limit: route.limit.as_ref().map(CompiledLimit::compile),
            merge: route.outputs.iter().all(takes_merged),
            is_watched: route.inspect.is_some(),
            unicast: route.outputs.iter().any(is_unicast),
            flows: Some(counted.flows).filter(|_| !key.groups.is_host() || !key.ports.is_single()),
            outputs: outputs.collect(),
        }
    }

    /// Says whether anything in it has a rate limit.
    pub(super) fn has_limits(&self) -> bool {
        self.limit.is_some() || !self.merge
    }
}

fn takes_merged(output: &Output) -> bool {
    let cuts = matches!(&output.state, OutputState::Up(egress) if egress.fragment);
    output.limit.is_none() && !cuts
}

fn is_unicast(output: &Output) -> bool {
    matches!(&output.state, OutputState::Up(egress) if !egress.destination.address.is_multicast())
}

fn compile_output(key: &RouteKey, output: &Output) -> Action {
    match &output.state {
        OutputState::Down(reason) => Action::Drop(drop_reason(*reason)),
        OutputState::Up(egress) => Action::Send(Sending {
            interface: egress.interface.0,
            mtu: egress.mtu as usize,
            fragment: egress.fragment,
            unicast: is_unicast(output),
            change: Rewrite {
                source: egress.source,
                destination: egress.destination.address,
                source_port: egress.source_port,
                destination_port: egress.ports.first,
                ttl: match egress.ttl {
                    Ttl::Keep => TtlChange::Keep,
                    Ttl::Decrement => TtlChange::Decrement,
                    Ttl::Set(ttl) => TtlChange::Set(ttl),
                },
                dscp: egress.dscp,
                link: link_change(egress),
            },
            range: range(key, egress),
        }),
    }
}

fn link_change(egress: &Egress) -> LinkChange {
    let (source, destination) = match egress.link {
        LinkHeader::None => return LinkChange::None,
        LinkHeader::Group { source } => (source, Mac::of_group(egress.destination.address)),
        LinkHeader::Neighbour {
            source,
            destination,
        } => (source, destination),
    };
    LinkChange::Ethernet {
        source: source.0,
        destination: destination.0,
    }
}

fn range(key: &RouteKey, egress: &Egress) -> Option<Range> {
    let single = egress.destination.is_host() && egress.ports.is_single();
    (!single).then_some(Range {
        destination: egress.destination,
        ports: egress.ports,
        first_port: key.ports.first,
        group_mac: matches!(egress.link, LinkHeader::Group { .. }),
    })
}

const fn drop_reason(reason: DownReason) -> DropReason {
    match reason {
        DownReason::InterfaceMissing => DropReason::InterfaceMissing,
        DownReason::InterfaceDown => DropReason::InterfaceDown,
        DownReason::NoAddress => DropReason::NoAddress,
        DownReason::NoRoute => DropReason::NoRoute,
        DownReason::NoNeighbour => DropReason::NoNeighbour,
    }
}

impl Sending {
    /// What this packet's copy looks like.
    #[inline]
    fn change_for(&self, datagram: &Datagram) -> Rewrite {
        let Some(range) = &self.range else {
            return self.change;
        };
        let mut change = self.change;
        change.destination = range.destination.carry(datagram.destination);
        if !range.ports.is_single() {
            let offset = datagram.destination_port.wrapping_sub(range.first_port);
            change.destination_port = range.ports.first.wrapping_add(offset);
        }
        if let (true, LinkChange::Ethernet { destination, .. }) =
            (range.group_mac, &mut change.link)
        {
            *destination = Mac::of_group(change.destination).0;
        }
        change
    }

    /// Why no copy of the datagram may leave here, before anything is rewritten: TTL before size,
    /// as in `packet::reference`.
    #[inline]
    #[must_use]
    pub(super) fn refusal(&self, datagram: &Datagram) -> Option<DropReason> {
        if self.change.ttl == TtlChange::Decrement && datagram.ttl <= 1 {
            return Some(DropReason::TtlExpired);
        }
        (datagram.largest_packet() > self.mtu).then_some(DropReason::TooBig)
    }

    /// Ethertype of the copies.
    #[inline]
    #[must_use]
    pub(super) const fn protocol(&self) -> u16 {
        match self.change.destination {
            IpAddr::V4(_) => ethernet::IPV4,
            IpAddr::V6(_) => ethernet::IPV6,
        }
    }
}

impl Head {
    /// Takes the headers out of `packet`; `None` if they are longer than any UDP packet's should
    /// be (IPv6 extension headers).
    #[inline]
    #[must_use]
    pub(super) fn of(packet: &[u8], datagram: &Datagram) -> Option<Self> {
        let headers = packet.get(datagram.ip_offset..datagram.payload_offset())?;
        let mut bytes = [0; HEAD];
        bytes
            .get_mut(IP_AT..IP_AT + headers.len())?
            .copy_from_slice(headers);
        let mut head = Self {
            bytes,
            datagram: datagram.moved(IP_AT),
        };
        if datagram.gso.is_some() {
            head.leave_checksum();
        }
        Some(head)
    }

    /// Leaves the checksums of a super-packet to whoever segments it. A chain (`rx-gro-list`) carries
    /// its first datagram's, partial or complete.
    fn leave_checksum(&mut self) {
        let datagram = &mut self.datagram;
        let length = datagram.udp_length;
        datagram.checksum = ChecksumState::Partial;
        datagram.udp_checksum =
            checksum::pseudo_header(datagram.source, datagram.destination, length);
        let at = datagram.udp_offset + 6;
        self.bytes[at..at + 2].copy_from_slice(&datagram.udp_checksum.to_be_bytes());
    }

    /// Makes a single datagram's headers those of a super-packet of `ip_length` bytes whose
    /// datagrams carry `size` bytes of payload; its UDP checksum becomes partial.
    pub(super) fn merge(&mut self, ip_length: usize, size: u16) {
        self.datagram.gso = Some(Gso { size });
        self.resize(ip_length);
    }

    /// The headers of one datagram of a super-packet: the `index`-th, which carries `size` bytes.
    pub(super) fn segment(&self, index: u16, size: u16) -> Self {
        let mut segment = *self;
        segment.datagram.gso = None;
        segment.resize(self.datagram.payload_offset() - IP_AT + usize::from(size));
        if self.datagram.source.is_ipv4() {
            let ip = &mut segment.bytes[IP_AT..];
            let id = u16::from_be_bytes([ip[4], ip[5]]);
            replace(ip, 4, id.wrapping_add(index));
        }
        segment
    }

    /// Changes the lengths, and makes the UDP checksum partial to match.
    fn resize(&mut self, ip_length: usize) {
        let datagram = &mut self.datagram;
        let udp_length = (ip_length - (datagram.udp_offset - IP_AT)) as u16;
        datagram.ip_length = ip_length;
        datagram.udp_length = udp_length;
        datagram.checksum = ChecksumState::Partial;
        datagram.udp_checksum =
            checksum::pseudo_header(datagram.source, datagram.destination, udp_length);
        let (ip, udp) = self.bytes[IP_AT..].split_at_mut(datagram.udp_offset - IP_AT);
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        udp[6..8].copy_from_slice(&datagram.udp_checksum.to_be_bytes());
        if datagram.source.is_ipv4() {
            replace(ip, 2, ip_length as u16);
        } else {
            let payload = (ip_length - ipv6::HEADER) as u16;
            ip[4..6].copy_from_slice(&payload.to_be_bytes());
        }
    }

    /// Makes the headers of one copy.
    ///
    /// # Errors
    /// The reason why it cannot be sent.
    #[inline]
    pub(super) fn copy_for(&self, to: &Sending) -> Result<CopyHead, DropReason> {
        let mut bytes = self.bytes;
        let datagram = &self.datagram;
        let start = rewrite(&mut bytes, datagram, &to.change_for(datagram))?;
        let end = datagram.payload_offset();
        let vnet = self.vnet(start).encode();
        let at = start - VNET_HEADER;
        bytes[at..start].copy_from_slice(&vnet);
        Ok(CopyHead {
            bytes,
            start: at,
            end,
        })
    }

    #[inline]
    fn vnet(&self, start: usize) -> VnetHeader {
        let mut vnet = VnetHeader::default();
        if self.datagram.checksum == ChecksumState::Partial {
            vnet.flags = VnetHeader::NEEDS_CHECKSUM;
            vnet.checksum_start = (self.datagram.udp_offset - start) as u16;
            vnet.checksum_offset = 6;
        }
        if let Some(gso) = self.datagram.gso {
            vnet.gso_type = VnetHeader::GSO_UDP;
            vnet.gso_size = gso.size;
            vnet.header_bytes = (self.datagram.payload_offset() - start) as u16;
        }
        vnet
    }
}

impl CopyHead {
    /// Takes the vnet header's content off: nothing is left to the device.
    pub(super) fn forget_offload(&mut self) {
        self.bytes[self.start..self.start + VNET_HEADER].fill(0);
    }

    /// The UDP header.
    pub(super) fn udp_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end - udp::HEADER..self.end]
    }

    /// Where the IP header lies in [`CopyHead::with_udp`]'s bytes.
    pub(super) const fn ip_at(&self) -> usize {
        IP_AT - self.start
    }

    /// The bytes to send before the payload, from their start, with the UDP header or without.
    pub(super) fn with_udp(&self, udp: bool) -> ([u8; HEAD], usize) {
        let end = if udp {
            self.end
        } else {
            self.end - udp::HEADER
        };
        let mut bytes = [0; HEAD];
        let length = end - self.start;
        bytes[..length].copy_from_slice(&self.bytes[self.start..end]);
        (bytes, length)
    }

    /// The bytes to send before the payload.
    #[inline]
    #[must_use]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

/// Replaces a word of an IPv4 header and keeps its checksum right.
fn replace(header: &mut [u8], at: usize, new: u16) {
    let mut delta = checksum::Delta::default();
    delta.replace(u16::from_be_bytes([header[at], header[at + 1]]), new);
    let sum = delta.apply(u16::from_be_bytes([header[10], header[11]]));
    header[at..at + 2].copy_from_slice(&new.to_be_bytes());
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
