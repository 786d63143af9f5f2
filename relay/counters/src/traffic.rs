//! Packets and bytes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zerocopy::{FromBytes, IntoBytes};

/// Packets and bytes; bytes are UDP payload. It lies so in the memory that workers count in.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    ToSchema,
    FromBytes,
    IntoBytes,
)]
pub struct Traffic {
    /// Datagrams; a GSO super-packet counts as its segments.
    pub packets: u64,
    /// UDP payload bytes.
    pub bytes: u64,
    /// When the last of them passed, in nanoseconds of `CLOCK_MONOTONIC`; 0 where that is not known.
    #[serde(skip)]
    pub last_ns: u64,
    /// Of the packets that a rule received, those sent back to who asked.
    #[serde(skip)]
    pub answers: u64,
}

/// What was seen of one group and port of a rule with ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowStats {
    /// The group.
    #[schema(value_type = String)]
    pub group: IpAddr,
    /// The destination port.
    pub port: u16,
    /// Packets that matched the input there.
    pub received: Traffic,
}

impl Traffic {
    /// As many words hold it.
    pub const WORDS: usize = 4;

    /// So many packets and bytes.
    #[must_use]
    pub const fn new(packets: u64, bytes: u64) -> Self {
        Self {
            packets,
            bytes,
            last_ns: 0,
            answers: 0,
        }
    }

    /// Adds what passed elsewhere, or later.
    pub fn add(&mut self, other: Self) {
        self.packets = self.packets.wrapping_add(other.packets);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.answers = self.answers.wrapping_add(other.answers);
    }

    /// Subtracts what had passed before.
    #[must_use]
    pub const fn since(self, base: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(base.packets),
            bytes: self.bytes.saturating_sub(base.bytes),
            last_ns: if self.packets > base.packets {
                self.last_ns
            } else {
                0
            },
            answers: self.answers.saturating_sub(base.answers),
        }
    }

    /// As it lies in memory.
    #[must_use]
    pub const fn words(self) -> [u64; Self::WORDS] {
        [self.packets, self.bytes, self.last_ns, self.answers]
    }

    /// From how it lies in memory.
    #[must_use]
    pub const fn from_words([packets, bytes, last_ns, answers]: [u64; Self::WORDS]) -> Self {
        Self {
            packets,
            bytes,
            last_ns,
            answers,
        }
    }
}
