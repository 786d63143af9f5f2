//! The queue behind virtual links (`net.core.netdev_max_backlog`): the copies of a rule that leave by a
//! veth, a bridge or a macvlan wait there until the receiving core takes them. The setting applies to the
//! whole host and bounds a queue that is usually empty, so it is only raised if it is too short, and never
//! lowered again: what forwards after this daemon, and other daemons, need it too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use compile::host::Host;
use compile::table::{OutputState, Table};
use config::Automatic;
use rules::net::Ifindex;

use super::driver;

/// The setting. Only the first network namespace shows it; it applies to all.
pub const SETTING: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Its name for `sysctl`.
pub const NAME: &str = "net.core.netdev_max_backlog";
/// Packets of one NAPI poll, each of which may become a copy for each output (net.core.dev_weight).
const POLL: u64 = 64;
/// Polls that fit in the queue. A core that runs something else leaves its queue alone for up to a
/// tick, 4 ms at 250 Hz, and a million copies a second fill 4,000 slots meanwhile
/// (docs/measurements/kernel-path.md).
const POLLS: u64 = 8;
/// The longest queue that is requested: with copies of 2 KiB, 128 MiB for a core that stalls.
const MOST: u64 = 65_536;
/// Drivers whose packets go through that queue on their way in.
const QUEUED: [&str; 3] = ["veth", "bridge", "macvlan"];

/// The need of the rule with the most copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The rule's name.
    pub rule: String,
    /// Its copies of one packet that go through such a queue.
    pub copies: u64,
    /// The interface that most of them leave by.
    pub interface: String,
}

impl Need {
    /// Finds the rule that makes the most copies for virtual links; none if no rule makes any.
    #[must_use]
    pub fn of(table: &Table, host: &Host) -> Option<Self> {
        let name = |index| host.interfaces.get(&index).map(|link| link.name.as_str());
        Self::by(table, host, |index| {
            let driver = name(index).and_then(driver);
            driver.is_some_and(|driver| QUEUED.contains(&driver.as_str()))
        })
    }

    fn by(table: &Table, host: &Host, is_queued: impl Fn(Ifindex) -> bool) -> Option<Self> {
        let mut queued = BTreeMap::new();
        let mut widest: Option<(u64, &str, Ifindex)> = None;
        for route in table.routes.values() {
            let most = widest.map_or(0, |(copies, ..)| copies);
            if route.outputs.len() as u64 <= most {
                continue;
            }
            let mut copies: BTreeMap<Ifindex, u64> = BTreeMap::new();
            for output in &route.outputs {
                let OutputState::Up(egress) = &output.state else {
                    continue;
                };
                let index = egress.interface;
                if *queued.entry(index).or_insert_with(|| is_queued(index)) {
                    *copies.entry(index).or_default() += 1;
                }
            }
            let all: u64 = copies.values().sum();
            let fullest = copies.iter().max_by_key(|(_, copies)| **copies);
            if let Some((index, _)) = fullest.filter(|_| all > most) {
                widest = Some((all, &route.rule, *index));
            }
        }
        let (copies, rule, index) = widest?;
        Some(Self {
            rule: rule.to_owned(),
            copies,
            interface: host.interfaces.get(&index)?.name.clone(),
        })
    }

    /// Copies that one poll of the input can make.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.copies * POLL
    }

    /// Packets that the queue should hold; `None` if `limit` is enough.
    #[must_use]
    pub fn beyond(&self, limit: u64) -> Option<u64> {
        let wanted = (self.burst() * POLLS).min(MOST);
        (self.burst() > limit && wanted > limit).then_some(wanted)
    }
}

/// The outcome for the setting, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was raised to what the rules need.
    Raised(String),
    /// It is too short and cannot be raised.
    Short(String),
}

/// Raises the setting when rules need it.
#[derive(Debug)]
pub struct Backlog {
    setting: PathBuf,
    raises: bool,
    /// Whether rules or host have changed since it was read.
    is_stale: bool,
    /// What could not be raised, and why: it is reported once.
    refused: Option<String>,
}

impl Backlog {
    /// Follows the rules with the setting in that file, if the choice is automatic.
    #[must_use]
    pub fn new(setting: &Path, choice: Automatic) -> Self {
        Self {
            setting: setting.to_owned(),
            raises: choice == Automatic::Auto,
            is_stale: false,
            refused: None,
        }
    }

    /// Notes that rules or host have changed.
    pub const fn doubt(&mut self) {
        self.is_stale = self.raises;
    }

    /// Checks the setting if something has changed; returns what was done, or why it failed. In a network
    /// namespace that does not show the setting, nothing is done.
    pub fn follow(&mut self, table: &Table, host: &Host) -> Option<Outcome> {
        if !std::mem::take(&mut self.is_stale) {
            return None;
        }
        self.settle(&Need::of(table, host)?)
    }

    fn settle(&mut self, need: &Need) -> Option<Outcome> {
        let text = fs::read_to_string(&self.setting).ok()?;
        let limit = text.trim().parse().ok()?;
        let wanted = need.beyond(limit)?;
        let Need {
            rule,
            copies,
            interface,
        } = need;
        let why = format!(
            "rule {rule:?} makes {copies} copies of a packet, which wait there behind {interface}"
        );
        match fs::write(&self.setting, wanted.to_string()) {
            Ok(()) => {
                self.refused = None;
                let message = format!(
                    "{NAME} raised from {limit} to {wanted} for the whole host, until it starts \
                     again: {why}; backlog = \"off\" in [daemon] leaves it as it is"
                );
                Some(Outcome::Raised(message))
            }
            Err(error) => {
                let message = format!(
                    "{NAME} is {limit} and cannot be raised ({error}): {why}, and some may be lost \
                     there; sysctl -w {NAME}={wanted}"
                );
                let is_reported = self.refused.as_ref() == Some(&message);
                self.refused = Some(message.clone());
                (!is_reported).then_some(Outcome::Short(message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
