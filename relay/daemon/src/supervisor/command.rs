//! Commands to the supervisor: only changes. Reads need only the view.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use api::reply::Change;
use compile::table::Table;
use rules::document::RuleDocument;
use rules::net::Ifindex;
use tokio::sync::oneshot;

use crate::api::api_error::Reply;
use crate::author::Author;
use crate::core::Request;

/// A change with the channel of its reply.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) order: Order,
    pub(crate) author: Author,
    pub(crate) turn: CancelOnce,
    pub(crate) reply: oneshot::Sender<Reply<Change>>,
}

impl Command {
    /// A command, its turn, and the receiver of its reply.
    pub(crate) fn new(
        order: Order,
        author: Author,
    ) -> (Self, CancelOnce, oneshot::Receiver<Reply<Change>>) {
        let (reply, receiver) = oneshot::channel();
        let turn = CancelOnce::default();
        let command = Self {
            order,
            author,
            turn: turn.clone(),
            reply,
        };
        (command, turn, receiver)
    }
}

/// Whether a change was begun or cancelled: one or the other, for good.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelOnce(Arc<OnceLock<bool>>);

impl CancelOnce {
    /// Begins the change; returns `false` if it was cancelled.
    pub(crate) fn begin(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Cancels the change; returns `false` if it had begun.
    pub(crate) fn cancel(&self) -> bool {
        !*self.0.get_or_init(|| false)
    }
}

/// What the supervisor is to do.
#[derive(Debug)]
pub(crate) enum Order {
    Change(Request),
    /// Only report what would change.
    DryRun(Request),
    /// Read the configuration again, as SIGHUP does.
    Reload,
    /// Save the running rules and settings in the configuration.
    Save,
    /// Confirm the waiting change.
    Confirm,
    /// Undo the waiting change, or only report what that would change.
    Undo {
        dry_run: bool,
    },
    /// Make these the rules of the fleet.
    Fleet(FleetRules),
    /// Only report what the dataplane executes for a group or address on an interface.
    Routes(RoutesAsked),
}

/// The interface and destination of a packet whose routes are requested.
#[derive(Debug)]
pub(crate) struct RoutesAsked {
    pub(crate) ingress: Ifindex,
    pub(crate) destination: IpAddr,
    /// Receives the routes that match it, whatever its port and its sender.
    pub(crate) table: oneshot::Sender<Table>,
}

/// Rules of a fleet for this host.
#[derive(Debug)]
pub(crate) struct FleetRules {
    /// Each with its share.
    pub(crate) rules: Vec<RuleDocument>,
    /// Receives the refused shares, and why.
    pub(crate) refused: oneshot::Sender<BTreeMap<String, String>>,
}
