//! The reliability table: the cost of each fault, for each relay subjected to it. Long tests add
//! their rows to `target/bench/reliability.json`; a later run of the same test replaces its own.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::bench::results::machine;
use crate::bench::results::reliability::Reliability;
pub use crate::bench::results::reliability::Row;

/// Adds a row with the present revision, replacing an earlier one of the same fault and relay.
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
    let lock_file = File::create(directory.join("reliability.lock"))?;
    let locked = Flock::lock(lock_file, FlockArg::LockExclusive);
    let _lock = locked.map_err(|(_, error)| error).context("lock")?;
    let path = directory.join("reliability.json");
    let mut table: Reliability = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).context("reliability.json")?,
        Err(_) => Reliability::default(),
    };
    println!("{row:?}");
    let is_same = |other: &Row| other.fault == row.fault && other.relay == row.relay;
    match table.reliability.iter_mut().find(|other| is_same(other)) {
        Some(existing) => *existing = row,
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
