//! Which routes pass by which gate.
//!
//! A route's gate and what it leads to are two words, and no packet may see a rule's outputs with any
//! gate but the rule's own. So a route that is swung to a rule of a share shuts first, or takes that
//! share's gate at once where it had none, and gets the gate that it is to have when no packet sees the
//! former outputs any more.

use model::table::Path;

use crate::error::Error;
use crate::gates::{self, SHARES};
use crate::kernel::Kernel;
use crate::kernel::key::Key;
use crate::kernel::plan::Wanted;
use crate::kernel::transaction::Written;

impl Kernel {
    /// Says whether a route's gate is that of the share.
    pub(super) fn is_gated_as(&self, wanted: &Wanted, gate: u16) -> bool {
        match &wanted.share {
            None => gate == gates::NONE,
            Some(share) => self.gates.find(Path::Kernel, share) == Some(gate),
        }
    }

    /// A gate that a route was found with; nothing passes by one that is nobody's.
    pub(super) fn adopted_gate(&self, gate: u16) -> u16 {
        match gate == gates::NONE || self.gates.is_owned(Path::Kernel, gate) {
            true => gate,
            false => gates::SHUT,
        }
    }

    /// Makes sure that all shares have a gate, and waits for some that were given back if it must.
    pub(super) fn take_gates(&mut self, wanted: &[Wanted]) -> Result<(), Error> {
        for share in wanted.iter().filter_map(|route| route.share.as_deref()) {
            if self.gates.acquire(Path::Kernel, share).is_some() {
                continue;
            }
            self.wait()?;
            if self.gates.acquire(Path::Kernel, share).is_none() {
                return Err(Error::GateRoom {
                    share: share.to_owned(),
                    limit: SHARES,
                });
            }
        }
        Ok(())
    }

    /// The gate that a route is to have, once its share has one.
    pub(super) fn gate_of(&self, wanted: &Wanted) -> u16 {
        wanted.share.as_ref().map_or(gates::NONE, |share| {
            let gate = self.gates.find(Path::Kernel, share);
            gate.unwrap_or(gates::SHUT)
        })
    }

    /// Gives routes that are about to be swung to rules of other shares gates by which none of those
    /// rules' packets pass too early.
    pub(super) fn shut_gates(&mut self, swung: &[Written]) -> Result<(), Error> {
        let mut is_any = false;
        for route in swung {
            let gate = match self.entries.get(&route.key).map(|entry| entry.gate) {
                Some(before) if before == route.gate => continue,
                _ if route.gate == gates::NONE => continue,
                Some(gates::NONE) => route.gate,
                _ => gates::SHUT,
            };
            self.set_gate(route.key, gate);
            is_any = true;
        }
        if is_any {
            self.wait()?;
        }
        Ok(())
    }

    /// Gives routes that were swung their own gates, and takes away those of keys that have only a
    /// placeholder left; then gives back the gates that no route has any more.
    pub(super) fn exchange_gates(
        &mut self,
        swung: &[Written],
        removed: &[Key],
    ) -> Result<(), Error> {
        let removed = removed.iter().map(|key| (*key, gates::NONE));
        let wanted = swung.iter().map(|route| (route.key, route.gate));
        let differs = |(key, gate): &(Key, u16)| {
            let entry = self.entries.get(key);
            entry.is_some_and(|entry| entry.gate != *gate)
        };
        let of_placeholders = removed.filter(|(key, _)| {
            let entry = self.entries.get(key);
            entry.is_some_and(|entry| entry.placeholder)
        });
        let changed: Vec<(Key, u16)> = wanted.chain(of_placeholders).filter(differs).collect();
        if !changed.is_empty() {
            self.wait()?;
        }
        for (key, gate) in changed {
            self.set_gate(key, gate);
        }
        let used = self.entries.values().map(|entry| entry.gate);
        self.gates.release_others(Path::Kernel, used);
        Ok(())
    }

    fn set_gate(&mut self, key: Key, gate: u16) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.gate = gate;
            self.flag(key);
        }
    }
}
