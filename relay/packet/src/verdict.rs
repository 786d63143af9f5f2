//! The verdict on one packet: the same terms on both paths, in the API and in the metrics.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The verdict on one packet at a rule, or on one copy at an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Handed to its outputs (a rule) or to the egress device (an output).
    Forwarded,
    /// Not for any rule: left to the host's stack, unchanged.
    Passed,
    /// Dropped and counted.
    Dropped(DropReason),
}

/// Why a packet was dropped. The discriminant is the index into the counter arrays of both paths
/// and never changes its meaning; new reasons are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum DropReason {
    /// Rule: lengths that contradict each other, or a wrong IPv4 header checksum.
    Malformed = 0,
    /// Rule: the source is an address that this host has in the input's VRF, and the packet arrived by another
    /// interface than `lo`, so it was in a loop.
    OwnSource = 1,
    /// Rule or output: above the configured packet or bit rate.
    RateLimited = 2,
    /// Rule: a fragment that arrived before its datagram's first, or after that was no longer recorded, to a group
    /// that several rules take, or to an address of this host, whose other ports are not relayed: its rule
    /// cannot be determined. Counted at the first of them.
    FragmentUnknown = 3,
    /// Rule: the userspace path had no free buffer or queue slot.
    BufferExhausted = 4,
    /// Output: larger than the egress MTU.
    TooBig = 5,
    /// Output: `ttl=dec` met a TTL or hop limit of 1 or 0.
    TtlExpired = 6,
    /// Output: its interface does not exist.
    InterfaceMissing = 7,
    /// Output: its interface is down.
    InterfaceDown = 8,
    /// Output: its interface has no address to send from, or its name stands for none to send to.
    NoAddress = 9,
    /// Output: no route leads to the unicast destination.
    NoRoute = 10,
    /// Output: the next hop's link-layer address is not resolved.
    NoNeighbour = 11,
    /// Output: the egress device or its queue refused the packet (full, `ENOBUFS`, driver drop).
    EgressFull = 12,
    /// Output: the kernel refused the packet for any other cause.
    EgressError = 13,
    /// Output: above the budget of all unicast outputs together.
    OverBudget = 14,
    /// Rule: arrived by a standby input while another is relayed (`failover`).
    Standby = 15,
    /// Rule: another leg, or the same, delivered it before (`merge`).
    Duplicate = 16,
    /// Rule: arrived so long after the other legs that copies are no longer recognised (`merge`).
    Late = 17,
    /// Rule: not of the stream that the other legs deliver (`merge`).
    Stray = 18,
    /// Output: nobody on its interface listens to it (`demand`).
    NotWanted = 19,
    /// Output: the host's IPsec policies let none of its packets out.
    IpsecPolicy = 20,
    /// Rule: of one stream more than are distinguished at a time (`merge`).
    StreamsExceeded = 21,
}

impl DropReason {
    /// Every reason, in the order of the discriminants.
    pub const ALL: [Self; 22] = [
        Self::Malformed,
        Self::OwnSource,
        Self::RateLimited,
        Self::FragmentUnknown,
        Self::BufferExhausted,
        Self::TooBig,
        Self::TtlExpired,
        Self::InterfaceMissing,
        Self::InterfaceDown,
        Self::NoAddress,
        Self::NoRoute,
        Self::NoNeighbour,
        Self::EgressFull,
        Self::EgressError,
        Self::OverBudget,
        Self::Standby,
        Self::Duplicate,
        Self::Late,
        Self::Stray,
        Self::NotWanted,
        Self::IpsecPolicy,
        Self::StreamsExceeded,
    ];

    /// Slots reserved in counter arrays, so that a new reason does not change their layout.
    pub const SLOTS: usize = 24;

    /// The reason's stable name in JSON, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OwnSource => "own_source",
            Self::RateLimited => "rate_limited",
            Self::FragmentUnknown => "fragment_unknown",
            Self::BufferExhausted => "buffer_exhausted",
            Self::TooBig => "too_big",
            Self::TtlExpired => "ttl_expired",
            Self::InterfaceMissing => "interface_missing",
            Self::InterfaceDown => "interface_down",
            Self::NoAddress => "no_address",
            Self::NoRoute => "no_route",
            Self::NoNeighbour => "no_neighbour",
            Self::EgressFull => "egress_full",
            Self::EgressError => "egress_error",
            Self::OverBudget => "over_budget",
            Self::Standby => "standby",
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::Stray => "stray",
            Self::NotWanted => "not_wanted",
            Self::IpsecPolicy => "ipsec_policy",
            Self::StreamsExceeded => "streams_exceeded",
        }
    }

    /// What to do about it, for people.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Malformed => {
                "look at the sender: lengths or checksums of its packets contradict each other"
            }
            Self::OwnSource => {
                "a bridge or another relay sends this host's own copies back: break that loop"
            }
            Self::RateLimited => "raise the limit, or find out why so much comes",
            Self::FragmentUnknown => "find what reorders, or what loses first fragments",
            Self::BufferExhausted => "give the userspace path more workers, or fewer packets",
            Self::TooBig => {
                "raise the egress MTU, make the sender's packets smaller, or set fragment=yes"
            }
            Self::TtlExpired => "raise the TTL at the sender, or set ttl=16 instead of ttl=dec",
            Self::InterfaceMissing | Self::InterfaceDown => {
                "it goes on by itself when the interface comes back"
            }
            Self::NoAddress => {
                "give the interface an address, or set source=ADDR or source=keep; or mend the name"
            }
            Self::NoRoute | Self::NoNeighbour => "look at ip route get and ip neigh",
            Self::EgressFull => {
                "tc -s qdisc show dev IFACE: if it counts drops too, lengthen the queue (ip link set \
                 IFACE txqueuelen 10000) or use a faster link; if not, a packet filter at the egress \
                 dropped them: nft list ruleset, tc filter show dev IFACE egress"
            }
            Self::EgressError => {
                "look at ip -s link show IFACE and the kernel's log; of an output to this host, at \
                 nft list ruleset too; of one that a socket sends, at both and at ip xfrm state"
            }
            Self::OverBudget => "raise [budget], or find the rule that takes it up",
            Self::Standby => "nothing: that is what stands by",
            Self::Duplicate => "nothing: that is what the other leg is for",
            Self::NotWanted => "nothing: that is what demand= is for",
            Self::IpsecPolicy => {
                "look at ip xfrm policy and ip xfrm state; mcr show says which policy"
            }
            Self::Late => "raise merge.packets, or find what delays the leg; see skew in mcr show",
            Self::Stray => {
                "look at what the legs bring: one is of another sender, or numbers its packets \
                 differently"
            }
            Self::StreamsExceeded => {
                "raise merge.streams, or merge fewer SSRCs or sessions in one rule"
            }
        }
    }

    /// Returns whether it counts no loss: another copy has passed, or will, or there is no receiver.
    pub const fn is_intended(self) -> bool {
        matches!(self, Self::Standby | Self::Duplicate | Self::NotWanted)
    }

    /// Returns whether packets are lost that an output which is up, or the rule itself, should have passed on: that
    /// an output is down is reported itself.
    pub const fn is_fault(self) -> bool {
        match self {
            Self::Malformed
            | Self::OwnSource
            | Self::RateLimited
            | Self::FragmentUnknown
            | Self::BufferExhausted
            | Self::TooBig
            | Self::TtlExpired
            | Self::EgressFull
            | Self::EgressError
            | Self::OverBudget
            | Self::Late
            | Self::Stray
            | Self::StreamsExceeded => true,
            Self::InterfaceMissing
            | Self::InterfaceDown
            | Self::NoAddress
            | Self::NoRoute
            | Self::NoNeighbour
            | Self::IpsecPolicy
            | Self::Standby
            | Self::Duplicate
            | Self::NotWanted => false,
        }
    }

    /// Returns whether it drops an input's packets because of what the rule's other inputs deliver.
    pub const fn is_of_an_input(self) -> bool {
        matches!(
            self,
            Self::Standby | Self::Duplicate | Self::Late | Self::Stray | Self::StreamsExceeded
        )
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
