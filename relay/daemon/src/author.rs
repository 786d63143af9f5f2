//! Who makes a change, and why.

use std::fs;
use std::time::Duration;

use api::reply::{By, Via};

/// Who makes a change, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Author {
    pub(crate) by: By,
    /// Whether they are at another host: settings that only files of this host may change stay.
    pub(crate) is_elsewhere: bool,
    /// The reason they give.
    pub(crate) message: Option<String>,
    /// The generation of the rules that they ask to change, if they insist on it.
    pub(crate) generation: Option<u64>,
    /// How long the change waits to be confirmed.
    pub(crate) confirm: Option<Duration>,
    /// Whether it is to be written into the configuration.
    pub(crate) save: bool,
    /// The generation whose change this undoes.
    pub(crate) undoes: Option<u64>,
    /// Whether it returns to earlier rules: what no longer fits the host is a warning and no obstacle.
    pub(crate) goes_back: bool,
}

impl Author {
    /// An author that is not a client of the API.
    pub(crate) fn of(via: Via, name: Option<String>) -> Self {
        Self {
            by: By::of(via, name),
            ..Self::default()
        }
    }
}

/// The process of that number, as far as it is visible: with `ProtectProc=invisible` others' are not.
pub(crate) fn process(pid: Option<i32>, uid: Option<u32>) -> By {
    let process = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    By {
        via: Via::Client,
        user: uid.and_then(sys::user::name_of),
        uid,
        pid,
        process: process.map(|name| name.trim_end().to_owned()),
        name: None,
    }
}
