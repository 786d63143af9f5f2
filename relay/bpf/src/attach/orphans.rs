//! Programs of the kernel path that are attached and that no pins here hold: those of a daemon whose bpffs is
//! another one, or no longer exists. They are searched at the interfaces, and recognised by their name and by
//! one of their maps.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use aya_obj::generated::bpf_cmd;

use super::clsact::Filter;
use super::program::NAMES;
use super::sign::{self, SETTINGS};
use crate::{Error, syscall};

/// How long a daemon of a build without a [`sign`] may take to set the clock of its program: it does so each
/// second while it is idle.
const CLOCK: Duration = Duration::from_millis(2500);

/// A program at the tcx ingress of an interface.
#[derive(Debug)]
pub struct Stray {
    /// The interface.
    pub ifindex: u32,
    /// The kernel's number of the program.
    pub program: u32,
    link: OwnedFd,
    settings: Settings,
}

/// The settings of a program.
#[derive(Debug)]
struct Settings {
    /// The kernel's number of the map.
    id: u32,
    map: OwnedFd,
    bytes: usize,
}

/// Lists those at these interfaces of the calling thread's network namespace that are pinned nowhere
/// below `bpffs`. Without CAP_SYS_ADMIN no program can be inspected, and the list is empty.
pub fn strays(bpffs: &Path, interfaces: &[u32]) -> Vec<Stray> {
    let attached = interfaces.iter().flat_map(|ifindex| {
        let programs = syscall::tcx_ingress(*ifindex).unwrap_or_default();
        programs.into_iter().map(|pair| (*ifindex, pair))
    });
    let mut strays: Vec<Stray> = attached
        .filter_map(|(ifindex, (link, program))| inspect(ifindex, link, program))
        .collect();
    if !strays.is_empty() {
        let pinned = pinned(&bpffs.join("mcr"));
        strays.retain(|stray| !pinned.contains(&stray.settings.id));
    }
    strays
}

/// Splits them into those without a daemon and those whose daemon runs. To be called in the network namespace
/// of their interfaces.
pub fn abandoned(strays: Vec<Stray>) -> (Vec<Stray>, Vec<Stray>) {
    let (mut running, mut strays): (Vec<_>, Vec<_>) = strays
        .into_iter()
        .partition(|stray| sign::is_shown(stray.settings.id));
    let mut before: Vec<_> = strays.iter().map(Stray::clock).collect();
    let deadline = Instant::now() + CLOCK;
    while !strays.is_empty() && Instant::now() < deadline {
        thread::sleep(CLOCK / 20);
        for index in (0..strays.len()).rev() {
            if strays[index].clock() != before[index] {
                before.remove(index);
                running.push(strays.remove(index));
            }
        }
    }
    (strays, running)
}

impl Stray {
    /// Detaches it from its interface.
    ///
    /// # Errors
    ///
    /// The kernel's, EPERM without CAP_SYS_ADMIN.
    pub fn detach(&self) -> Result<(), Error> {
        let detached = syscall::detach_link(self.link.as_fd());
        let ifindex = self.ifindex;
        detached.map_err(|error| Error::Detach { ifindex, error })
    }

    /// The clock that the daemon last set: the last word of the settings.
    fn clock(&self) -> Option<Vec<u8>> {
        let Settings { map, bytes, .. } = &self.settings;
        let value = syscall::value(map.as_fd(), 0, *bytes).ok()?;
        value.last_chunk::<8>().map(|clock| clock.to_vec())
    }
}

/// Removes an instance's clsact filter from an interface, unless a daemon of that name runs with a bpffs of its
/// own; returns whether there was one.
///
/// # Errors
///
/// The kernel's.
pub fn detach_filter(instance: &str, ifindex: u32) -> Result<bool, Error> {
    let filter = Filter::of(instance);
    let Ok(Some(program)) = filter.program(ifindex) else {
        return Ok(false);
    };
    if settings_of(program).is_some_and(|(_, settings)| sign::is_shown(settings.id)) {
        return Ok(false);
    }
    let detached = filter.detach(ifindex);
    detached.map_err(|error| Error::Detach { ifindex, error })?;
    Ok(true)
}

/// Reads a program, if it is the kernel path's.
fn inspect(ifindex: u32, link: u32, program: u32) -> Option<Stray> {
    let (name, settings) = settings_of(program)?;
    if !NAMES.contains(&name.as_str()) {
        return None;
    }
    // A link without holders is being destroyed by the kernel, and cannot be opened.
    let link = syscall::open_by_id(bpf_cmd::BPF_LINK_GET_FD_BY_ID, link).ok()?;
    Some(Stray {
        ifindex,
        program,
        link,
        settings,
    })
}

/// The name of a program, and its settings, if it has any.
fn settings_of(program: u32) -> Option<(String, Settings)> {
    let opened = syscall::open_by_id(bpf_cmd::BPF_PROG_GET_FD_BY_ID, program).ok()?;
    let (name, maps) = syscall::program_maps(opened.as_fd()).ok()?;
    let settings = maps.into_iter().find_map(|id| {
        let map = syscall::open_by_id(bpf_cmd::BPF_MAP_GET_FD_BY_ID, id).ok()?;
        let info = syscall::map_info(map.as_fd()).ok()?;
        let bytes = info.value_size as usize;
        (syscall::name(&info.name) == SETTINGS).then_some(Settings { id, map, bytes })
    })?;
    Some((name, settings))
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
