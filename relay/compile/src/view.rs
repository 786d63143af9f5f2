//! Views of a rule, its inputs and its outputs: their state on this host.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use rules::net::{Ifindex, Mac, Prefix};

use crate::placement::Placement;
use crate::table::{DownReason, Egress, LinkHeader, RouteKey};

/// The state of a rule on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleView {
    /// Its name.
    pub name: String,
    /// Whether it forwards; a disabled rule has no routes, joins nothing and has no troubles.
    pub enabled: bool,
    /// Where it runs and why; if no path serves it, it has no routes and joins nothing.
    pub placement: Placement,
    /// Why its packets cannot be taken at XDP, whatever its interfaces are.
    pub only_at_tc: Option<Cow<'static, str>>,
    /// Its inputs, in its order.
    pub inputs: Vec<InputView>,
    /// Its outputs, in its order.
    pub outputs: Vec<OutputView>,
    /// The keys of its routes beyond those of its inputs: for what is listened to.
    pub divided: Vec<RouteKey>,
}

impl RuleView {
    /// Everything that prevents the rule from relaying all it should, each as a full message:
    /// `rule "cam1": output 239.10.1.1%eth9:6001: no interface eth9 (have: eth0, eth1)`.
    pub fn troubles(&self) -> Vec<String> {
        let rule = |text: &str| format!("rule {:?}: {text}", self.name);
        let unserved = self.enabled && !self.placement.serves;
        let placement = unserved.then(|| rule(&self.placement.reason));
        let inputs = self.inputs.iter().filter_map(|input| {
            let reason = input.pending.as_ref().or(input.unjoined.as_ref())?;
            Some(rule(&format!("input {}: {reason}", input.at)))
        });
        let outputs = self.outputs.iter().filter_map(|output| {
            let down = output.down.as_ref().map(|down| &down.text);
            let reason = down.or(output.unanswered.as_ref())?;
            Some(rule(&format!("output {}: {reason}", output.to)))
        });
        placement.into_iter().chain(inputs).chain(outputs).collect()
    }
}

/// The state of an input on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputView {
    /// The endpoint as the rule writes it.
    pub at: String,
    /// Interfaces it listens on: one, none while it waits, several for a wildcard.
    pub interfaces: Vec<Ifindex>,
    /// Memberships it needs: none for addresses of this host.
    pub joins: Vec<Join>,
    /// The addresses of this host whose packets it takes, by interface, if it is not an input of groups.
    pub addresses: Vec<(Ifindex, IpAddr)>,
    /// Why nothing may arrive: a missing interface or address, an interface that is down.
    pub pending: Option<String>,
    /// Why its groups are not joined one by one, but all received.
    pub unjoined: Option<String>,
    /// Who on this host gets its packets besides sockets, by interface; with `local=auto` the original is
    /// then passed on.
    pub shared: Vec<(Ifindex, String)>,
}

/// Membership of one group, or of each group of a range, on one interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Join {
    /// Interface to join on.
    pub interface: Ifindex,
    /// Groups, at most as many as are joined of one range.
    pub groups: Prefix,
    /// Sources to include; empty for any.
    pub sources: Vec<IpAddr>,
}

impl Join {
    /// All groups that arrive on an interface, without reports (`sys::membership::ALL`).
    pub(crate) const fn of_all(interface: Ifindex) -> Self {
        Self {
            interface,
            groups: Prefix::host(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            sources: Vec::new(),
        }
    }
}

/// The state of an output on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputView {
    /// Destination as the rule writes it, without options.
    pub to: String,
    /// The address of its name, if it has one.
    pub address: Option<IpAddr>,
    /// Why the last lookup of the name failed.
    pub name_error: Option<String>,
    /// The interface it leaves by, up or down.
    pub link: Option<Ifindex>,
    /// How its copies leave there; `None` while they cannot.
    pub leaving: Option<Box<Leaving>>,
    /// Why it cannot send; `None` if it can.
    pub down: Option<Down>,
    /// Why the host's own stack must send its copies, by a socket.
    pub routed: Option<String>,
    /// Why answers to its copies are not returned, if they should be.
    pub unanswered: Option<String>,
    /// How many of its groups are listened to; `None` if it is not on demand. For all addresses of a name,
    /// their number.
    pub wanted: Option<u32>,
    /// Its copies, if it goes to all addresses of a name.
    pub copies: Option<Box<Copies>>,
}

/// The copies to all addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Each address.
    pub all: Vec<CopyView>,
    /// How many addresses exceed the output's maximum.
    pub left_out: usize,
}

/// A copy to one address of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyView {
    /// Its index among the rule's outputs.
    pub index: u64,
    /// The address, with its port for a service.
    pub address: String,
    /// Why it cannot be sent; `None` if it can.
    pub down: Option<Down>,
}

/// How an output's copies leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Their source address; `None` if each keeps its own.
    pub source: Option<IpAddr>,
    /// The gateway, or the destination if it is on-link; `None` for groups and sockets of this host.
    pub next_hop: Option<IpAddr>,
    /// The Ethernet address they are sent to; `None` for groups, which have their own, and without such a
    /// header.
    pub mac: Option<Mac>,
    /// Whether the host's own stack sends them, by a socket.
    pub by_socket: bool,
    /// In bytes, of the IP packet; `None` if the host's own stack fragments larger packets.
    pub mtu: Option<u32>,
}

impl Leaving {
    pub(crate) fn of(egress: &Egress, next_hop: Option<IpAddr>) -> Self {
        let mac = match egress.link {
            LinkHeader::Neighbour { destination, .. } => Some(destination),
            _ => None,
        };
        Self {
            source: egress.source,
            next_hop,
            mac,
            by_socket: matches!(egress.link, LinkHeader::Routed { .. }),
            mtu: Some(egress.mtu).filter(|mtu| *mtu < u16::MAX.into()),
        }
    }
}

/// Why an output cannot send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// For counters.
    pub reason: DownReason,
    /// For people: what is missing, what exists, and what to do.
    pub text: String,
}
