//! The kernel path's second hook, at XDP: the program at interfaces whose drivers run it, the devices that
//! its copies may leave by, and the tracepoints that count what those took.
//!
//! Once attached it stays until the daemon stops for good, because many drivers rebuild their rings when the
//! first program is added and when the last is removed; where it must not relay, one that passes everything
//! on replaces it. Links are pinned beside those at tc. The maps are not: the next process makes new ones and
//! replaces this program by its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use super::pin::{Pins, remove_file};
use super::pin_lock::failed;
use super::program::{PASS, Program, RELAY};
use crate::map::HashMap;
use crate::maps::Maps;
use crate::object::{Object, cpus};
use crate::{Error, syscall};

pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/hook.bpf.o"));

/// The tracepoints, which the programs there are named after.
pub(super) const TRACEPOINTS: [&str; 2] = ["xdp_devmap_xmit", "xdp_redirect_err"];
/// Bytes of `struct handed` in hook.bpf.c, and how many there are.
const HANDED: usize = 8 + 17 * 8;
const ENTRIES: u32 = 1024;

/// The hook's programs, loaded, and their attachments.
#[derive(Debug)]
pub struct Xdp {
    relay: OwnedFd,
    pass: OwnedFd,
    /// The pins of what counts.
    tracepoints: Vec<PathBuf>,
    ports: HashMap<u32, u64>,
    handed: OwnedFd,
    taken: OwnedFd,
    cpus: usize,
    open: BTreeSet<u32>,
    attached: BTreeMap<u32, Attached>,
}

/// An interface that has a program.
#[derive(Debug)]
struct Attached {
    link: OwnedFd,
    relays: bool,
}

impl Xdp {
    /// Loads the programs on the maps of `program`, which have to be pinned, and takes over the links that an
    /// earlier process left at `interfaces`; they keep running their programs. Links elsewhere are removed.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] and [`Error::Refused`] where this kernel does not have all that it takes.
    pub fn load(program: &Program, pins: &Pins, interfaces: &[u32]) -> Result<Self, Error> {
        let cpus = cpus()?;
        let maps = program.pins.as_deref();
        let mut object = Object::make(OBJECT, &Maps::sizes(program.capacity, cpus), maps)?;
        let mut load = |name| {
            object.verify(name)?;
            object.program(name)
        };
        let (relay, pass) = (load(RELAY)?, load(PASS)?);
        let counting = TRACEPOINTS.map(|name| Ok((name, load(name)?)));
        let ports = object.map::<u32, u64>("ports")?;
        let number = syscall::map_info(ports.as_fd()).map_err(Error::Hook)?.id;
        let id = object.map::<u32, u32>("ports_id")?;
        let value = number.to_ne_bytes().to_vec();
        syscall::set_value(id.as_fd(), 0, value).map_err(Error::Hook)?;
        let mut xdp = Self {
            relay,
            pass,
            tracepoints: Vec::new(),
            ports: HashMap::new("ports", ports, 1024),
            handed: object.map::<u32, [u8; HANDED]>("handed")?,
            taken: object.map::<u32, u64>("taken")?,
            cpus,
            open: BTreeSet::new(),
            attached: BTreeMap::new(),
        };
        for counts in counting {
            let (name, program) = counts?;
            let link = syscall::create_tracepoint_link(program.as_fd()).map_err(Error::Hook)?;
            let path = pins.tracepoint(name, number);
            syscall::pin(link.as_fd(), &path)
                .map_err(|error| failed(&path, "pin a link", error))?;
            xdp.tracepoints.push(path);
        }
        xdp.adopt(pins, interfaces)?;
        Ok(xdp)
    }

    /// Ends the tracepoints of earlier processes' programs, none of which is attached any more.
    ///
    /// # Errors
    ///
    /// When a pin stays.
    pub fn end_others(&self, pins: &Pins) -> Result<(), Error> {
        let all = pins.tracepoints()?.into_iter();
        all.filter(|path| !self.tracepoints.contains(path))
            .try_for_each(|path| remove_file(&path))
    }

    fn adopt(&mut self, pins: &Pins, interfaces: &[u32]) -> Result<(), Error> {
        for ifindex in pins.xdp_links()? {
            match syscall::open_pin(&pins.xdp(ifindex)) {
                Ok(link) if interfaces.contains(&ifindex) && is_at(&link, ifindex) => {
                    self.count_from(ifindex)?;
                    let relays = false;
                    self.attached.insert(ifindex, Attached { link, relays });
                }
                _ => remove_file(&pins.xdp(ifindex))?,
            }
        }
        Ok(())
    }

    fn count_from(&self, ifindex: u32) -> Result<(), Error> {
        let zeros = vec![0; 8 * self.cpus];
        syscall::set_value(self.taken.as_fd(), ifindex, zeros).map_err(Error::Hook)
    }

    /// Returns whether a program is at the interface.
    pub fn is_at(&self, ifindex: u32) -> bool {
        let attached = self.attached.get(&ifindex);
        attached.is_some_and(|attached| is_at(&attached.link, ifindex))
    }

    /// Attaches the program, or one that passes everything on, to an interface of the calling thread's network
    /// namespace.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn attach(&mut self, ifindex: u32, relays: bool, pins: &Pins) -> Result<(), Error> {
        self.count_from(ifindex)?;
        let path = pins.xdp(ifindex);
        remove_file(&path)?;
        let program = if relays { &self.relay } else { &self.pass };
        let link = attach_while_held(program.as_fd(), ifindex)?;
        syscall::pin(link.as_fd(), &path).map_err(|error| failed(&path, "pin a link", error))?;
        self.attached.insert(ifindex, Attached { link, relays });
        Ok(())
    }

    /// Makes the program at an interface relay, or pass everything on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_relaying(&mut self, ifindex: u32, relays: bool) -> Result<(), Error> {
        let program = if relays { &self.relay } else { &self.pass };
        let Some(attached) = self.attached.get_mut(&ifindex) else {
            return Ok(());
        };
        let replaced = syscall::update_link(attached.link.as_fd(), program.as_fd());
        replaced.map_err(|error| Error::Attach { ifindex, error })?;
        attached.relays = relays;
        Ok(())
    }

    /// Returns whether the program at an interface relays.
    pub fn relays(&self, ifindex: u32) -> bool {
        let attached = self.attached.get(&ifindex);
        attached.is_some_and(|attached| attached.relays)
    }

    /// Detaches the program from an interface.
    ///
    /// # Errors
    ///
    /// When the pin stays.
    pub fn detach(&mut self, ifindex: u32, pins: &Pins) -> Result<(), Error> {
        self.attached.remove(&ifindex);
        remove_file(&pins.xdp(ifindex))
    }

    /// The interfaces that a program is or was attached to.
    pub fn attached(&self) -> impl Iterator<Item = u32> {
        self.attached.keys().copied()
    }

    /// Lets copies leave by these devices and by no others; skips those that no longer exist, and those whose
    /// entry belongs to another. The kernel removes devices that leave their namespace, and they may return.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open_ports(&mut self, wanted: &BTreeSet<u32>) -> Result<(), Error> {
        let others: Vec<u32> = self.open.difference(wanted).copied().collect();
        self.ports.remove(&others)?;
        let ports = &self.ports;
        let is_present = |ifindex: &u32| matches!(ports.get(*ifindex), Ok(Some(_)));
        self.open
            .retain(|ifindex| wanted.contains(ifindex) && is_present(ifindex));
        for ifindex in wanted.difference(&self.open.clone()) {
            let entry = ifindex % ENTRIES;
            if self.open.iter().any(|other| other % ENTRIES == entry) {
                continue;
            }
            let mut handed = [0; HANDED];
            handed[..4].copy_from_slice(&ifindex.to_ne_bytes());
            let value = handed.repeat(self.cpus);
            syscall::set_value(self.handed.as_fd(), entry, value).map_err(Error::Hook)?;
            // Without a program.
            let value = [ifindex.to_ne_bytes(), [0; 4]].concat();
            match syscall::set_value(self.ports.as_fd(), *ifindex, value) {
                Ok(()) => self.open.insert(*ifindex),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => false,
                Err(error) => return Err(Error::Hook(error)),
            };
        }
        Ok(())
    }

    /// Returns whether copies may leave by a device.
    pub fn is_open(&self, ifindex: u32) -> bool {
        self.open.contains(&ifindex)
    }

    /// How many packets of an interface were handed to devices; `None` for one that never had the program.
    pub fn taken(&self, ifindex: u32) -> Option<u64> {
        let bytes = syscall::value(self.taken.as_fd(), ifindex, 8 * self.cpus).ok()?;
        let of_cpus = bytes.as_chunks::<8>().0.iter();
        Some(of_cpus.map(|count| u64::from_ne_bytes(*count)).sum())
    }

    #[cfg(feature = "test-support")]
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.relay.as_fd()
    }
}

/// Attaches a program natively to an interface of the calling thread's network namespace, for as long as the
/// returned link is held.
///
/// # Errors
///
/// The driver's.
pub fn attach_while_held(program: BorrowedFd<'_>, ifindex: u32) -> Result<OwnedFd, Error> {
    let link = syscall::create_xdp_link(program, ifindex);
    link.map_err(|error| Error::Attach { ifindex, error })
}

/// Removes what an earlier process left.
///
/// # Errors
///
/// When a pin stays.
pub fn remove_all(pins: &Pins) -> Result<(), Error> {
    let pin = |ifindex| pins.xdp(ifindex);
    let links = pins.xdp_links()?.into_iter().map(pin);
    links
        .chain(pins.tracepoints()?)
        .try_for_each(|path| remove_file(&path))
}

fn is_at(link: &OwnedFd, ifindex: u32) -> bool {
    syscall::link(link.as_fd()).is_ok_and(|link| link.ifindex == ifindex)
}

/// Returns whether attaching failed because another program is there; with generic XDP, or at an upper device,
/// the error is EEXIST (`dev_xdp_attach`).
pub fn is_taken(error: &Error) -> bool {
    let taken = [io::ErrorKind::ResourceBusy, io::ErrorKind::AlreadyExists];
    matches!(error, Error::Attach { error, .. } if taken.contains(&error.kind()))
}
