//! The verbs that change running rules, against a daemon; one topic per file.

#![expect(clippy::unwrap_used, reason = "tests")]

mod acknowledge;
mod change;
mod enable;
mod explain;
mod join;
mod labels;
mod merge;
mod reload;
mod save;
