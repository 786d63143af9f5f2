//! What is wrong with a merge, each said so that the operator knows what to write.

use thiserror::Error;

use super::{KEYS, LINES_MAX, PACKETS_MAX};

/// What is wrong with a merge.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MergeProblem {
    /// Not `KEY=VALUE`.
    #[error("merge: {0:?} is not KEY=VALUE, as in by=rtp,window=50ms")]
    Form(String),
    /// A key that does not exist.
    #[error("merge: there is no key {0:?}; there are {keys}", keys = KEYS.join(", "))]
    Unknown(String),
    /// The same key twice.
    #[error("merge: {0} is given twice; leave one out")]
    Twice(String),
    /// Nothing that tells copies.
    #[error("merge: does not say what tells copies; give by=rtp, or another of {CHOICES}")]
    NoBy,
    /// Not a way to tell copies.
    #[error("merge: by={0}: give {CHOICES}, or none")]
    By(String),
    /// Not a time.
    #[error("merge: window={0}: give a time from 1ms to 500ms, such as 50ms")]
    Window(String),
    /// Not a number of packets.
    #[error("merge: packets={0}: give how many are remembered, 1 to {PACKETS_MAX}")]
    Packets(String),
    /// Not an offset.
    #[error("merge: offset={0}: give the bytes of the payload before the number, 0 to 1400")]
    Offset(String),
    /// Not a length.
    #[error("merge: bytes={0}: a number has 2, 4 or 8 bytes")]
    Bytes(String),
    /// Not an order.
    #[error("merge: order={0}: give big (the most significant byte first) or little")]
    Order(String),
    /// Not a session.
    #[error(
        "merge: session={0}: give offset and bytes, as in 2:8; 1 to 16 bytes that begin within \
         the first 1400"
    )]
    Session(String),
    /// Not a count.
    #[error(
        "merge: count={0}: give offset and bytes, as in 18:2; 1, 2 or 4 bytes that begin within \
         the first 1400"
    )]
    Count(String),
    /// A number whose place is not known.
    #[error(
        "merge: by=sequence needs {0}; give offset and bytes of the number, as in \
         by=sequence,offset=8,bytes=4"
    )]
    NoPlace(&'static str),
    /// A place where it is known.
    #[error("merge: {key} says where a sequence stands, and by={by} knows; leave {key} out")]
    PlaceKnown {
        /// The key.
        key: &'static str,
        /// What tells copies.
        by: &'static str,
    },
    /// Two fields of which one begins before the other ends.
    #[error(
        "merge: {0} and {1} share bytes; look up their offsets, which count from the payload's begin"
    )]
    Overlap(&'static str, &'static str),
    /// Something beside `none`.
    #[error("merge: none takes no {0}; leave it out, or say what tells copies")]
    BesideNone(String),
    /// Inputs that stand by for each other cannot be merged.
    #[error(
        "merge: there is failover too; lines are merged or stand by for each other, so leave one \
         of the two out"
    )]
    WithFailover,
    /// Nothing to merge with.
    #[error("merge: has one input; give a second that brings the same, or leave merge out")]
    OneInput,
    /// More inputs than can be merged.
    #[error("merge: has {0} inputs; at most {LINES_MAX} lines can be merged, so take some out")]
    TooManyInputs(usize),
    /// More inputs than can be merged by payload.
    #[error(
        "merge: has {0} inputs; by=payload merges two lines, so take some out or merge by a number"
    )]
    TooManyForPayload(usize),
    /// An input that is more than one stream.
    #[error(
        "merge: input {0} may be several streams; a line is one, so give each a rule of its own"
    )]
    SeveralStreams(String),
}

const CHOICES: &str = "rtp, sequence, moldudp64, mdp3, payload";
