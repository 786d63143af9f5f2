//! What the supervisor is sent: changes alone. Reads need only the view.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use api::reply::Change;
use compile::table::Table;
use rules::document::RuleDocument;
use rules::net::Ifindex;
use tokio::sync::oneshot;

use crate::api::api_error::Answer;
use crate::author::Author;
use crate::core::Request;

/// A change and where to answer it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) order: Order,
    pub(crate) author: Author,
    pub(crate) turn: CancelOnce,
    pub(crate) reply: oneshot::Sender<Answer<Change>>,
}

impl Command {
    /// A command, its turn, and where its answer comes.
    pub(crate) fn new(
        order: Order,
        author: Author,
    ) -> (Self, CancelOnce, oneshot::Receiver<Answer<Change>>) {
        let (reply, answer) = oneshot::channel();
        let turn = CancelOnce::default();
        let command = Self {
            order,
            author,
            turn: turn.clone(),
            reply,
        };
        (command, turn, answer)
    }
}

/// Whether a change was begun, or is not to be any more: one or the other, for good.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelOnce(Arc<OnceLock<bool>>);

impl CancelOnce {
    /// Says whether the change may begin.
    pub(crate) fn begin(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Calls the change off; says whether that was in time.
    pub(crate) fn call_off(&self) -> bool {
        !*self.0.get_or_init(|| false)
    }
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Order {
    Change(Request),
    /// Only say what would change.
    DryRun(Request),
    /// Read the configuration again, as SIGHUP does.
    Reload,
    /// Save what runs in the configuration.
    Save,
    /// Have what waits to be confirmed stay.
    Confirm,
    /// Take it back, or only say what that would change; of this generation alone, where one is given.
    Undo {
        generation: Option<u64>,
        dry_run: bool,
    },
    /// Make these the rules of the fleet.
    Fleet(FleetRules),
    /// Only tell what the dataplane executes for a group or address on an interface.
    Routes(RoutesAsked),
}

/// Where a packet comes to that somebody asks about.
#[derive(Debug)]
pub(crate) struct RoutesAsked {
    pub(crate) ingress: Ifindex,
    pub(crate) destination: IpAddr,
    /// Told of the routes that take it, whatever its port and its sender.
    pub(crate) table: oneshot::Sender<Table>,
}

/// Rules of a fleet for this host.
#[derive(Debug)]
pub(crate) struct FleetRules {
    /// Each with its share.
    pub(crate) rules: Vec<RuleDocument>,
    /// Told of the shares that could not be, and why.
    pub(crate) refused: oneshot::Sender<BTreeMap<String, String>>,
}
