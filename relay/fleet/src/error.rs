//! Why a request to a fleet failed.

/// Status codes of gRPC.
const INVALID_ARGUMENT: u32 = 3;
const PERMISSION_DENIED: u32 = 7;
const RESOURCE_EXHAUSTED: u32 = 8;
const FAILED_PRECONDITION: u32 = 9;
const UNAUTHENTICATED: u32 = 16;

/// Why a request to a fleet failed. Each message names the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Somebody else made a conflicting change, at the same time or before.
    #[error("{0}")]
    Conflict(String),
    /// The request, or a value in etcd, is invalid.
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
        match &error {
            etcd::Error::Refused { code, message, .. } => match remedy(*code, message) {
                Some(remedy) => Self::Unavailable(format!("{error}: {remedy}")),
                None => Self::Invalid(error.to_string()),
            },
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// The remedy if etcd would refuse every request of this client; `None`: it refuses this one request.
fn remedy(code: u32, message: &str) -> Option<&'static str> {
    Some(match code {
        RESOURCE_EXHAUSTED if message.contains("database space exceeded") => {
            "switch its automatic compaction on, run etcdctl defrag on each member, then etcdctl \
             alarm disarm"
        }
        PERMISSION_DENIED => {
            "have etcd know the user (etcdctl user list), with a role that may read and write what \
             begins with /mcr/, the fleet's name and /: etcdctl role grant-permission ROLE \
             --prefix=true readwrite /mcr/FLEET/"
        }
        INVALID_ARGUMENT if message.contains("user name is empty") => {
            "give user and password_file in [fleet], or a client certificate of which etcd takes the \
             common name"
        }
        INVALID_ARGUMENT if message.contains("authentication failed") => {
            "write the password that etcd has into password_file and start the daemon again, or set \
             it anew with etcdctl user passwd"
        }
        FAILED_PRECONDITION | UNAUTHENTICATED => {
            "look at user and password_file in [fleet], and whether etcd's authentication is on"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_client_gets_a_remedy_and_a_refused_request_does_not() {
        let refused = |code, message: &str| {
            Error::from(etcd::Error::Refused {
                endpoint: "https://e1:2379".to_owned(),
                code,
                message: message.to_owned(),
            })
        };
        let cases = [
            (7, "etcdserver: permission denied", "role grant-permission"),
            (7, "etcdserver: permission denied", "etcdctl user list"),
            (3, "etcdserver: user name is empty", "password_file"),
            (
                3,
                "etcdserver: authentication failed, invalid user ID or password",
                "user passwd",
            ),
            (16, "etcdserver: invalid auth token", "authentication is on"),
            (
                8,
                "etcdserver: mvcc: database space exceeded",
                "alarm disarm",
            ),
        ];
        for (code, message, remedy) in cases {
            let error = refused(code, message);
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            let text = error.to_string();
            assert!(text.contains(message) && text.contains(remedy), "{text}");
        }
        let large = refused(3, "etcdserver: request is too large");
        assert!(matches!(large, Error::Invalid(_)), "{large}");
    }
}
