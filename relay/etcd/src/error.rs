//! What can become of a request, told apart by what it means for a write.

/// Why a request, or a watch, brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request was surely not applied: no endpoint could be reached, or it only read.
    #[error("no answer from etcd, nothing was changed: {reason}")]
    Unavailable {
        /// What each endpoint had to say.
        reason: String,
    },
    /// The request was sent and its answer never came: it may have been applied, or may yet be.
    #[error("{endpoint}: what became of the request is unknown: {reason}")]
    Unknown {
        /// Where it was sent.
        endpoint: String,
        /// Why there is no answer.
        reason: String,
    },
    /// etcd answered with an error and applied nothing.
    #[error("{endpoint}: etcd refused the request: {message}")]
    Refused {
        /// Who answered.
        endpoint: String,
        /// The status code of gRPC: 3 invalid argument, 7 permission denied, 8 resource exhausted,
        /// 9 failed precondition, 16 unauthenticated.
        code: u32,
        /// The text of etcd.
        message: String,
    },
    /// A watch was to go on from a revision that this member does not have yet: it lags, or all of etcd
    /// has gone back. List the keys again.
    #[error(
        "{endpoint}: has no more than revision {revision}, and others had more: list the keys again"
    )]
    Behind {
        /// Who answered.
        endpoint: String,
        /// Its revision.
        revision: i64,
    },
    /// The revision that was asked for is no longer in etcd's history: list the keys again.
    #[error("etcd has compacted its history up to revision {revision}: list the keys again")]
    Compacted {
        /// The oldest revision that is left; 0 where etcd does not tell it, as for a range.
        revision: i64,
    },
}
