//! What the engine receives from its own tasks.

use std::net::{SocketAddr, UdpSocket};

use crate::error::Error;
use crate::keys::Current;
use crate::member::Input;
use crate::rules::Rules;

/// What the engine receives.
#[derive(Debug)]
pub(super) enum Received {
    Input(Input),
    /// The address at which the other relays reach this one.
    Own(OwnSocket),
    /// etcd is unavailable, and why.
    Away(etcd::Error),
    Rules(RulesRead),
    /// The number of a [`super::installer::Wanted`], and the result of its installation.
    Installed(u64, Input),
}

/// An address of this host, and the socket bound to it.
pub(super) type OwnSocket = (SocketAddr, UdpSocket);

/// The result of reading rules.
#[derive(Debug)]
pub(super) struct RulesRead {
    pub(super) current: Current,
    pub(super) rules: Result<(Rules, Vec<u8>), Error>,
}
