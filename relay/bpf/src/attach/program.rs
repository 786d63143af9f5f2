//! Loads the embedded object: the program and its maps, fresh or from pins.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::sign::Sign;
use super::{device, program_cache};
use crate::Error;
use crate::layout::Word;
use crate::maps::{Capacity, Maps};
use crate::object::{Object, cpus};

/// The compiled program, an ELF file.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/relay.bpf.o"));

/// The program of the object for interfaces with an Ethernet header.
const ETHERNET: &str = "relay";
/// The program for interfaces without one.
const BARE: &str = "relay_bare";
/// The program that relays at XDP.
pub(super) const RELAY: &str = "relay_xdp";
/// The program at XDP that passes everything on.
pub(super) const PASS: &str = "pass_xdp";
/// The names of all programs.
pub(super) const NAMES: [&str; 4] = [ETHERNET, BARE, RELAY, PASS];

/// The program, loaded, with its maps.
#[derive(Debug)]
pub struct Program {
    ethernet: OwnedFd,
    /// Verified when the first interface needs it: that takes some tenths of a second, and few hosts need it.
    bare: OnceCell<OwnedFd>,
    pub(super) capacity: Capacity,
    pub(super) pins: Option<PathBuf>,
    /// Its maps.
    pub maps: Maps,
    /// The sign that it is managed, where it is pinned.
    _sign: Option<Sign>,
}

impl Program {
    /// Loads the object. With `pins`, maps pinned in that directory are taken as they are, others
    /// are made with `capacity` and pinned there; programs verified with these maps are taken as well.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] with the verifier's last words; [`Error::Map`] if a pinned map has another
    /// shape.
    pub fn load(pins: Option<&Path>, capacity: Capacity) -> Result<Self, Error> {
        let counters = capacity.counters();
        if counters > Word::COUNTER_LIMIT {
            return Err(Error::Load(format!(
                "{counters} counters asked for, {} are possible",
                Word::COUNTER_LIMIT
            )));
        }
        let mut object = Object::make(OBJECT, &Maps::sizes(capacity, cpus()?), pins)?;
        let ethernet = verify(&mut object, pins, ETHERNET)?;
        let bare = OnceCell::new();
        if pins.is_none() {
            // Its maps cannot be opened again.
            let _ = bare.set(verify(&mut object, None, BARE)?);
        }
        let maps = Maps::take(&mut object)?;
        let shown = pins.map(Sign::show).transpose();
        let sign = shown.inspect_err(|error| {
            tracing::warn!(%error, "daemons of other containers may take this one's programs for left");
        });
        Ok(Self {
            ethernet,
            bare,
            capacity,
            pins: pins.map(Path::to_owned),
            maps,
            _sign: sign.ok().flatten(),
        })
    }

    /// The variant for an interface.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the verifier's last words, where no interface needed it before.
    pub(crate) fn variant(&self, ifindex: u32) -> Result<BorrowedFd<'_>, Error> {
        if device::is_ethernet(ifindex) {
            Ok(self.ethernet.as_fd())
        } else {
            self.bare()
        }
    }

    fn bare(&self) -> Result<BorrowedFd<'_>, Error> {
        if let Some(verified) = self.bare.get() {
            return Ok(verified.as_fd());
        }
        let pins = self.pins.as_deref();
        let mut object = Object::make(OBJECT, &Maps::sizes(self.capacity, cpus()?), pins)?;
        let verified = verify(&mut object, pins, BARE)?;
        Ok(self.bare.get_or_init(|| verified).as_fd())
    }

    #[cfg(feature = "test-support")]
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ethernet.as_fd()
    }
}

/// Takes the program of that name from an earlier process, or verifies it and pins it for the next.
fn verify(object: &mut Object, pins: Option<&Path>, name: &str) -> Result<OwnedFd, Error> {
    if let Some(verified) = pins.and_then(|maps| program_cache::find(maps, name)) {
        return Ok(verified);
    }
    object.verify(name)?;
    let program = object.program(name)?;
    if let Some(maps) = pins
        && let Err(error) = program_cache::keep(maps, name, &program)
    {
        tracing::debug!(%error, "the next start has its program verified");
    }
    Ok(program)
}
