//! The reliability table: what a fault cost, for each relay that was put through it. Long tests add
//! their rows to `target/bench/reliability.json`; a later run of the same test replaces its own.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::bench::results::machine;
use crate::bench::results::reliability::Reliability;
pub use crate::bench::results::reliability::Row;

/// Adds a row, in place of an earlier one of the same fault and relay, with the revision it is of.
///
/// # Errors
/// When the file cannot be read or written.
pub fn record(row: Row) -> Result<()> {
    let row = Row {
        revision: machine::revision(),
        ..row
    };
    let directory = directory()?;
    fs::create_dir_all(&directory)?;
    let lock = File::create(directory.join("reliability.lock"))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusive);
    let _lock = lock.map_err(|(_, error)| error).context("lock")?;
    let path = directory.join("reliability.json");
    let mut table: Reliability = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).context("reliability.json")?,
        Err(_) => Reliability::default(),
    };
    println!("{row:?}");
    let is_same = |other: &Row| other.fault == row.fault && other.relay == row.relay;
    match table.reliability.iter_mut().find(|other| is_same(other)) {
        Some(there) => *there = row,
        None => table.reliability.push(row),
    }
    let temporary = path.with_extension("json.new");
    fs::write(&temporary, serde_json::to_vec_pretty(&table)?)?;
    fs::rename(&temporary, &path)?;
    Ok(())
}

/// `target/bench` of the workspace that the running test was built in.
///
/// # Errors
/// When the test runs from elsewhere.
pub fn directory() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let mut above = this.ancestors();
    let target = above.find(|path| path.ends_with("target"));
    Ok(target.context("not in a target directory")?.join("bench"))
}
