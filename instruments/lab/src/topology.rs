//! The beds: a chain, two bridges, a pipeline. Interface names and addresses are those of every
//! published figure, so that a rule reads the same in each of them.
//!
//! ```text
//! sender veth0 10.0.0.1 [- switch -] 10.0.0.2 veth1 relay veth2 10.0.1.1 - 10.0.1.2 veth3 sink
//! ```

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;

use crate::link;
use crate::namespace::Namespace;
use crate::socket::Sender;
use crate::wait;

/// Index of a chain's `veth2`, always the same: the bench's bare redirect has it built in.
pub const EGRESS_INDEX: u32 = 3000;

/// Sender, relay and sink in a row.
#[derive(Debug)]
pub struct Chain {
    /// Owns `veth0`, 10.0.0.1 and fd00::1.
    pub sender: Namespace,
    /// Owns `veth1` (10.0.0.2, fd00::2) towards the sender, `veth2` (10.0.1.1, fd00:1::1) towards
    /// the sink.
    pub relay: Namespace,
    /// Owns `veth3`, 10.0.1.2 and fd00:1::2.
    pub sink: Namespace,
    /// The namespace of the snooping bridge `br0` between sender and relay, if there is one.
    pub switch: Option<Namespace>,
}

impl Chain {
    /// Makes a chain of bare veth pairs. A veth filters nothing, so it hides a missing join.
    ///
    /// # Errors
    /// When a step fails.
    pub fn plain() -> Result<Self> {
        let (sender, relay) = (Namespace::new("sender")?, Namespace::new("relay")?);
        link::veth((&sender, "veth0"), (&relay, "veth1"))?;
        Self::finish(sender, relay, None)
    }

    /// Makes a chain with a snooping bridge and querier between sender and relay, as a real
    /// network does: groups without members do not arrive.
    ///
    /// # Errors
    /// When a step fails, or the bridge does not filter in time.
    pub fn snooping() -> Result<Self> {
        let (sender, relay) = (Namespace::new("sender")?, Namespace::new("relay")?);
        let switch = Namespace::new("switch")?;
        link::snooping_bridge((&switch, "br0"))?;
        link::veth((&sender, "veth0"), (&switch, "port0"))?;
        link::veth((&switch, "port1"), (&relay, "veth1"))?;
        link::bridge_port((&switch, "port0"), "br0")?;
        link::bridge_port((&switch, "port1"), "br0")?;
        let chain = Self::finish(sender, relay, Some(switch))?;
        wait_until_filtered((&chain.sender, "veth0"), (&chain.relay, "veth1"))?;
        Ok(chain)
    }

    /// Configures the links for a path: for `xdp` frames arrive whole and with their tags, and the far end
    /// of the output accepts redirected frames.
    ///
    /// # Errors
    /// When `ethtool` does not do it.
    pub fn prepared_for(self, path: &str) -> Result<Self> {
        if path == "xdp" {
            link::features((&self.sender, "veth0"), "tx off txvlan off")?;
            link::features((&self.relay, "veth1"), "rxvlan off")?;
            link::features((&self.sink, "veth3"), "gro on")?;
        }
        Ok(self)
    }

    fn finish(sender: Namespace, relay: Namespace, switch: Option<Namespace>) -> Result<Self> {
        let sink = Namespace::new("sink")?;
        link::veth_with_index((&relay, "veth2"), (&sink, "veth3"), EGRESS_INDEX)?;
        add_addresses((&sender, "veth0"), 0, 1)?;
        add_addresses((&relay, "veth1"), 0, 2)?;
        add_addresses((&relay, "veth2"), 1, 1)?;
        add_addresses((&sink, "veth3"), 1, 2)?;
        link::multicast_route((&sender, "veth0"))?;
        link::multicast_route((&sink, "veth3"))?;
        // Checksums at the sink are verified, not trusted: the relay's egress completes partial
        // checksums in software and the sink checks them.
        link::features((&relay, "veth2"), "tx off")?;
        Ok(Self {
            sender,
            relay,
            sink,
            switch,
        })
    }
}

/// Two networks without a route between them: `br0` joins the sender and the relay's `veth1`,
/// `br1` the relay's `veth2` and every sink. Both bridges snoop.
#[derive(Debug)]
pub struct DualBridge {
    /// Owns `veth0`, 10.0.0.1.
    pub sender: Namespace,
    /// Owns `veth1` (10.0.0.2) and `veth2` (10.0.1.1).
    pub relay: Namespace,
    /// Sink N owns `veth3`, 10.0.1.(N + 2).
    pub sinks: Vec<Namespace>,
    /// Owns `br0`.
    pub left: Namespace,
    /// Owns `br1`.
    pub right: Namespace,
}

impl DualBridge {
    /// Makes the two bridges with this many sinks, at most 250.
    ///
    /// # Errors
    /// When a step fails.
    pub fn new(sinks: u8) -> Result<Self> {
        let (sender, relay) = (Namespace::new("sender")?, Namespace::new("relay")?);
        let (left, right) = (Namespace::new("left")?, Namespace::new("right")?);
        link::snooping_bridge((&left, "br0"))?;
        link::snooping_bridge((&right, "br1"))?;
        link::plug((&sender, "veth0"), (&left, "port0"), "br0")?;
        link::plug((&relay, "veth1"), (&left, "port1"), "br0")?;
        link::plug((&relay, "veth2"), (&right, "uplink"), "br1")?;
        add_addresses((&sender, "veth0"), 0, 1)?;
        add_addresses((&relay, "veth1"), 0, 2)?;
        add_addresses((&relay, "veth2"), 1, 1)?;
        link::features((&relay, "veth2"), "tx off")?;
        link::multicast_route((&sender, "veth0"))?;
        let sinks = (0..sinks)
            .map(|number| {
                let sink = Namespace::new(&format!("sink{number}"))?;
                let port = format!("port{number}");
                link::plug((&sink, "veth3"), (&right, &port), "br1")?;
                add_addresses((&sink, "veth3"), 1, number + 2)?;
                link::multicast_route((&sink, "veth3"))?;
                Ok(sink)
            })
            .collect::<Result<Vec<_>>>()?;
        wait_until_filtered((&sender, "veth0"), (&relay, "veth1"))?;
        Ok(Self {
            sender,
            relay,
            sinks,
            left,
            right,
        })
    }
}

/// Several relays in a row between a sender and a sink.
#[derive(Debug)]
pub struct Pipeline {
    /// Owns `veth0`, 10.0.0.1.
    pub sender: Namespace,
    /// Relay N (from 0) owns `veth1`, 10.0.N.2, and `veth2`, 10.0.(N + 1).1.
    pub relays: Vec<Namespace>,
    /// Owns `veth3`, 10.0.(number of relays).2.
    pub sink: Namespace,
}

impl Pipeline {
    /// Makes a row of this many relays.
    ///
    /// # Errors
    /// When a step fails.
    pub fn new(relays: u8) -> Result<Self> {
        let (sender, sink) = (Namespace::new("sender")?, Namespace::new("sink")?);
        let relays = (0..relays)
            .map(|number| Namespace::new(&format!("relay{number}")))
            .collect::<Result<Vec<_>>>()?;
        let mut previous = (&sender, "veth0");
        let mut network = 0;
        for relay in &relays {
            link::veth(previous, (relay, "veth1"))?;
            add_addresses(previous, network, 1)?;
            add_addresses((relay, "veth1"), network, 2)?;
            previous = (relay, "veth2");
            network += 1;
        }
        link::veth(previous, (&sink, "veth3"))?;
        add_addresses(previous, network, 1)?;
        add_addresses((&sink, "veth3"), network, 2)?;
        link::multicast_route((&sender, "veth0"))?;
        link::multicast_route((&sink, "veth3"))?;
        Ok(Self {
            sender,
            relays,
            sink,
        })
    }
}

fn add_addresses(end: link::End<'_>, network: u8, host: u8) -> Result<()> {
    link::address(end, &format!("10.0.{network}.{host}/24"))?;
    link::address(end, &format!("fd00:{network:x}::{host:x}/64"))
}

/// Waits until a group without members no longer passes the bridge in between: for a short while after
/// its querier starts a bridge floods everything.
fn wait_until_filtered(from: link::End<'_>, to: link::End<'_>) -> Result<()> {
    const PROBES: u64 = 50;
    const ROUNDS: u32 = 3;
    let group = IpAddr::V4(Ipv4Addr::new(239, 255, 255, 253));
    let sender = Sender::open(from, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)))?;
    let mut silent = 0;
    let mut before = link::statistics(to)?.received;
    wait::until("the bridge filters unknown groups", || {
        let sent = (0..PROBES).try_for_each(|_| sender.send(group, 9, b"probe"));
        let Ok(after) = link::statistics(to) else {
            return false;
        };
        // The few packets that arrive anyway are the bridge's queries and neighbour discovery.
        let is_flooded = after.received - before >= PROBES / 2;
        before = after.received;
        silent = if is_flooded || sent.is_err() {
            0
        } else {
            silent + 1
        };
        silent >= ROUNDS
    })
}
