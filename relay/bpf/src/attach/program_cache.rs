//! Programs that an earlier process had verified: pinned, they spare a start the verifier, which takes
//! some tenths of a second of two processors.
//!
//! `BPFFS/mcr/INSTANCE/programs-HASH/NAME` holds them, HASH being that of the compiled object. They use the
//! maps that they were loaded with, so they are usable as long as these are the instance's.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::pin;
use crate::syscall;

/// Prefix of the names of directories with programs.
const PROGRAMS: &str = "programs-";

/// Hash of the compiled object.
const HASH: &str = env!("MCR_OBJECT_HASH");

/// The program of this build and name, if it is pinned and uses no maps but those in the directory `maps`.
pub(super) fn find(maps: &Path, name: &str) -> Option<OwnedFd> {
    let files = fs::read_dir(maps).ok()?;
    let id = |path: &Path| {
        Some(
            syscall::map_info(syscall::open_pin(path).ok()?.as_fd())
                .ok()?
                .id,
        )
    };
    let pinned: HashSet<u32> = files.filter_map(|file| id(&file.ok()?.path())).collect();
    let program = syscall::open_pin(&directory(maps)?.join(name)).ok()?;
    let (program_name, used) = syscall::program_maps(program.as_fd()).ok()?;
    let is_ours = program_name == name && used.iter().all(|map| pinned.contains(map));
    is_ours.then_some(program)
}

/// Pins a program for the next process, in place of those of other builds.
///
/// # Errors
///
/// When it cannot be pinned, or others not removed.
pub(super) fn keep(maps: &Path, name: &str, program: &OwnedFd) -> io::Result<()> {
    let directory = directory(maps).ok_or(io::ErrorKind::NotFound)?;
    let instance = directory.parent().ok_or(io::ErrorKind::NotFound)?;
    for entry in fs::read_dir(instance)? {
        let entry = entry?;
        let is_program = entry.file_name().to_string_lossy().starts_with(PROGRAMS);
        if is_program && entry.path() != directory {
            pin::remove_files(&entry.path())?;
        }
    }
    fs::create_dir_all(&directory)?;
    let path = directory.join(name);
    // One that runs on other maps.
    if path.exists() {
        fs::remove_file(&path)?;
    }
    syscall::pin(program.as_fd(), &path)
}

fn directory(maps: &Path) -> Option<PathBuf> {
    Some(maps.parent()?.join(format!("{PROGRAMS}{HASH}")))
}
