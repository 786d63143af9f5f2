//! The layout of an instance's state in bpffs, which outlives processes. One process at a time owns it
//! ([`super::pin_lock`]).
//!
//! `BPFFS/mcr/INSTANCE/maps-HASH/NAME` holds the maps, HASH being that of `layout.h`;
//! `BPFFS/mcr/INSTANCE/link-IFINDEX` the links. Links of a program with another layout are moved to
//! the new program first, then the old maps' directory is removed. `xdp-IFINDEX` are the links of the hook at
//! XDP, `tracepoint-NAME-NUMBER` those of the tracepoints that count for it. Where clsact filters replace
//! links, empty directories mark them: `filter-IFINDEX`, and `qdisc-IFINDEX` if the discipline is ours.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clsact::Filter;
use super::pin_lock::{claim, failed};
use crate::maps::Maps;
use crate::{Error, layout};

/// Prefix of the names of directories with maps.
pub(super) const MAPS: &str = "maps-";
/// Prefix of the names of pinned XDP links.
pub(super) const XDP: &str = "xdp";
/// Prefix of the names of pinned links of tracepoints.
const TRACEPOINT: &str = "tracepoint-";

/// Where bpffs is mounted, unless options say otherwise.
pub const BPFFS: &str = "/sys/fs/bpf";

/// The pin directory of one instance.
#[derive(Clone, Debug)]
pub struct Pins {
    directory: PathBuf,
    filter: Filter,
    _claim: Arc<File>,
}

impl Pins {
    /// Makes the directories below `bpffs`, unless they exist, and claims them until the value and its clones
    /// are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Claimed`] where another process has them; when `bpffs` is not writable.
    pub fn open(bpffs: &Path, instance: &str) -> Result<Self, Error> {
        let directory = bpffs.join("mcr").join(instance);
        let pins = Self {
            _claim: Arc::new(claim(&directory)?),
            directory,
            filter: Filter::of(instance),
        };
        let maps = pins.maps();
        fs::create_dir_all(&maps).map_err(|error| failed(&maps, "create the directory", error))?;
        Ok(pins)
    }

    /// Directory of the maps with this build's layout.
    pub fn maps(&self) -> PathBuf {
        self.directory.join(format!("{MAPS}{}", layout::HASH))
    }

    /// Pin of the link on an interface.
    pub fn link(&self, ifindex: u32) -> PathBuf {
        self.directory.join(format!("link-{ifindex}"))
    }

    /// The interfaces that the program is, or was about to be, attached to.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn links(&self) -> Result<Vec<u32>, Error> {
        links_in(&self.directory)
    }

    /// Directories of maps that this build does not use: of another layout, or set aside.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn foreign_maps(&self) -> Result<Vec<String>, Error> {
        let mut names = self.names()?;
        names.retain(|name| name.starts_with(MAPS) && self.directory.join(name) != self.maps());
        Ok(names)
    }

    /// Removes maps of other layouts; called once no link runs a program that uses them.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn remove_foreign_maps(&self) -> Result<(), Error> {
        let foreign = self.foreign_maps()?;
        foreign
            .iter()
            .try_for_each(|name| remove_directory(&self.directory.join(name)))
    }

    /// Returns whether no map of this build's layout is pinned.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.pinned()?.is_empty())
    }

    /// Returns whether some maps of this build's layout are pinned but not all that every version of it had.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn is_incomplete(&self) -> Result<bool, Error> {
        let pinned = self.pinned()?;
        let mut wanted = Maps::NAMES
            .iter()
            .filter(|name| !Maps::LATER.contains(name));
        Ok(!pinned.is_empty() && wanted.any(|name| !pinned.contains(*name)))
    }

    /// The names of this build's maps that are pinned.
    fn pinned(&self) -> Result<BTreeSet<String>, Error> {
        let maps = self.maps();
        let entries = fs::read_dir(&maps).map_err(|error| failed(&maps, "read", error))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.collect())
    }

    /// Renames the directory of this build's maps; they count as foreign from now on.
    ///
    /// # Errors
    ///
    /// When they cannot be renamed.
    pub fn set_aside(&self) -> Result<(), Error> {
        let maps = self.maps();
        let aside = self
            .directory
            .join(format!("{MAPS}aside-{}", std::process::id()));
        fs::rename(&maps, &aside).map_err(|error| failed(&maps, "rename", error))?;
        fs::create_dir_all(&maps).map_err(|error| failed(&maps, "create the directory", error))
    }

    /// Removes a link's pin, if there is one.
    ///
    /// # Errors
    ///
    /// When it cannot be removed.
    pub fn remove_link(&self, ifindex: u32) -> Result<(), Error> {
        remove_file(&self.link(ifindex))
    }

    /// This instance's clsact filters.
    pub(crate) fn filter(&self) -> Filter {
        self.filter.clone()
    }

    pub(crate) fn has_filter(&self, ifindex: u32) -> bool {
        self.mark("filter", ifindex).exists()
    }

    /// Whether the discipline that the filter is in was added for it.
    pub(crate) fn added_qdisc(&self, ifindex: u32) -> bool {
        self.mark("qdisc", ifindex).exists()
    }

    pub(crate) fn note_filter(&self, ifindex: u32) -> Result<(), Error> {
        let mark = self.mark("filter", ifindex);
        fs::create_dir_all(&mark).map_err(|error| failed(&mark, "create the directory", error))
    }

    pub(crate) fn note_qdisc(&self, ifindex: u32) -> io::Result<()> {
        fs::create_dir_all(self.mark("qdisc", ifindex))
    }

    pub(crate) fn remove_filter(&self, ifindex: u32) -> Result<(), Error> {
        for mark in ["qdisc", "filter"].map(|kind| self.mark(kind, ifindex)) {
            match fs::remove_dir(&mark) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&mark, "remove", error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Pin of the XDP link on an interface.
    pub(super) fn xdp(&self, ifindex: u32) -> PathBuf {
        self.mark(XDP, ifindex)
    }

    /// The interfaces that XDP links are pinned for.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn xdp_links(&self) -> Result<Vec<u32>, Error> {
        indexes(&self.directory, &[XDP])
    }

    /// Pin of a tracepoint's link; the number distinguishes processes.
    pub(super) fn tracepoint(&self, name: &str, number: u32) -> PathBuf {
        self.directory.join(format!("{TRACEPOINT}{name}-{number}"))
    }

    /// Existing pins of tracepoints' links.
    pub(super) fn tracepoints(&self) -> Result<Vec<PathBuf>, Error> {
        let mut names = self.names()?;
        names.retain(|name| name.starts_with(TRACEPOINT));
        Ok(names.iter().map(|it| self.directory.join(it)).collect())
    }

    fn mark(&self, kind: &str, ifindex: u32) -> PathBuf {
        self.directory.join(format!("{kind}-{ifindex}"))
    }

    /// Removes the maps, whatever else is pinned, and the directory; maps end with their last user.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub(crate) fn remove_rest(&self) -> Result<(), Error> {
        for name in self.names()? {
            let path = self.directory.join(name);
            if path.is_dir() {
                remove_directory(&path)?;
            } else {
                remove_file(&path)?;
            }
        }
        let removed = fs::remove_dir(&self.directory);
        removed.map_err(|error| failed(&self.directory, "remove", error))
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        names_in(&self.directory)
    }
}

/// As [`Pins::links`], for the directory of any instance.
pub(super) fn links_in(directory: &Path) -> Result<Vec<u32>, Error> {
    indexes(directory, &["link", "filter"])
}

/// The interfaces that pins of these kinds are for.
fn indexes(directory: &Path, kinds: &[&str]) -> Result<Vec<u32>, Error> {
    let names = names_in(directory)?;
    let index = |name: &String| {
        let (kind, index) = name.rsplit_once('-')?;
        kinds.contains(&kind).then_some(index)?.parse().ok()
    };
    let indexes: BTreeSet<u32> = names.iter().filter_map(index).collect();
    Ok(indexes.into_iter().collect())
}

fn names_in(directory: &Path) -> Result<Vec<String>, Error> {
    let read = || -> io::Result<Vec<String>> {
        fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    read().map_err(|error| failed(directory, "read", error))
}

fn remove_directory(path: &Path) -> Result<(), Error> {
    remove_files(path).map_err(|error| failed(path, "remove", error))
}

/// Removes a directory and the files in it.
pub(super) fn remove_files(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(path)
}

pub(super) fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path, "remove", error)),
        _ => Ok(()),
    }
}
