//! Whole frames by AF_PACKET, on devices without Ethernet header IP packets: any source address, no
//! route needed, complete checksums as from a wire rather than the partial ones of local sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use packet::craft::Craft;
use packet::parse::Link;
use packet::{checksum, ethernet, ipv6, udp};
use sys::udp::frame;
use sys::udp::send::{Message, SendBatch};

use super::error::Error;
use super::group::{BATCH, Group};
use super::option::{Method, Options};
use super::outcome::Outcome;
use crate::endpoint::Destination;
use crate::host;

/// Room in front of each payload: Ethernet, IPv6, UDP.
pub(super) const HEADROOM: usize = ethernet::HEADER + ipv6::HEADER + udp::HEADER;
/// First of the source ports if none is given.
const FIRST_PORT: u16 = 40_000;

/// Returns whether `options` request raw frames, or need them to send from another host's address.
pub(super) fn is_needed(options: &Options) -> Result<bool, Error> {
    match (options.method, options.source) {
        (Method::Raw, _) => Ok(true),
        (Method::Auto, Some(source)) => {
            let group = |destination: &Destination| {
                destination.address.ip().is_multicast() && destination.interface.is_some()
            };
            let local = host::is_local(source).map_err(Error::Interfaces)?;
            Ok(!local && options.destinations.iter().all(group))
        }
        _ => Ok(false),
    }
}

/// The streams' headers and the interfaces' sockets.
pub(super) struct Raw {
    /// By interface and, where the device adds its own link header, ethertype.
    sockets: Vec<((u32, Option<u16>), OwnedFd)>,
    streams: Vec<Stream>,
    batch: SendBatch,
    messages: Vec<Message>,
    /// Of each message: its stream, and the bytes of its payload.
    contents: Vec<(usize, usize)>,
    /// IPv4 identification of the next datagram.
    id: u16,
    pub(super) outcome: Outcome,
}

struct Stream {
    socket: usize,
    source: IpAddr,
    destination: SocketAddr,
    header: Vec<u8>,
    /// Bytes of it before the IP header.
    link: usize,
}

impl Raw {
    pub(super) fn open(options: &Options) -> Result<Self, Error> {
        let mut raw = Self {
            sockets: Vec::new(),
            streams: Vec::with_capacity(options.destinations.len()),
            batch: SendBatch::new(BATCH),
            messages: Vec::with_capacity(BATCH),
            contents: Vec::with_capacity(BATCH),
            id: 0,
            outcome: Outcome::default(),
        };
        for (number, destination) in options.destinations.iter().enumerate() {
            let stream = raw.stream(number, destination, options)?;
            raw.streams.push(stream);
        }
        Ok(raw)
    }

    /// Sends the groups' datagrams, a system call for each run of one interface.
    pub(super) fn send(&mut self, buffer: &mut [u8], groups: &[Group]) {
        let mut socket = None;
        for group in groups {
            let next_socket = self.streams[group.stream].socket;
            if socket != Some(next_socket) {
                self.flush(socket, buffer);
                socket = Some(next_socket);
            }
            for start in group.bytes.clone().step_by(group.slot) {
                if self.messages.len() == BATCH {
                    self.flush(socket, buffer);
                }
                let slot = start..start + group.slot;
                let header = self.write_header(group.stream, &mut buffer[slot.clone()]);
                self.messages.push(Message {
                    bytes: slot.start + HEADROOM - header..slot.end,
                    segment: 0,
                });
                self.contents.push((group.stream, group.slot - HEADROOM));
            }
        }
        self.flush(socket, buffer);
    }

    fn flush(&mut self, socket: Option<usize>, buffer: &[u8]) {
        let Some(socket) = socket else {
            return;
        };
        let mut done = 0;
        while done < self.messages.len() {
            let socket = self.sockets[socket].1.as_fd();
            match self.batch.send(socket, buffer, &self.messages[done..]) {
                Ok(count) => {
                    let taken = done..done + count.max(1);
                    self.outcome.sent.packets += taken.len() as u64;
                    let sizes = self.contents[taken.clone()].iter().map(|&(_, size)| size);
                    self.outcome.sent.bytes += sizes.sum::<usize>() as u64;
                    done = taken.end;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let stream = &self.streams[self.contents[done].0];
                    let to = stream.destination;
                    self.outcome.refused(1, to, Method::Raw, &error);
                    done += 1;
                }
            }
        }
        self.messages.clear();
        self.contents.clear();
    }

    /// Writes the headers so that they end where the payload begins; returns their length.
    fn write_header(&mut self, stream: usize, slot: &mut [u8]) -> usize {
        let stream = &self.streams[stream];
        let length = stream.header.len();
        let frame = &mut slot[HEADROOM - length..];
        frame[..length].copy_from_slice(&stream.header);
        let ip = &mut frame[stream.link..];
        let ip_header = length - stream.link - udp::HEADER;
        if stream.source.is_ipv4() {
            let total = ip.len() as u16;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[4..6].copy_from_slice(&self.id.to_be_bytes());
            ip[10..12].fill(0);
            let sum = !checksum::sum(&ip[..ip_header]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            self.id = self.id.wrapping_add(1);
        } else {
            let payload = (ip.len() - ipv6::HEADER) as u16;
            ip[4..6].copy_from_slice(&payload.to_be_bytes());
        }
        let datagram = &mut ip[ip_header..];
        let udp_length = datagram.len() as u16;
        datagram[4..6].copy_from_slice(&udp_length.to_be_bytes());
        let sum = checksum::udp(stream.source, stream.destination.ip(), datagram);
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        length
    }

    fn stream(
        &mut self,
        number: usize,
        destination: &Destination,
        options: &Options,
    ) -> Result<Stream, Error> {
        let address = destination.address;
        let missing = |missing| Error::Raw {
            destination: address,
            missing,
        };
        if !address.ip().is_multicast() {
            return Err(missing("a group as destination"));
        }
        let interface_name = destination.interface.as_deref();
        let name = interface_name.ok_or_else(|| missing("an interface, as in GROUP%eth0:PORT"))?;
        let interface = host::interface(name)
            .map_err(Error::Interfaces)?
            .ok_or_else(|| Error::no_interface(address, name))?;
        let source = options
            .source
            .or_else(|| interface.address_for(address.ip()))
            .filter(|source| source.is_ipv4() == address.is_ipv4())
            .ok_or_else(|| missing("a source address of the group's family, --source"))?;
        let own_port = FIRST_PORT.wrapping_add(number as u16 % 20_000);
        let from = SocketAddr::new(source, options.source_port.unwrap_or(own_port));
        let mut craft = Craft::new(from, address, Vec::new());
        let (link, bare) = match interface.mac {
            Some(mac) => {
                craft.macs.1 = mac;
                (ethernet::HEADER, None)
            }
            None if address.is_ipv4() => (0, Some(ethernet::IPV4)),
            None => (0, Some(ethernet::IPV6)),
        };
        if bare.is_some() {
            craft.link = Link::None;
        }
        craft.ttl = options.ttl;
        craft.traffic_class = options.dscp << 2;
        Ok(Stream {
            socket: self.socket((interface.index, bare), address)?,
            source,
            destination: address,
            header: craft.frame(),
            link,
        })
    }

    fn socket(&mut self, at: (u32, Option<u16>), destination: SocketAddr) -> Result<usize, Error> {
        if let Some(index) = self.sockets.iter().position(|(open, _)| *open == at) {
            return Ok(index);
        }
        let opened = match at {
            (index, None) => frame::open(index),
            (index, Some(ethertype)) => frame::open_bare(index, ethertype),
        };
        let socket = opened.map_err(|source| Error::Socket {
            action: "open a packet socket",
            destination,
            source,
        })?;
        self.sockets.push((at, socket));
        Ok(self.sockets.len() - 1)
    }
}
