//! Programs of the kernel path that are attached and that no pins here hold: those of a daemon whose
//! bpffs is another one, or gone. They are found at the interfaces, and known by their name and by a
//! map that they have.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use aya_obj::generated::bpf_cmd;

use super::clsact::Filter;
use crate::{Error, syscall};

/// Names of the programs in the object.
const PROGRAMS: [&str; 2] = ["relay", "relay_bare"];
/// Name of the map that they are known by.
const SETTINGS: &str = "settings";

/// A daemon that runs sets the clock of its program about 20 times a second.
const CLOCK: Duration = Duration::from_secs(1);

/// A program at the tcx ingress of an interface.
#[derive(Debug)]
pub struct Stray {
    /// The interface.
    pub ifindex: u32,
    /// The kernel's number of the program.
    pub program: u32,
    link: OwnedFd,
    settings: OwnedFd,
    settings_bytes: usize,
}

/// Lists those at these interfaces of the calling thread's network namespace that are pinned nowhere
/// below `bpffs`. Without CAP_SYS_ADMIN no program can be looked at, and the list is empty.
#[must_use]
pub fn strays(bpffs: &Path, interfaces: &[u32]) -> Vec<Stray> {
    let attached = interfaces.iter().flat_map(|ifindex| {
        let there = syscall::tcx_ingress(*ifindex).unwrap_or_default();
        there.into_iter().map(|pair| (*ifindex, pair))
    });
    let strays = attached.filter_map(|(ifindex, (link, program))| look(ifindex, link, program));
    let strays: Vec<(u32, Stray)> = strays.collect();
    if strays.is_empty() {
        return Vec::new();
    }
    let pinned = pinned(&bpffs.join("mcr"));
    let unknown = strays.into_iter().filter(|(map, _)| !pinned.contains(map));
    unknown.map(|(_, stray)| stray).collect()
}

/// Parts them into those that nobody looks after any more and those whose daemon runs.
#[must_use]
pub fn abandoned(mut strays: Vec<Stray>) -> (Vec<Stray>, Vec<Stray>) {
    let mut before: Vec<_> = strays.iter().map(Stray::clock).collect();
    let deadline = Instant::now() + CLOCK;
    let mut running = Vec::new();
    while !strays.is_empty() && Instant::now() < deadline {
        thread::sleep(CLOCK / 20);
        for at in (0..strays.len()).rev() {
            if strays[at].clock() != before[at] {
                before.remove(at);
                running.push(strays.remove(at));
            }
        }
    }
    (strays, running)
}

impl Stray {
    /// Takes it off its interface.
    ///
    /// # Errors
    ///
    /// The kernel's, EPERM without CAP_SYS_ADMIN.
    pub fn detach(&self) -> Result<(), Error> {
        let detached = syscall::detach_link(self.link.as_fd());
        let ifindex = self.ifindex;
        detached.map_err(|error| Error::Detach { ifindex, error })
    }

    /// What the daemon last set: the last word of the settings.
    fn clock(&self) -> Option<Vec<u8>> {
        let value = syscall::first_value(self.settings.as_fd(), self.settings_bytes).ok()?;
        value.last_chunk::<8>().map(|clock| clock.to_vec())
    }
}

/// Takes an instance's clsact filter off an interface; says whether there was one.
///
/// # Errors
///
/// The kernel's.
pub fn detach_filter(instance: &str, ifindex: u32) -> Result<bool, Error> {
    let filter = Filter::of(instance);
    if !filter.is_attached(ifindex).unwrap_or(false) {
        return Ok(false);
    }
    let detached = filter.detach(ifindex);
    detached.map_err(|error| Error::Detach { ifindex, error })?;
    Ok(true)
}

/// A program of the kernel path, with the number of its settings.
fn look(ifindex: u32, link: u32, program: u32) -> Option<(u32, Stray)> {
    let opened = syscall::open_by_id(bpf_cmd::BPF_PROG_GET_FD_BY_ID, program).ok()?;
    let (name, maps) = syscall::program_maps(opened.as_fd()).ok()?;
    if !PROGRAMS.contains(&name.as_str()) {
        return None;
    }
    // One that nobody holds any more is on its way out of the kernel, and cannot be opened.
    let link = syscall::open_by_id(bpf_cmd::BPF_LINK_GET_FD_BY_ID, link).ok()?;
    let (id, settings, settings_bytes) = maps.into_iter().find_map(|id| {
        let settings = syscall::open_by_id(bpf_cmd::BPF_MAP_GET_FD_BY_ID, id).ok()?;
        let info = syscall::map_info(settings.as_fd()).ok()?;
        let is_it = syscall::name(&info.name) == SETTINGS;
        is_it.then_some((id, settings, info.value_size as usize))
    })?;
    let stray = Stray {
        ifindex,
        program,
        link,
        settings,
        settings_bytes,
    };
    Some((id, stray))
}

/// The numbers of the settings that are pinned, of whatever instance and layout.
fn pinned(directory: &Path) -> HashSet<u32> {
    let instances = entries(directory).into_iter();
    let maps = instances.flat_map(|instance| entries(&instance));
    let ids = maps.filter_map(|maps| {
        let map = syscall::open_pin(&maps.join(SETTINGS)).ok()?;
        Some(syscall::map_info(map.as_fd()).ok()?.id)
    });
    ids.collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}
