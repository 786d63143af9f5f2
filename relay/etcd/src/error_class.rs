//! What etcd answers in place of a result, and what that says of the request.

const OUT_OF_RANGE: u32 = 11;

/// What an error that etcd answers with means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Refused,
    NotApplied,
    Unsettled,
    Compacted,
}

impl Answer {
    /// The codes that etcd gives what it has judged (`api/v3rpc/rpctypes/error.go`) mean that
    /// nothing was applied. With the others (unavailable, deadline exceeded, cancelled, unknown and
    /// such) a proposal may be under way, but for "no leader", said before anything is proposed.
    pub(crate) fn of(code: u32, message: &str) -> Self {
        match code {
            OUT_OF_RANGE if message.contains("compacted") => Answer::Compacted,
            3 | 5 | 6 | 7 | 8 | 9 | 11 | 12 | 16 => Answer::Refused,
            14 if message == "etcdserver: no leader" => Answer::NotApplied,
            _ => Answer::Unsettled,
        }
    }
}
