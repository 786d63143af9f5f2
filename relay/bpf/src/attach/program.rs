//! Loads the embedded object: the program and its maps, fresh or from pins.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::sign::Sign;
use super::{interface, verified};
use crate::Error;
use crate::layout::Word;
use crate::maps::{Capacity, Maps};
use crate::object::{Object, cpus};

/// The compiled program, an ELF file.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/relay.bpf.o"));

/// The programs of the object: for interfaces with an Ethernet header, and for those without.
pub(super) const NAMES: [&str; 2] = ["relay", "relay_bare"];

/// The program, loaded, with its maps.
#[derive(Debug)]
pub struct Program {
    ethernet: OwnedFd,
    bare: OwnedFd,
    /// Its maps.
    pub maps: Maps,
    /// That somebody looks after it, where it is pinned.
    _sign: Option<Sign>,
}

impl Program {
    /// Loads the object. With `pins`, maps pinned in that directory are taken as they are, others
    /// are made with `capacity` and pinned there; programs that were verified with these maps are
    /// taken as well.
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
        let [ethernet, bare] = match pins.and_then(verified::find) {
            Some(programs) => programs,
            None => verify(&mut object, pins)?,
        };
        let maps = Maps::take(&mut object)?;
        let sign = pins.map(Sign::show).transpose();
        let sign = sign.inspect_err(|error| {
            tracing::warn!(%error, "daemons of other containers may take this one's programs for left");
        });
        Ok(Self {
            ethernet,
            bare,
            maps,
            _sign: sign.ok().flatten(),
        })
    }

    /// The variant for an interface.
    pub(crate) fn variant(&self, ifindex: u32) -> BorrowedFd<'_> {
        if interface::has_link_header(ifindex) {
            self.ethernet.as_fd()
        } else {
            self.bare.as_fd()
        }
    }

    #[cfg(feature = "test-support")]
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ethernet.as_fd()
    }
}

/// Has the programs verified, and keeps them for the next process.
fn verify(object: &mut Object, pins: Option<&Path>) -> Result<[OwnedFd; NAMES.len()], Error> {
    object.verify()?;
    let [ethernet, bare] = NAMES.map(|name| object.program(name));
    let programs = [ethernet?, bare?];
    if let Some(maps) = pins
        && let Err(error) = verified::keep(maps, &programs)
    {
        tracing::debug!(%error, "the next start has its programs verified");
    }
    Ok(programs)
}
