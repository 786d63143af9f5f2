//! What a process holds and uses: memory, descriptors and processor time.

#[cfg(feature = "test-support")]
mod in_tests;
#[cfg(feature = "test-support")]
pub use in_tests::{Usage, of};

use std::time::Duration;

use anyhow::Result;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// Reads the processor time that process `pid` has used, threads that ended included.
///
/// # Errors
/// When there is no such process.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))?;
    Ok(clock.now()?.into())
}
