//! The terminal interface of `mcr top`. The history turns successive statistics into rates, the screen's
//! state handles keys, and drawing changes nothing, so each can be tested without a terminal.

mod columns;
mod detail;
mod draw;
mod feed;
mod header;
mod history;
mod hosts;
mod rules;
mod screen;
mod scroll;
mod style;
mod update;
mod window;

pub(crate) use draw::draw;
pub(crate) use feed::Feed;
pub(crate) use screen::{ORDERS, Screen};
