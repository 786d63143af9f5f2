//! A fleet under faults: what its receiver loses, what it gets twice, and who forwarded when.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod parts;
mod rounds;
mod simulation;

use lab::fleet::etcd;
use parking_lot::{Mutex, MutexGuard};

/// Waits for one's turn: fleets that share two cores with other fleets are late with their beats.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock()
}

/// Returns true, with a message, if etcd is not installed.
fn is_skipped() -> bool {
    let missing = etcd::missing();
    if let Some(missing) = missing {
        eprintln!("skipped: {missing}");
    }
    missing.is_some()
}
