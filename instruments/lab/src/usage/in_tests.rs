//! Resources that a process holds, for tests only.

use anyhow::{Context, Result};
use procfs::process::Process;
use serde::Serialize;

/// What one process holds at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Usage {
    /// Resident memory that only this process uses, in KiB.
    pub memory_kib: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Reads what process `pid` holds.
///
/// # Errors
/// When there is no such process.
pub fn of(pid: u32) -> Result<Usage> {
    let process = Process::new(i32::try_from(pid)?)?;
    Ok(Usage {
        memory_kib: process.status()?.rssanon.context("no RssAnon")?,
        descriptors: process.fd_count()? as u64,
    })
}
