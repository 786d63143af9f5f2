//! What can be wrong with a merge; each message contains what to write instead.

use thiserror::Error;

use super::LINES_MAX;
use crate::setting::OptionProblem;

/// What is wrong with a merge.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MergeProblem {
    /// Options that cannot be read.
    #[error(transparent)]
    Option(#[from] OptionProblem),
    /// No way of recognising copies.
    #[error(
        "merge: does not say what tells copies; give by=rtp, or another of rtp, sequence, \
         moldudp64, mdp3, payload"
    )]
    NoBy,
    /// A number without its offset or length.
    #[error(
        "merge: by=sequence needs {0}; give offset and bytes of the number, as in \
         by=sequence,offset=8,bytes=4"
    )]
    FieldMissing(&'static str),
    /// The position of a number that the protocol fixes.
    #[error("merge: {key} says where a sequence stands, and by={by} knows; leave {key} out")]
    FieldFixed {
        /// The key.
        key: &'static str,
        /// How copies are recognised.
        by: &'static str,
    },
    /// Two fields of which one begins before the other ends.
    #[error(
        "merge: {0} and {1} share bytes; look up their offsets, which count from the payload's begin"
    )]
    Overlap(&'static str, &'static str),
    /// Another key beside `none`.
    #[error("merge: none takes no {0}; leave it out, or say what tells copies")]
    BesideNone(String),
    /// Inputs that stand by for each other cannot be merged.
    #[error(
        "merge: there is failover too; legs are merged or stand by for each other, so leave one \
         of the two out"
    )]
    WithFailover,
    /// Nothing to merge with.
    #[error("merge: has one input; give a second that brings the same, or leave merge out")]
    OneInput,
    /// More inputs than can be merged.
    #[error("merge: has {0} inputs; at most {LINES_MAX} legs can be merged, so take some out")]
    TooManyInputs(usize),
    /// More inputs than can be merged by payload.
    #[error(
        "merge: has {0} inputs; by=payload merges two legs, so take some out or merge by a number"
    )]
    TooManyForPayload(usize),
    /// An input that is more than one stream.
    #[error(
        "merge: input {0} may be several streams; a leg is one, so give each a rule of its own"
    )]
    SeveralStreams(String),
}
