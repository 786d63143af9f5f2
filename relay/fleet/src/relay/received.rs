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
    /// Where the other relays reach this one.
    Own(Taken),
    /// etcd is of no use, and why.
    Away(etcd::Error),
    Rules(RulesRead),
    /// What came of which [`super::installer::Wanted`].
    Installed(u64, Input),
}

/// The address, and the port taken there.
pub(super) type Taken = (SocketAddr, UdpSocket);

/// What reading came to.
#[derive(Debug)]
pub(super) struct RulesRead {
    pub(super) current: Current,
    pub(super) rules: Result<(Rules, Vec<u8>), Error>,
}
