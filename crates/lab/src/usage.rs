//! What a process holds: memory and descriptors.

use std::fs;

use anyhow::{Context, Result};
use serde::Serialize;

/// What one process holds at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Usage {
    /// Resident memory that belongs to it alone, in KiB.
    pub memory_kib: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Reads what process `pid` holds.
///
/// # Errors
/// When there is no such process.
pub fn of(pid: u32) -> Result<Usage> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).context(path)?;
    let anonymous = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let words = anonymous.unwrap_or_default().split_whitespace().next();
    Ok(Usage {
        memory_kib: words.context("no RssAnon")?.parse()?,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
    })
}
