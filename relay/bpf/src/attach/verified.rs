//! Programs that an earlier process had verified: pinned, they spare a start the verifier, which takes
//! some tenths of a second of two processors.
//!
//! `BPFFS/mcr/INSTANCE/programs-HASH/NAME` holds them, HASH being that of the compiled object. They go on
//! with the maps that they were loaded with, so they are of use as long as these are the instance's.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::pin;
use super::program::NAMES;
use crate::syscall;

/// What names of directories with programs begin with.
const PROGRAMS: &str = "programs-";

/// Hash of the compiled object.
const HASH: &str = env!("MCR_OBJECT_HASH");

/// The programs of this build, if they are there and use no maps but those in the directory `maps`.
pub(super) fn find(maps: &Path) -> Option<[OwnedFd; NAMES.len()]> {
    let pinned = fs::read_dir(maps).ok()?;
    let id = |path: &Path| {
        Some(
            syscall::map_info(syscall::open_pin(path).ok()?.as_fd())
                .ok()?
                .id,
        )
    };
    let pinned: HashSet<u32> = pinned.filter_map(|entry| id(&entry.ok()?.path())).collect();
    let directory = directory(maps)?;
    let open = |name: &str| {
        let program = syscall::open_pin(&directory.join(name)).ok()?;
        let (called, used) = syscall::program_maps(program.as_fd()).ok()?;
        let is_ours = called == name && used.iter().all(|map| pinned.contains(map));
        is_ours.then_some(program)
    };
    let [ethernet, bare] = NAMES.map(open);
    Some([ethernet?, bare?])
}

/// Keeps programs for the next process, in place of any others.
///
/// # Errors
///
/// When they cannot be pinned, or others not removed.
pub(super) fn keep(maps: &Path, programs: &[OwnedFd; NAMES.len()]) -> io::Result<()> {
    let directory = directory(maps).ok_or(io::ErrorKind::NotFound)?;
    let instance = directory.parent().ok_or(io::ErrorKind::NotFound)?;
    for entry in fs::read_dir(instance)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PROGRAMS) {
            pin::remove_files(&entry.path())?;
        }
    }
    fs::create_dir(&directory)?;
    let mut named = NAMES.into_iter().zip(programs);
    named.try_for_each(|(name, program)| syscall::pin(program.as_fd(), &directory.join(name)))
}

fn directory(maps: &Path) -> Option<PathBuf> {
    Some(maps.parent()?.join(format!("{PROGRAMS}{HASH}")))
}
