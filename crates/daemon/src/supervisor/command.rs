//! What the supervisor is sent: changes alone. Reads need only the view.

use api::reply::Change;
use tokio::sync::oneshot;

use crate::api::refusal::Answer;
use crate::core::Request;

/// A change and where to answer it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) order: Order,
    pub(crate) reply: oneshot::Sender<Answer<Change>>,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Order {
    Change(Request),
    /// Only say what would change.
    DryRun(Request),
    /// Read the configuration again, as SIGHUP does.
    Reload,
}
