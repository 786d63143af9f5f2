//! What goes wrong on the userspace path, in words an operator can act on.

use std::io;

use bpf::merge_layout::{RINGS, STREAMS};
use rules::merge::DEFAULT_PACKETS;

use crate::userspace::shared::layout::{MAX_INPUTS, MAX_OUTPUTS, MAX_RULES};

/// What went wrong on the userspace path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AF_PACKET sockets cannot be opened.
    #[error("userspace path: cannot open an AF_PACKET socket: {0} (CAP_NET_RAW is needed)")]
    Unavailable(#[source] io::Error),
    /// Counters for that many rules, inputs or outputs do not fit.
    #[error(
        "userspace path: no room for {rules} more rules, {inputs} more inputs of rules with \
         several and {outputs} more outputs (it holds {} rules, {} such inputs and {} outputs): \
         remove some or use fewer",
        MAX_RULES,
        MAX_INPUTS,
        MAX_OUTPUTS
    )]
    Capacity {
        /// Rules too many.
        rules: u32,
        /// Inputs too many, of rules with several.
        inputs: u32,
        /// Outputs too many.
        outputs: u32,
    },
    /// The packets that a merged rule is to remember do not fit.
    #[error(
        "userspace path: rule {rule:?}: no room to remember {packets} packets of each of its streams \
         (all merged rules together may remember {}): lower `packets` of this rule or of others, or \
         merge fewer rules",
        RINGS / STREAMS as u32 * DEFAULT_PACKETS
    )]
    MergeRoom {
        /// The rule.
        rule: String,
        /// The packets requested.
        packets: u32,
    },
    /// No worker could be started.
    #[error("userspace path: cannot start a worker ({}): {source}", command.join(" "))]
    Start {
        /// The command that was run.
        command: Vec<String>,
        /// The kernel's error, or the conversation's failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A system call failed.
    #[error("userspace path: {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
