//! The endpoints of a receiver as keys of the program that counts at ingress.

use thiserror::Error;

use super::WatchKey;
use crate::endpoint::Listen;
use crate::receiver;

/// Keys with the number of the endpoint that each is counted under, and the interfaces they are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// In the order of the endpoints and of their addresses.
    pub keys: Vec<(WatchKey, u32)>,
    /// Kernel indexes, each once.
    pub interfaces: Vec<u32>,
}

/// Why an endpoint cannot be counted at ingress.
#[derive(Debug, Error)]
pub enum Error {
    /// It has sources.
    #[error("{at}: counting at ingress does not tell sources apart; leave them out")]
    Sources {
        /// The endpoint as written.
        at: String,
    },
    /// It has no interface.
    #[error("{at}: counting at ingress needs the interface, as in GROUP%eth0:PORT")]
    InterfaceNeeded {
        /// The endpoint as written.
        at: String,
    },
    /// There is no such interface.
    #[error(transparent)]
    NoInterface(#[from] receiver::Error),
}

impl Watch {
    /// Lists the keys of all addresses of `endpoints`.
    ///
    /// # Errors
    /// If one has sources, or no existing interface.
    pub fn of(endpoints: &[Listen]) -> Result<Self, Error> {
        let mut watch = Self::default();
        for (number, endpoint) in endpoints.iter().enumerate() {
            let at = || endpoint.at.clone();
            if !endpoint.sources.is_empty() {
                return Err(Error::Sources { at: at() });
            }
            let ifindex = endpoint
                .ifindex()?
                .ok_or_else(|| Error::InterfaceNeeded { at: at() })?;
            if !watch.interfaces.contains(&ifindex) {
                watch.interfaces.push(ifindex);
            }
            watch.keys.extend(endpoint.addresses.iter().map(|address| {
                let key = WatchKey::new(address.ip(), address.port(), ifindex);
                (key, number as u32)
            }));
        }
        Ok(watch)
    }
}
