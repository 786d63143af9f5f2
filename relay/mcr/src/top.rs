//! The terminal interface of `mcr top`. History makes rates of successive statistics, the screen's
//! state answers keys, drawing changes nothing: so each can be tested without a terminal.

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
