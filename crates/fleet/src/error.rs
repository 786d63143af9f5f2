//! Why something asked of a fleet was not done.

/// Why something asked of a fleet was not done. Each says what and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Somebody else changed the same at the same time, or before.
    #[error("{0}")]
    Conflict(String),
    /// What was asked for, or what stands in etcd, makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such rule, share or relay.
    #[error("{0}")]
    NotFound(String),
    /// etcd does not answer, or not in time.
    #[error("{0}")]
    Unavailable(String),
}

impl Error {
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::Conflict(message.into())
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::NotFound(message.into())
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable(message.into())
    }
}

impl From<etcd::Error> for Error {
    fn from(error: etcd::Error) -> Self {
        match error {
            etcd::Error::Refused { .. } => Self::Invalid(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}
