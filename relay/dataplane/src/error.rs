//! What goes wrong in the dataplane as a whole.

use std::io;

use compile::table::RouteKey;

use crate::userspace::supervisor::error::Error as UserspaceError;

/// Why the dataplane cannot do what is requested.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel path failed.
    #[error(transparent)]
    Bpf(#[from] bpf::Error),
    /// The userspace path failed.
    #[error(transparent)]
    Userspace(#[from] UserspaceError),
    /// More than fits; nothing was changed.
    #[error("{wanted} {what} needed, room for {limit}; nothing was changed")]
    Capacity {
        /// The resource that is short.
        what: &'static str,
        /// How much the change needs.
        wanted: usize,
        /// How much there is.
        limit: usize,
    },
    /// The legs of a rule cannot be merged for want of memory; nothing was changed.
    #[error(
        "rule {rule:?}: no room to merge its legs ({blocks} blocks in a row): let it remember fewer \
         `packets`, or merge the legs of fewer rules; nothing was changed"
    )]
    MergeRoom {
        /// The rule.
        rule: String,
        /// What it needs.
        blocks: u32,
    },
    /// There is no gate for a share; nothing was changed.
    #[error(
        "share {share:?}: no room for its gate, a path has {limit}: let more rules share one \
         (`share = \"NAME\"`); nothing was changed"
    )]
    GateRoom {
        /// The share.
        share: String,
        /// How many shares a path has room for.
        limit: usize,
    },
    /// The path cannot execute a route; placement should not have put it there.
    #[error("route {key:?}: the kernel path does not support {what}")]
    Unsupported {
        /// The route's key.
        key: RouteKey,
        /// The unsupported request.
        what: &'static str,
    },
    /// The path that a route is placed on is not available.
    #[error("route {key:?} of rule {rule:?}: its path is not available: {reason}")]
    Unavailable {
        /// The route's key.
        key: RouteKey,
        /// The route's rule.
        rule: String,
        /// Why the path is not available.
        reason: String,
    },
    /// A packet cannot be tried.
    #[error("the kernel path is not available: {reason}")]
    NoKernelPath {
        /// Why not.
        reason: String,
    },
    /// Waiting for packets in flight failed.
    #[error("cannot wait for packets in flight (membarrier): {0}")]
    Grace(io::Error),
}
