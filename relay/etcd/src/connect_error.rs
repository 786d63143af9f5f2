//! Why a connection could not be made.

use std::error::Error;

/// Why a connection could not be made.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The next attempt may succeed.
    Failed(String),
    /// One side rejects the other's certificate, or a file is unusable: the next attempt would fail too.
    Refused(String),
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = deeper.source();
    }
    text
}
