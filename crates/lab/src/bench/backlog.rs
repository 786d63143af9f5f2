//! The queue between the cores while a bench runs (`net.core.netdev_max_backlog`): on the beds it
//! stands for the wire and the receive ring of a network card, and at the kernel's 1,000 packets a
//! disturbance of one millisecond would be counted as a relay's loss.

use std::fs;

const FILE: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Packets per core: what 10 ms bring at the highest rate of any case, 1,000,000 a second.
const PACKETS: u64 = 10_000;

/// Holds the longer queue. Dropping it puts the machine's own setting back.
#[derive(Debug)]
pub(super) struct Backlog {
    /// What stood there, if it was changed.
    before: Option<String>,
}

impl Backlog {
    /// Makes the queue long enough. Where that is not permitted it stays as it is, and the report
    /// says how long that was.
    pub(super) fn lengthen() -> Self {
        let before = fs::read_to_string(FILE).unwrap_or_default();
        let is_short = before.trim().parse().is_ok_and(|now: u64| now < PACKETS);
        let changed = is_short && fs::write(FILE, PACKETS.to_string()).is_ok();
        Self {
            before: changed.then_some(before),
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Nothing more can be done about it here.
            let _ = fs::write(FILE, before.trim());
        }
    }
}
