//! The binary as its users meet it: commands, documents, service, what it shows; one topic per file.
//!
//! One program, so that tests of all topics run side by side and are linked once.

mod api;
mod bed;
mod bench;
mod bootstrap;
mod changes;
mod chart;
mod clock;
mod command_line;
mod completion;
mod confirm;
mod daemon_settings;
mod demo;
mod discover;
mod doctor;
mod documents;
mod elsewhere;
mod events;
mod figures;
mod fleet;
mod import;
mod install;
mod leftovers;
mod observe;
mod reflect;
mod schemathesis;
mod service;
mod start;
mod systemd;
mod traffic;
mod verbs;
mod watch;
mod webhook;
mod wire;
mod with_daemon;
