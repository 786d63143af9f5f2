//! The bed of most tests of the daemon: a chain, a daemon in its relay with one rule, a socket that
//! sends and one that receives what the rule relays.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::daemon::{Daemon, Options};
use crate::link;
use crate::socket::{Receiver, Sender};
use crate::topology::Chain;

/// Name of the rule.
pub const RULE: &str = "cam1";
/// Its input: group, port and, as an endpoint, the whole.
pub const GROUP: &str = "239.1.1.1";
/// Port of the input.
pub const PORT: u16 = 5001;
/// The input as written in the rule.
pub const INPUT: &str = "239.1.1.1%veth1:5001";
/// The output as written in the rule, without options.
pub const OUTPUT: &str = "239.10.1.1%veth2:6001";

const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon that relays one group to a sink.
#[derive(Debug)]
pub struct Bed {
    // Dropped first: it stops in the chain's namespaces.
    /// The daemon.
    pub daemon: Daemon,
    /// Sends to the group from the sender's namespace.
    pub sender: Sender,
    /// Receives what the rule sends.
    pub sink: Receiver,
    /// Their namespaces.
    pub chain: Chain,
}

impl Bed {
    /// Makes a bed on a plain chain, with a daemon on this path that has the rule.
    ///
    /// # Errors
    /// When a step fails.
    pub fn new(path: &str) -> Result<Self> {
        let bed = Self::without_rule(Chain::plain()?, Options::path(path))?;
        bed.daemon.add(RULE, INPUT, &[OUTPUT])?;
        Ok(bed)
    }

    /// Makes a bed on a chain with a snooping bridge that prunes a port at the first leave.
    ///
    /// # Errors
    /// When a step fails.
    pub fn snooping(options: Options) -> Result<Self> {
        let bed = Self::without_rule(Chain::snooping()?, options)?;
        bed.daemon.add(RULE, INPUT, &[OUTPUT])?;
        if let Some(switch) = &bed.chain.switch {
            link::wait_for_member((switch, "br0"), GROUP)?;
        }
        Ok(bed)
    }

    /// Makes a bed whose rule is still to be added.
    ///
    /// # Errors
    /// When a step fails.
    pub fn without_rule(chain: Chain, options: Options) -> Result<Self> {
        let daemon = Daemon::start(&chain.relay, options)?;
        let sink = Receiver::join((&chain.sink, "veth3"), "239.10.1.1".parse()?, 6001)?;
        let sender = Sender::open((&chain.sender, "veth0"), "10.0.0.1".parse()?)?;
        Ok(Self {
            daemon,
            sender,
            sink,
            chain,
        })
    }

    /// The rule's input group.
    pub fn group(&self) -> IpAddr {
        IpAddr::from([239, 1, 1, 1])
    }

    /// Sends packets of `size` bytes and waits until each has arrived, unchanged and once.
    ///
    /// # Errors
    /// When one does not.
    pub fn relay(&self, packets: u64, size: usize) -> Result<()> {
        self.sender
            .send_numbered(self.group(), PORT, packets, size)?;
        self.sink.expect(packets, PATIENCE).map(drop)
    }
}
