//! How a rule makes one stream of several legs that carry the same: `merge = "rtp"`.
//!
//! Keys that a rule omits have defaults; the text of a merge round-trips exactly.

mod problem;
mod text;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use problem::MergeProblem;
pub use text::{ByWord, MergeKeys};

use crate::endpoint::Endpoint;
use crate::setting::words;

/// Default of how long a leg may lag behind another.
pub const DEFAULT_WINDOW: Duration = Duration::from_millis(50);
/// Default of how many packets are remembered.
pub const DEFAULT_PACKETS: u32 = 2_048;
/// The most packets that can be remembered.
pub const PACKETS_MAX: u32 = 65_536;
/// Default of how many SSRCs or sessions are distinguished at a time.
pub const DEFAULT_STREAMS: u32 = 256;
/// The most SSRCs or sessions that can be distinguished.
pub const STREAMS_MAX: u32 = 4_096;
/// Shortest window: the delay between two legs through one switch.
pub const WINDOW_MIN: Duration = Duration::from_millis(1);
/// Longest window; class C of ST 2022-7 has 450 ms.
pub const WINDOW_MAX: Duration = Duration::from_millis(500);
/// The most legs of a rule that are merged.
pub const LINES_MAX: usize = 4;

/// How copies of a packet are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Merge {
    /// How two packets are recognised as the same.
    pub by: By,
    /// How long a leg may lag behind another.
    pub window: Duration,
    /// How many packets of a stream are remembered: a power of two from [`DEFAULT_PACKETS`] to
    /// [`PACKETS_MAX`].
    pub packets: u32,
    /// How many SSRCs or sessions are distinguished at a time.
    pub streams: u32,
}

/// How two packets are recognised as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum By {
    /// By RTP's sequence number, for each SSRC separately.
    Rtp,
    /// By a number at a fixed offset of the payload.
    Sequence(Sequence),
    /// By MoldUDP64's session and the number of its first message.
    MoldUdp64,
    /// By the packet number of the CME's MDP 3.0.
    Mdp3,
    /// By all of the payload, of two legs.
    Payload,
    /// By all of the payload, which passes once in a window whichever leg carries it: for rules that
    /// reflect; it cannot be configured.
    Once,
    /// The same, for each sender separately.
    OnceFromEach,
}

/// The position of a number in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sequence {
    /// The number; 2, 4 or 8 bytes.
    pub number: Field,
    /// The byte order of the number and of `count`.
    pub order: ByteOrder,
    /// What distinguishes streams of numbers; 1 to 16 bytes.
    pub session: Option<Field>,
    /// How many numbers the packet takes up; 1, 2 or 4 bytes. Without it each packet takes up one.
    pub count: Option<Field>,
}

/// Some bytes of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Field {
    /// Bytes of the payload before it.
    pub offset: u16,
    /// Its length in bytes.
    pub bytes: u8,
}

words! {
    /// The order of a number's bytes.
    pub enum ByteOrder = Big {
        /// The most significant first, as in most protocols.
        Big = "big",
        /// The least significant first.
        Little = "little",
    }
}

/// MoldUDP64: session of 10 bytes, number of the first message, how many messages follow.
pub const MOLDUDP64: Sequence = Sequence {
    number: Field {
        offset: 10,
        bytes: 8,
    },
    order: ByteOrder::Big,
    session: Some(Field {
        offset: 0,
        bytes: 10,
    }),
    count: Some(Field {
        offset: 18,
        bytes: 2,
    }),
};

/// MDP 3.0: a number of four bytes, the least significant first.
pub const MDP3: Sequence = Sequence {
    number: Field {
        offset: 0,
        bytes: 4,
    },
    order: ByteOrder::Little,
    session: None,
    count: None,
};

impl Default for Merge {
    fn default() -> Self {
        Self {
            by: By::Rtp,
            window: DEFAULT_WINDOW,
            packets: DEFAULT_PACKETS,
            streams: DEFAULT_STREAMS,
        }
    }
}

impl Merge {
    /// What prevents it from making one stream of `inputs`.
    pub fn problem_with(&self, inputs: &[Endpoint]) -> Option<MergeProblem> {
        match inputs.len() {
            0 => None,
            1 => Some(MergeProblem::OneInput),
            more @ 3.. if self.by == By::Payload => Some(MergeProblem::TooManyForPayload(more)),
            2..=LINES_MAX => {
                let several = inputs.iter().find(|input| !input.is_one_stream());
                several.map(|input| MergeProblem::SeveralStreams(input.to_string()))
            }
            more => Some(MergeProblem::TooManyInputs(more)),
        }
    }
}

impl By {
    /// Its word in rules.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Rtp => "rtp",
            Self::Sequence(_) => "sequence",
            Self::MoldUdp64 => "moldudp64",
            Self::Mdp3 => "mdp3",
            Self::Payload => "payload",
            Self::Once | Self::OnceFromEach => "once",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_one_of_two_to_four_single_streams() {
        let inputs = |texts: &[&str]| -> Vec<Endpoint> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let problem = |by, texts: &[&str]| {
            let merge = Merge {
                by,
                ..Merge::default()
            };
            merge.problem_with(&inputs(texts))
        };
        let (a, b) = ("239.1.1.1%red:5001", "239.2.1.1%blue:5001");
        assert_eq!(problem(By::Rtp, &[a, b]), None);
        assert_eq!(problem(By::Rtp, &[a, b, a, b]), None);
        assert_eq!(problem(By::Payload, &[a, b]), None);
        assert_eq!(problem(By::Rtp, &[a]), Some(MergeProblem::OneInput));
        let many = Some(MergeProblem::TooManyInputs(5));
        assert_eq!(problem(By::Rtp, &[a; 5]), many);
        let many = Some(MergeProblem::TooManyForPayload(3));
        assert_eq!(problem(By::Payload, &[a; 3]), many);
        for several in [
            "239.1.1.0/24%red:5001",
            "239.1.1.1%r*:5001",
            "239.1.1.1%red:5001-5002",
        ] {
            let expected = MergeProblem::SeveralStreams(several.to_owned());
            assert_eq!(problem(By::MoldUdp64, &[a, several]), Some(expected));
        }
    }
}
