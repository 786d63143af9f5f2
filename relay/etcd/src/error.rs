//! The outcomes of failed requests, distinguished by what they mean for a write.

/// Why a request or a watch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The request was surely not applied: no endpoint could be reached, or it only read.
    #[error("no answer from etcd, nothing was changed: {reason}")]
    Unavailable {
        /// The reason of each endpoint.
        reason: String,
    },
    /// The request was sent and not answered: it may have been applied, or may still be.
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
    /// A watch was to resume from a revision that this member does not have: it lags, or all of etcd
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
    /// The requested revision is no longer in etcd's history: list the keys again.
    #[error("etcd has compacted its history up to revision {revision}: list the keys again")]
    Compacted {
        /// The oldest revision that remains; 0 if etcd does not report it, as for a range.
        revision: i64,
    },
}
