//! What captures wait for: packet sockets see nothing of what XDP takes, so the daemon leaves it to tc where
//! a capture shows its sign.

use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// A daemon looks for signs every second; a busy one later.
const PATIENCE: Duration = Duration::from_secs(3);
const TURN: Duration = Duration::from_millis(50);

/// Waits until that is so; `false`: it is not, in all the time that a daemon may take.
pub(crate) fn wait_for_tc(
    mut is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if is_so()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        thread::sleep(TURN);
    }
}
