//! The bed of a fleet: relays between two snooping bridges, with etcd on a bridge of its own.
//!
//! ```text
//! sender src0 - input bridge - in0 relay out0 - output bridge - snk0 sink
//!                                   mg0
//!                                    |
//!                            management bridge - mg0 etcd, three times
//! ```

#[cfg(feature = "test-support")]
mod in_tests;
#[cfg(feature = "test-support")]
pub use in_tests::member_port;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::etcd::{Cluster, Storage};
use super::relay::{INPUT_BRIDGE, MANAGEMENT_BRIDGE, OUTPUT_BRIDGE, Relay, Settings, address};
use super::traffic::{Plan, Traffic};
use crate::link;
use crate::namespace::Namespace;
use crate::wait;

/// Group and port that the rule receives.
pub const INPUT: (Ipv4Addr, u16) = (Ipv4Addr::new(239, 1, 1, 1), 5001);
/// Group and port that the rule sends to.
pub const OUTPUT: (Ipv4Addr, u16) = (Ipv4Addr::new(239, 10, 1, 1), 6001);
/// Name of the rule, and so of its share.
pub const RULE: &str = "cam1";

/// Host number of sender and sink.
const END: u8 = 9;
/// Host number of the first member of etcd.
const FIRST_MEMBER: u8 = 11;
const MEMBERS: u8 = 3;
/// From the first relay's start to the first packet: joins, a beat, a claim, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fleet with everything it needs. Dropping it removes everything.
#[derive(Debug)]
pub struct Bed {
    // Dropped in this order: relays first, while etcd answers, then etcd, then the networks.
    /// The relays, `a`, `b` and so on.
    pub relays: Vec<Relay>,
    /// etcd.
    pub etcd: Cluster,
    sender: Namespace,
    sink: Namespace,
    switches: Namespace,
    on_isolation: String,
}

impl Bed {
    /// Makes networks and etcd.
    ///
    /// # Errors
    /// When a step fails.
    pub fn without_relays() -> Result<Self> {
        let switches = Namespace::new("switches")?;
        for bridge in [INPUT_BRIDGE, OUTPUT_BRIDGE] {
            link::snooping_bridge((&switches, bridge))?;
        }
        switches.ip(&format!(
            "link add {MANAGEMENT_BRIDGE} type bridge mcast_snooping 0"
        ))?;
        link::up((&switches, MANAGEMENT_BRIDGE))?;
        let ends = [
            ("sender", "src0", INPUT_BRIDGE, 71),
            ("sink", "snk0", OUTPUT_BRIDGE, 72),
        ];
        let [sender, sink] = ends.map(|(label, name, bridge, network)| {
            let namespace = Namespace::new(label)?;
            link::plug((&namespace, name), (&switches, label), bridge)?;
            link::address((&namespace, name), &format!("{}/24", address(network, END)))?;
            link::multicast_route((&namespace, name))?;
            anyhow::Ok(namespace)
        });
        let sites = (0..MEMBERS).map(|member| {
            let namespace = Namespace::new(&format!("etcd{member}"))?;
            let port = format!("etcd{member}");
            link::plug((&namespace, "mg0"), (&switches, &port), MANAGEMENT_BRIDGE)?;
            let address = address(73, FIRST_MEMBER + member);
            link::address((&namespace, "mg0"), &format!("{address}/24"))?;
            Ok((namespace, address))
        });
        Ok(Self {
            relays: Vec::new(),
            etcd: Cluster::start(sites.collect::<Result<_>>()?, Storage::Memory)?,
            sender: sender?,
            sink: sink?,
            switches,
            on_isolation: String::new(),
        })
    }

    /// Adds a relay and waits until it answers. Its addresses end in `number`, from 1.
    ///
    /// # Errors
    /// When a step fails.
    pub fn add_relay(&mut self, number: u8, settings: &Settings) -> Result<()> {
        let mut relay = Relay::new(
            number,
            &self.switches,
            self.etcd.endpoints(),
            settings.clone(),
        )?;
        relay.boot()?;
        self.relays.push(relay);
        self.on_isolation.clone_from(&settings.on_isolation);
        Ok(())
    }

    /// Waits until that many relays have joined the rule's group, as the switch sees it.
    ///
    /// # Errors
    /// When they do not in time; the message has what relays and etcd wrote.
    pub fn wait_until_joined(&self, relays: usize) -> Result<()> {
        let joined = || self.members().is_ok_and(|members| members >= relays);
        let what = format!("{relays} relays have joined {}", INPUT.0);
        wait::until_within(PATIENCE, &what, joined).with_context(|| self.log())
    }

    /// How many ports of the input bridge have joined the rule's group.
    fn members(&self) -> Result<usize> {
        let shown = self
            .switches
            .tool("bridge", &format!("mdb show dev {INPUT_BRIDGE}"))?;
        let group = format!("grp {} ", INPUT.0);
        Ok(shown.lines().filter(|line| line.contains(&group)).count())
    }

    /// Starts a stream of `rate_pps` packets a second and waits until it is relayed.
    ///
    /// # Errors
    /// When nothing arrives in time; the message has what relays and etcd wrote.
    pub fn start_traffic(&self, rate_pps: u32) -> Result<Traffic> {
        let plan = Plan {
            rate_pps,
            input: INPUT,
            output: OUTPUT,
        };
        let source = ((&self.sender, "src0"), address(71, END));
        let traffic = Traffic::start(plan, source, (&self.sink, "snk0"))?;
        let arrives = || traffic.forwarder(Duration::from_millis(200)).is_some();
        wait::until_within(PATIENCE, "the fleet relays", arrives).with_context(|| self.log())?;
        Ok(traffic)
    }

    /// The index of the relay that has this address at its output.
    ///
    /// # Errors
    /// When there is none.
    pub fn relay_at(&self, output: Ipv4Addr) -> Result<usize> {
        let index = self
            .relays
            .iter()
            .position(|relay| relay.output() == output);
        index.with_context(|| format!("no relay has the address {output}"))
    }

    /// What relays and etcd wrote.
    pub fn log(&self) -> String {
        let relays: String = self.relays.iter().map(Relay::log).collect();
        relays + &self.etcd.log()
    }
}

/// The fleet's rules, TOML, with roles instead of interfaces.
pub fn rules() -> String {
    format!(
        "version = 1\n[[rule]]\nname = \"{RULE}\"\ninput = \"{}%red:{}\"\n\
         outputs = [\"{}%out:{}\"]\n",
        INPUT.0, INPUT.1, OUTPUT.0, OUTPUT.1
    )
}
