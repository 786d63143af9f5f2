//! Keeps the program attached at the ingress of every interface that a route needs, and of no other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bpf::link::{Hook, Link};
use bpf::pin::Pins;
use bpf::program::Program;

use crate::error::Error;

/// Interval at which the links are compared with what the kernel has on each interface; in between they
/// are only checked to be alive.
const THOROUGH: Duration = Duration::from_millis(950);

/// Links by interface index; `None` where the interface did not exist when it was wanted.
#[derive(Debug)]
pub(super) struct Links {
    hook: Hook,
    attached: BTreeMap<u32, Option<Link>>,
    /// When they were last compared.
    compared: Instant,
}

impl Links {
    /// Takes over pinned links; they keep running their current program.
    pub(super) fn adopt(pins: &Pins, hook: Hook) -> Result<Self, Error> {
        let mut attached = BTreeMap::new();
        for ifindex in pins.links()? {
            if let Some(link) = Link::adopt(ifindex, pins)? {
                attached.insert(ifindex, Some(link));
            }
        }
        Ok(Self {
            hook,
            attached,
            compared: Instant::now(),
        })
    }

    #[cfg(feature = "rehearsal")]
    pub(super) const fn hook(&self) -> Hook {
        self.hook
    }

    /// The interfaces to be attached to.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = u32> {
        self.attached.keys().copied()
    }

    /// Returns whether the program is attached to an interface.
    pub(super) fn has(&self, ifindex: u32) -> bool {
        let link = self.attached.get(&ifindex).and_then(Option::as_ref);
        link.is_some_and(|link| link.is_at(ifindex))
    }

    /// Replaces the program of each link by `program`.
    pub(super) fn replace(&self, program: &Program) -> Result<(), Error> {
        for link in self.attached.values().flatten() {
            // A link whose interface was removed meanwhile is attached anew by the next repair.
            if link.ifindex() != 0 {
                link.replace(program)?;
            }
        }
        Ok(())
    }

    /// Attaches to the `wanted` interfaces where nothing is attached yet. One that does not exist is left to
    /// [`Links::repair`].
    pub(super) fn attach(
        &mut self,
        wanted: impl Iterator<Item = u32>,
        pins: &Pins,
        program: &Program,
    ) -> Result<(), Error> {
        for ifindex in wanted {
            if self.has(ifindex) {
                continue;
            }
            let link = attach(ifindex, self.hook, pins, program)?;
            self.attached.insert(ifindex, link);
        }
        Ok(())
    }

    /// Detaches from interfaces that are not in `wanted`.
    pub(super) fn detach_others<V>(
        &mut self,
        wanted: &BTreeMap<u32, V>,
        pins: &Pins,
    ) -> Result<(), Error> {
        let others: Vec<u32> = self
            .attached
            .keys()
            .filter(|ifindex| !wanted.contains_key(ifindex))
            .copied()
            .collect();
        for ifindex in others {
            Link::remove(ifindex, pins)?;
            self.attached.remove(&ifindex);
        }
        Ok(())
    }

    /// Attaches again where an interface was removed and another was added with the same index.
    pub(super) fn repair(&mut self, pins: &Pins, program: &Program) -> Result<(), Error> {
        let is_thorough = self.compared.elapsed() >= THOROUGH;
        if is_thorough {
            self.compared = Instant::now();
        }
        for (ifindex, link) in &mut self.attached {
            let is_attached = link.as_ref().is_some_and(|link| {
                if is_thorough {
                    link.is_at(*ifindex)
                } else {
                    link.ifindex() == *ifindex
                }
            });
            if !is_attached {
                *link = attach(*ifindex, self.hook, pins, program)?;
            }
        }
        Ok(())
    }
}

fn attach(ifindex: u32, hook: Hook, pins: &Pins, program: &Program) -> Result<Option<Link>, Error> {
    Link::remove(ifindex, pins)?;
    match Link::attach(program, ifindex, hook, pins) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.is_no_such_interface() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
