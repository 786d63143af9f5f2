//! The lab bed of the cases: a relay namespace with one ingress and three egress veths, whose far
//! ends are raw wires in a second namespace.
//!
//!     far: in0 ---- in0 :relay: out1, out2, out3 ---- out1, out2, out3 :far
//!
//! After each packet a sentinel goes the same way to every wire, so that "nothing more came" is
//! known without waiting for it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use compile::table::{LocalDelivery, OutputState, Path, Route, RouteKey, Table};
use lab::socket::wait_until_free;
use lab::wait;
use packet::craft::Craft;
use packet::parse::{ChecksumState, Gso, Meta};
use rules::net::{Ifindex, Ports, Prefix};
use sys::frame_socket::{Capture, FrameSocket};
use sys::netns::Namespace;
use sys::packet_socket::{PacketSocket, VNET_HEADER};

use crate::case::{A, B, C, INGRESS, Packet, address, egress_mac, output, route, socket};
use crate::relayed::Sum;

/// The interfaces of the relay: symbol and name.
const INTERFACES: [(Ifindex, &str); 4] = [(INGRESS, "in0"), (A, "out1"), (B, "out2"), (C, "out3")];
/// Every device can carry the largest plain packet of the cases; smaller MTUs are in the table.
const MTU: &str = "9600";
const SENTINEL_GROUP: &str = "239.255.255.250";
const SENTINEL_PORT: u16 = 9;
const PATIENCE: Duration = Duration::from_secs(10);

const NEEDS_CHECKSUM: u8 = 1;
const GSO_UDP: u8 = 5;

/// The bed; dropping it removes both namespaces.
pub(crate) struct Bed {
    pub(crate) relay: Namespace,
    indexes: BTreeMap<Ifindex, Ifindex>,
    sender: FrameSocket,
    receivers: Vec<(Ifindex, FrameSocket)>,
    /// What the relay's stack gets to see: IPv4 and IPv6.
    stack: [FrameSocket; 2],
    sentinels: AtomicU64,
    /// Whether packet sockets make super-packets here.
    pub(crate) super_packets: bool,
    _far: Namespace,
}

impl Bed {
    /// Makes the bed; `None`, with the reason printed, where the test is not root.
    pub(crate) fn new(label: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: {label} needs root for network namespaces");
            return None;
        }
        let relay = Namespace::create("mcrpath", &format!("{label}-relay")).expect("a namespace");
        let far = Namespace::create("mcrpath", &format!("{label}-far")).expect("a namespace");
        for namespace in [&relay, &far] {
            silence(namespace);
        }
        for (symbol, name) in INTERFACES {
            lay_link(&relay, &far, symbol, name);
        }
        let index_in = |namespace: &Namespace, name: &str| {
            let index = namespace.run(|| nix::net::if_::if_nametoindex(name));
            index.expect("the namespace").expect("the interface")
        };
        let open = |namespace: &Namespace, name: &str, capture| {
            let index = index_in(namespace, name);
            let wire = namespace.run(|| FrameSocket::open(index, capture));
            wire.expect("the namespace").expect("a raw socket")
        };
        let behind = |capture| open(&relay, "in0", capture);
        let captured = [A, B, C].into_iter().zip(["out1", "out2", "out3"]);
        Some(Self {
            indexes: INTERFACES
                .map(|(symbol, name)| (symbol, Ifindex(index_in(&relay, name))))
                .into(),
            sender: open(&far, "in0", Capture::None),
            receivers: captured
                .map(|(symbol, name)| (symbol, open(&far, name, Capture::All)))
                .collect(),
            stack: [
                behind(Capture::Ipv4BehindIngress),
                behind(Capture::Ipv6BehindIngress),
            ],
            sentinels: AtomicU64::new(0),
            super_packets: PacketSocket::probe().is_ok_and(|found| found.super_packets),
            relay,
            _far: far,
        })
    }

    /// `table` with this bed's interface indexes, every route on `path`, and the sentinel's route.
    pub(crate) fn table(&self, table: &Table, path: Path) -> Table {
        let mut table = table.clone();
        let (key, sentinel) = sentinel_route();
        table.routes.insert(key, sentinel);
        let routes = table.routes.into_iter();
        let mut own = table.own_addresses;
        let addresses = std::mem::take(&mut own.addresses).into_iter();
        let addresses = addresses.map(|(scope, address)| {
            // An interface for a link-local address, else a VRF.
            let here = |at| match own.scope(at, address) {
                Some(_) => self.index(at),
                None => at,
            };
            (scope.map(here), address)
        });
        own.addresses = addresses.collect();
        let vrfs = own.vrfs.into_iter();
        own.vrfs = vrfs.map(|(at, vrf)| (self.index(at), vrf)).collect();
        Table {
            routes: routes
                .map(|(key, route)| self.place(key, route, path))
                .collect(),
            own_addresses: own,
            budget: table.budget,
        }
    }

    fn place(&self, mut key: RouteKey, mut route: Route, path: Path) -> (RouteKey, Route) {
        key.ingress = self.index(key.ingress);
        route.path = path;
        for output in &mut route.outputs {
            if let OutputState::Up(egress) = &mut output.state {
                egress.interface = self.index(egress.interface);
            }
        }
        (key, route)
    }

    /// Makes the far ends take what XDP hands over, in sequence with all else that is sent to them.
    pub(crate) fn receive_from_xdp(&self) {
        for (_, name) in &INTERFACES[1..] {
            run(self._far.command("ethtool").args(["-K", name, "gro", "on"]));
            run(self
                .relay
                .command("ethtool")
                .args(["-K", name, "tso", "off"]));
        }
    }

    /// This bed's index of an interface of the cases.
    pub(crate) fn index(&self, symbol: Ifindex) -> Ifindex {
        self.indexes[&symbol]
    }

    /// Sends `packet` into the relay.
    pub(crate) fn send(&self, packet: &Packet) {
        send(&self.sender, packet);
    }

    /// Sends `packet` into the relay by one of the egresses.
    pub(crate) fn send_by(&self, symbol: Ifindex, packet: &Packet) {
        let mut wires = self.receivers.iter();
        let wire = wires.find(|(egress, _)| *egress == symbol);
        let (_, wire) = wire.expect("an egress of the bed");
        send(wire, packet);
    }

    /// Sends a sentinel and collects everything that came out before it; the counters are left
    /// to the caller.
    pub(crate) fn collect(&self) -> Sum {
        let number = self.sentinels.fetch_add(1, Ordering::Relaxed);
        let mark = format!("sentinel {number:020}").into_bytes();
        let (from, to) = (
            socket("10.0.0.5", 4000),
            socket(SENTINEL_GROUP, SENTINEL_PORT),
        );
        let drops = host_drops();
        self.send(&Craft::new(from, to, mark.clone()).into());
        let read_until = |wire| read_until(wire, &mark, drops);
        let mut sum = Sum::default();
        for (symbol, wire) in &self.receivers {
            let frames = read_until(wire);
            if !frames.is_empty() {
                let copies = frames
                    .into_iter()
                    .map(|(vnet, frame)| received(vnet, frame));
                sum.copies.insert(*symbol, copies.collect());
            }
        }
        let [ipv4, ipv6] = &self.stack;
        for (_, frame) in read_until(ipv4) {
            sum.passed_up.push(frame);
        }
        // Both protocols pass the same hook in order: what has not arrived by now never will.
        while let Some((_, frame)) = ipv6.receive(Instant::now()).expect("the wire is up") {
            sum.passed_up.push(frame);
        }
        sum
    }
}

/// A UDP socket of both families bound to a port of the calling thread's namespace.
///
/// Dropping it waits until the port is free.
pub(crate) struct Bound {
    socket: Option<UdpSocket>,
    port: u16,
}

impl Bound {
    pub(crate) fn new(port: u16) -> Self {
        let bound = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port));
        let socket = Some(bound.expect("the port is free"));
        Self { socket, port }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = wait_until_free(self.port) {
            eprintln!("{error:#}");
        }
    }
}

/// Packets that the queues between cores dropped since boot. A core's queue holds `netdev_max_backlog` packets of all
/// namespaces, so what others flood is lost to a bed as well.
pub(crate) fn host_drops() -> u64 {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = text.lines().filter_map(|line| line.split(' ').nth(1));
    dropped
        .filter_map(|hex| u64::from_str_radix(hex, 16).ok())
        .sum()
}

/// Reads up to and without the frame that ends in `mark`; all there is where it does not arrive and the host has
/// dropped more packets than `drops`.
fn read_until(wire: &FrameSocket, mark: &[u8], drops: u64) -> Vec<([u8; VNET_HEADER], Vec<u8>)> {
    let patience = wait::scaled(PATIENCE);
    let deadline = Instant::now() + patience;
    let mut frames = Vec::new();
    loop {
        let received = wire.receive(deadline).expect("the wire is up");
        let Some((vnet, frame)) = received else {
            if host_drops() > drops {
                eprintln!("the host dropped packets, and perhaps a sentinel");
                return frames;
            }
            panic!("no sentinel within {patience:?}; before it came {frames:?}");
        };
        if frame.ends_with(mark) {
            return frames;
        }
        frames.push((vnet, frame));
    }
}

/// The route that every table of a bed carries: to all egresses and to the stack.
fn sentinel_route() -> (RouteKey, Route) {
    let key = RouteKey {
        ingress: INGRESS,
        groups: Prefix::host(address(SENTINEL_GROUP)),
        ports: Ports::single(SENTINEL_PORT),
        source: None,
    };
    let outputs = [A, B, C].map(output).to_vec();
    let mut route = route("sentinel", outputs);
    route.local = LocalDelivery::Yes;
    (key, route)
}

/// Sends as soon as there is room: a slow receiver fills the queue.
fn send(socket: &FrameSocket, packet: &Packet) {
    let attempt = || match socket.send(vnet_header(packet), &packet.frame) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        sent => Some(sent),
    };
    let sent = wait::some_within(wait::PATIENCE, "room to send", attempt);
    let sent = sent.unwrap_or_else(|error| panic!("sending {packet:?}: {error}"));
    sent.unwrap_or_else(|error| panic!("sending {packet:?}: {error}"));
}

fn vnet_header(packet: &Packet) -> [u8; VNET_HEADER] {
    let mut header = [0; VNET_HEADER];
    let mut put = |at: usize, value: u16| {
        header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    };
    if packet.meta.checksum == ChecksumState::Partial {
        let udp = packet.udp_offset() as u16;
        put(2, udp + 8);
        put(6, udp);
        put(8, 6);
        if let Some(gso) = packet.meta.gso {
            put(4, gso.size);
            header[1] = GSO_UDP;
        }
        header[0] = NEEDS_CHECKSUM;
    }
    header
}

fn received(vnet: [u8; VNET_HEADER], frame: Vec<u8>) -> Packet {
    let partial = vnet[0] & NEEDS_CHECKSUM != 0;
    let size = u16::from_ne_bytes([vnet[4], vnet[5]]);
    Packet {
        frame,
        meta: Meta {
            vlan: false,
            other_host: false,
            gso: (vnet[1] == GSO_UDP).then_some(Gso { size }),
            checksum: if partial {
                ChecksumState::Partial
            } else {
                ChecksumState::Complete
            },
        },
    }
}

fn lay_link(relay: &Namespace, far: &Namespace, symbol: Ifindex, name: &str) {
    let [.., a, b] = egress_mac(symbol);
    let mac = format!("02:00:00:00:{a:02x}:{b:02x}");
    let add = format!(
        "link add name {name} netns {} mtu {MTU} address {mac} type veth peer name {name} netns {} mtu {MTU}",
        relay.name(),
        far.name(),
    );
    run(Command::new("ip").args(add.split(' ')));
    for namespace in [relay, far] {
        run(namespace.command("ip").args(["link", "set", name, "up"]));
    }
}

/// Keeps the kernel from sending anything by itself.
fn silence(namespace: &Namespace) {
    let written = namespace.run(|| {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            fs::write(&path, "1").unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    });
    written.expect("the namespace");
}

fn run(command: &mut Command) {
    let output = command.output().expect("ip can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}
