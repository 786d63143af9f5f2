//! A socket that captures at one point of a rule. Packets that arrive too fast are lost to the capture alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::net::if_::if_nametoindex;
use packet::ethernet;
use sys::capture_sign::CaptureSign;
use sys::sniffer::{Direction, Sniffed, Sniffer};

use super::capture_point::CapturePoint;
use super::filter::{Filter, Packet};
use super::headers::Headers;
use crate::capture::{self, Sockets};
use crate::failure::{Failure, unavailable};

/// Buffer of each socket while the capture is written, in bytes.
const BUFFER: usize = 16 << 20;

/// A socket, what it captured and what it lost.
pub(crate) struct CaptureSocket {
    pub(crate) point: CapturePoint,
    /// None once the rule no longer has the point.
    sniffer: Option<(Sniffer, CaptureSign)>,
    pub(crate) ethernet: bool,
    pub(crate) taken: u64,
    pub(crate) dropped: u64,
}

impl CaptureSocket {
    /// Begins to capture.
    pub(crate) fn open(
        point: CapturePoint,
        snap_length: u32,
        sockets: &Sockets,
    ) -> Result<Self, Failure> {
        let here = if_nametoindex(point.interface.as_str());
        if here != Ok(point.index) {
            let (what, name) = (&point.what, &point.interface);
            let message = format!(
                "{what}: the daemon's interface {name} is not in this network namespace; run mcr \
                 tap in the daemon's (nsenter --net=/run/netns/NAME)"
            );
            return Err(unavailable(message));
        }
        let destination = point.endpoint.destination;
        let opened = sockets.open(BUFFER).and_then(|socket| {
            Sniffer::open(
                socket,
                point.index,
                point.direction,
                (destination.address, destination.length),
                // Headers are needed for the filter, however little of a packet is written.
                snap_length.max(Headers::LONGEST),
            )
        });
        let sniffer = opened.map_err(|error| cannot_capture(&point, &error))?;
        let shown = CaptureSign::show(point.index);
        let sign = shown.map_err(|error| cannot_capture(&point, &error))?;
        Ok(Self {
            ethernet: sniffer.is_ethernet(),
            point,
            sniffer: Some((sniffer, sign)),
            taken: 0,
            dropped: 0,
        })
    }

    /// The descriptor to wait on for packets, while it captures.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sniffer.as_ref().map(|(sniffer, _)| sniffer.as_fd())
    }

    /// Takes the next packet, if there is one.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<Option<Sniffed>, Failure> {
        let Some((sniffer, _)) = &self.sniffer else {
            return Ok(None);
        };
        let received = sniffer.receive(buffer);
        received.map_err(|error| cannot_capture(&self.point, &error))
    }

    /// Whether a packet belongs to this point and passes the filter, as far as the kernel's filter has not
    /// decided it.
    pub(crate) fn wants(&self, bytes: &[u8], length: usize, filter: Option<&Filter>) -> bool {
        let link = if self.ethernet { ethernet::HEADER } else { 0 };
        let Some(headers) = bytes.get(link..).and_then(Headers::read) else {
            return false;
        };
        let endpoint = &self.point.endpoint;
        // A fragment without ports may belong to any stream.
        let is_own = headers.ports.is_none_or(|(source, port)| {
            let own_port = self.point.source_port;
            endpoint.ports.contains(port) && own_port.is_none_or(|own| own == source)
        }) && endpoint.listens_to(headers.source);
        let packet = Packet {
            headers,
            length,
            outbound: self.point.direction == Direction::Out,
        };
        is_own && filter.is_none_or(|filter| filter.wants(&packet))
    }

    /// Whether it captures at that point.
    pub(crate) fn is_at(&self, point: &CapturePoint) -> bool {
        self.sniffer.is_some() && self.point == *point
    }

    /// Ends the capture and adds up its losses.
    pub(crate) fn close(&mut self) {
        let Some((sniffer, _)) = self.sniffer.take() else {
            return;
        };
        if let Ok(statistics) = sniffer.statistics() {
            self.dropped += statistics.drops;
        }
    }
}

fn cannot_capture(point: &CapturePoint, error: &io::Error) -> Failure {
    let (what, interface) = (&point.what, &point.interface);
    capture::refused(&format!("{what}: cannot look at {interface}"), error)
}
