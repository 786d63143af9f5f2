//! Classifies the errors that etcd replies with by what they mean for the request.

const OUT_OF_RANGE: u32 = 11;

/// What an error that etcd replies with means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    Refused,
    NotApplied,
    Unsettled,
    Compacted,
}

impl ErrorClass {
    /// The codes of requests that etcd has decided on (`api/v3rpc/rpctypes/error.go`) mean that nothing
    /// was applied. With the others (unavailable, deadline exceeded, cancelled, unknown and such) a
    /// proposal may be under way, except for "no leader", which is returned before anything is proposed.
    pub(crate) fn of(code: u32, message: &str) -> Self {
        match code {
            OUT_OF_RANGE if message.contains("compacted") => ErrorClass::Compacted,
            3 | 5 | 6 | 7 | 8 | 9 | 11 | 12 | 16 => ErrorClass::Refused,
            14 if message == "etcdserver: no leader" => ErrorClass::NotApplied,
            _ => ErrorClass::Unsettled,
        }
    }
}
