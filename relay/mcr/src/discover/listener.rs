//! The sockets that listen, and what they received. Packets that arrive too fast are lost to them alone,
//! and counted.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use packet::content::Guess;
use packet::parse::Link;
use rules::net::LOOPBACK;
use sys::capture_sign::CaptureSign;
use sys::sniffer::Sniffer;

use super::interface::Interface;
use super::stream::Streams;
use crate::capture::{self, Sockets};
use crate::failure::Failure;

/// Bytes captured of each packet: its headers, and enough payload to recognise its content.
const SNAP_LENGTH: usize = 192 + Guess::BYTES;
/// Buffer of each socket, in bytes.
const BUFFER: usize = 8 << 20;
/// Packets received from one socket before the next has its turn.
const TURN: usize = 64;
/// Longest wait before checking for a signal.
const WAIT: Duration = Duration::from_millis(100);

/// Receives what arrives on some interfaces.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) streams: Streams,
    sockets: Vec<Sniffer>,
    /// Interfaces whose packets XDP takes unseen, as no daemon leaves them to tc.
    pub(crate) at_xdp: Vec<String>,
    _signs: Vec<CaptureSign>,
    missed: Vec<u64>,
    buffer: Vec<u8>,
    pub(crate) since: Instant,
}

impl Listener {
    /// Begins to listen once the daemon leaves packets to tc. `xdp_interfaces` returns those
    /// where XDP still takes them.
    pub(crate) fn open(
        interfaces: Vec<Interface>,
        sockets: &Sockets,
        xdp_interfaces: impl Fn(&[Interface]) -> Vec<String>,
    ) -> Result<Self, Failure> {
        let show = |interface: &Interface| {
            let sign = CaptureSign::show(interface.index);
            sign.map_err(|error| cannot_listen(interface, &error))
        };
        let signs = interfaces.iter().map(show).collect::<Result<_, _>>()?;
        let mut at_xdp = Vec::new();
        capture::wait_for_tc(|| {
            at_xdp = xdp_interfaces(&interfaces);
            Ok(at_xdp.is_empty())
        })?;
        let open = |interface: &Interface| {
            let socket = sockets
                .open(BUFFER)
                .and_then(|socket| Sniffer::multicast(socket, interface.index, SNAP_LENGTH as u32));
            socket.map_err(|error| cannot_listen(interface, &error))
        };
        Ok(Self {
            sockets: interfaces.iter().map(open).collect::<Result<_, _>>()?,
            at_xdp,
            _signs: signs,
            missed: vec![0; interfaces.len()],
            interfaces,
            streams: Streams {
                own: own_addresses(),
                ..Streams::default()
            },
            buffer: vec![0; SNAP_LENGTH],
            since: Instant::now(),
        })
    }

    /// Listens until the deadline, or until something sets `ended`.
    pub(crate) fn listen(&mut self, until: Instant, ended: &AtomicBool) -> Result<(), Failure> {
        let mut ended_at = None;
        loop {
            let mut any = false;
            for number in 0..self.sockets.len() {
                any |= self.take(number)?;
            }
            let now = Instant::now();
            if ended_at.is_none() && (now >= until || ended.load(Ordering::Relaxed)) {
                ended_at = Some(now);
            }
            // Packets that are queued by then still count, for a limited time.
            match ended_at {
                Some(ended_at) if !any || now - ended_at > WAIT => break,
                None if !any => {
                    let sockets = self.sockets.iter().map(Sniffer::as_fd);
                    capture::wait(sockets, until.saturating_duration_since(now).min(WAIT));
                }
                _ => {}
            }
        }
        for (missed, socket) in self.missed.iter_mut().zip(&self.sockets) {
            *missed += socket.statistics().map_or(0, |statistics| statistics.drops);
        }
        Ok(())
    }

    /// The interfaces, each with the number of packets that arrived too fast.
    pub(crate) fn missed(&self) -> impl Iterator<Item = (&str, u64)> {
        let names = self.interfaces.iter().map(|link| link.name.as_str());
        names.zip(self.missed.iter().copied())
    }

    /// Receives some packets of a socket; `false` if there was none.
    fn take(&mut self, number: usize) -> Result<bool, Failure> {
        let socket = &self.sockets[number];
        let link = if socket.is_ethernet() {
            Link::Ethernet
        } else {
            Link::None
        };
        for turn in 0..TURN {
            let interface = &self.interfaces[number];
            let received = socket.receive(&mut self.buffer);
            let Some(about) = received.map_err(|error| cannot_listen(interface, &error))? else {
                return Ok(turn > 0);
            };
            // On the loopback interface it is received as well.
            if about.outgoing && interface.name == LOOPBACK {
                continue;
            }
            let frame = &self.buffer[..about.captured];
            self.streams.note(number, link, frame, about);
        }
        Ok(true)
    }
}

fn own_addresses() -> BTreeSet<IpAddr> {
    let links = getifaddrs().into_iter().flatten();
    links.filter_map(|link| ip(&link.address?)).collect()
}

/// The IP address of a socket address, if it has one.
pub(crate) fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let ipv4 = address.as_sockaddr_in().map(|ipv4| ipv4.ip().into());
    ipv4.or_else(|| address.as_sockaddr_in6().map(|ipv6| ipv6.ip().into()))
}

fn cannot_listen(interface: &Interface, error: &io::Error) -> Failure {
    capture::refused(&format!("cannot listen on {}", interface.name), error)
}
