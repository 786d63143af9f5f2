//! The subcommands, one file each.

pub(crate) mod acknowledge;
pub(crate) mod add;
pub(crate) mod apply;
pub(crate) mod bench;
pub(crate) mod change;
pub(crate) mod check;
pub(crate) mod complete;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod discover;
pub(crate) mod doctor;
pub(crate) mod enable;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fleet;
pub(crate) mod form;
pub(crate) mod guard;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod join;
pub(crate) mod keeper;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod notify;
pub(crate) mod receive;
pub(crate) mod reload;
pub(crate) mod remove;
pub(crate) mod rollback;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod switch;
pub(crate) mod tap;
pub(crate) mod token;
pub(crate) mod top;
mod traffic_run;
pub(crate) mod watch;
mod without;
pub(crate) mod worker;

use api::reply::Change;
use rules::printable::printable;

use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::render;

/// Prints why accepted rules do not relay all that they should.
fn warn(command: &str, warnings: &[String]) {
    for warning in warnings {
        eprintln!("mcr {command}: warning: {}", printable(warning));
    }
}

/// Prints the warnings of a change and, with `--json`, the whole change.
fn print_change(command: &str, change: &Change, global: &Global) -> Result<(), Failure> {
    warn(command, &change.warnings);
    render::reply(global.json, change, String::new)
}

/// Refuses a command that needs network namespaces where none can be created.
fn require_root(command: &str) -> Result<(), Failure> {
    let message = format!("needs root, to make network namespaces: sudo mcr {command}");
    if lab::demo::may_run() {
        Ok(())
    } else {
        Err(Failure::new(Status::Privilege, message))
    }
}
