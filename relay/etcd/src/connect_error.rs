//! Why no connection could be made.

use std::error::Error;

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Unmade {
    /// There may be one the next moment.
    Failed(String),
    /// One side does not take the other's certificate, or a file is of no use: that lasts.
    Refused(String),
}

/// An error with what caused it.
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
