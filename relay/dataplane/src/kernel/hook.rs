//! The hook at XDP: loaded once an interface is to have it, attached where nothing forwards yet, and made to
//! pass packets on, or to omit devices, as the host changes.

use std::collections::{BTreeMap, BTreeSet};

use bpf::layout::Word;
use bpf::pin::Pins;
use bpf::program::Program;
use bpf::xdp::{self, Xdp};
use compile::hook::Hooks;
use rules::net::Ifindex;

use crate::error::Error;
use crate::kernel::plan::Wanted;
use crate::kernel::routes::Routes;

/// Reported of an interface whose rules forward already.
const LATER: &str = "attaching XDP may stop the card for a moment, and rules forward from here already: at \
                     the next start after a stop of the daemon";

/// Why drivers refuse.
const REFUSED: &str = "the driver runs no XDP, its MTU is above what one buffer holds (`ip link set DEVICE mtu \
                       1500`), or it merges in hardware (`ethtool -K DEVICE lro off`)";

/// When a failed attachment is tried again.
const AGAIN: &str = "tried again at the next start after a stop of the daemon";

/// Reported of a device that has a program and still takes nothing.
const TAKES_NOTHING: &str = "the driver of the output's device sends nothing that XDP hands over, or has too few \
                             queues (`ethtool -L DEVICE combined N`)";

/// Reported of a device that no longer exists, or shares the lower bits of its index with another.
const CLOSED: &str = "XDP has no place for the output's device";

/// The hook, as far as there is one.
#[derive(Debug, Default)]
pub(super) struct Hook {
    wanted: Hooks,
    xdp: Option<Xdp>,
    /// Why it is not available at all.
    missing: Option<String>,
    /// Why it is not at an interface.
    refused: BTreeMap<u32, String>,
}

impl Hook {
    /// Attaches the program to interfaces that nothing forwards from yet, and to devices that nothing leaves by
    /// yet and that take what is handed over once they have a program.
    pub(super) fn attach(&mut self, interfaces: impl Iterator<Item = u32>, pins: &Pins) {
        let Some(xdp) = &mut self.xdp else { return };
        for ifindex in interfaces {
            let relays = self.wanted.may_take(ifindex);
            let is_end = self.wanted.ends.contains(&Ifindex(ifindex));
            if !relays && !is_end || xdp.is_at(ifindex) {
                continue;
            }
            match xdp.attach(ifindex, relays, pins) {
                Ok(()) => drop(self.refused.remove(&ifindex)),
                Err(error) if xdp::is_taken(&error) => {
                    let text = format!(
                        "another XDP program is there, or at a device upon it, or was when the first rule \
                         came: {AGAIN}"
                    );
                    self.refused.insert(ifindex, text);
                }
                Err(error) => {
                    let text = format!("{error}; {REFUSED}: {AGAIN}");
                    self.refused.insert(ifindex, text);
                }
            }
        }
    }

    /// Applies what is wanted to the attached programs.
    pub(super) fn settle(&mut self, pins: &Pins) -> Result<(), Error> {
        let Some(xdp) = &mut self.xdp else {
            return Ok(());
        };
        let ports = self
            .wanted
            .outputs
            .iter()
            .filter(|(_, verdict)| verdict.is_ok());
        xdp.open_ports(&ports.map(|(index, _)| index.0).collect())?;
        for ifindex in xdp.attached().collect::<Vec<_>>() {
            let wanted = self.wanted.inputs.get(&Ifindex(ifindex));
            match wanted {
                Some(verdict) if xdp.is_at(ifindex) => {
                    if xdp.relays(ifindex) != verdict.is_ok() {
                        xdp.set_relaying(ifindex, verdict.is_ok())?;
                    }
                }
                _ => xdp.detach(ifindex, pins)?,
            }
        }
        Ok(xdp.end_others(pins)?)
    }

    /// What was wanted, with the reason wherever it is not in effect.
    pub(super) fn standing(&self) -> Hooks {
        let mut standing = self.wanted.clone();
        for (index, verdict) in &mut standing.outputs {
            if verdict.is_ok() && self.xdp.as_ref().is_some_and(|xdp| !xdp.is_open(index.0)) {
                *verdict = Err(CLOSED.to_owned());
            }
        }
        let is_attached = |index: Ifindex| self.xdp.as_ref().is_some_and(|xdp| xdp.is_at(index.0));
        let reason_at = |index: Ifindex| {
            let reason = self.missing.as_ref().or_else(|| self.refused.get(&index.0));
            reason.map_or(LATER, String::as_str)
        };
        for (index, verdict) in &mut standing.inputs {
            if verdict.is_ok() && !is_attached(*index) {
                *verdict = Err(reason_at(*index).into());
            }
        }
        for index in &standing.ends {
            let reason = if is_attached(*index) {
                TAKES_NOTHING
            } else {
                reason_at(*index)
            };
            standing.outputs.insert(*index, Err(reason.to_owned()));
        }
        standing
    }

    /// How many packets of each interface were handed over.
    pub(super) fn taken(&self) -> BTreeMap<Ifindex, u64> {
        let Some(xdp) = &self.xdp else {
            return BTreeMap::new();
        };
        let inputs = self.wanted.inputs.keys();
        inputs
            .filter_map(|index| Some((*index, xdp.taken(index.0)?)))
            .collect()
    }

    #[cfg(feature = "test-run")]
    pub(super) fn xdp(&self) -> Result<&Xdp, Error> {
        let reason = || {
            self.missing
                .clone()
                .unwrap_or_else(|| "not loaded".to_owned())
        };
        let missing = || Error::NoKernelPath { reason: reason() };
        self.xdp.as_ref().ok_or_else(missing)
    }
}

impl Hook {
    /// Notes what XDP may be used for from now on; `false` if that changes nothing.
    pub(super) fn want(&mut self, wanted: Hooks) -> bool {
        // What is attached is checked each time: the kernel removes devices that leave their namespace.
        let changes = wanted != self.wanted || self.xdp.is_some();
        self.wanted = wanted;
        changes
    }

    /// Loads the program once it is wanted or an earlier process left one, for `interfaces` and those that
    /// are wanted.
    pub(super) fn load(
        &mut self,
        program: &Program,
        pins: &Pins,
        interfaces: impl Iterator<Item = u32>,
    ) -> Result<(), Error> {
        if self.xdp.is_some() || self.missing.is_some() {
            return Ok(());
        }
        let is_wanted = self.wanted.inputs.values().any(Result::is_ok);
        if !is_wanted && pins.xdp_links()?.is_empty() {
            return Ok(());
        }
        let wanted = self.wanted.inputs.keys().map(|index| index.0);
        let interfaces: Vec<u32> = interfaces.chain(wanted).collect();
        match Xdp::load(program, pins, &interfaces) {
            Ok(xdp) => self.xdp = Some(xdp),
            Err(error) => {
                tracing::info!(%error, "XDP cannot be used");
                self.missing = Some(error.to_string());
                // Nobody would count what it takes.
                if let Err(error) = xdp::remove_all(pins) {
                    tracing::warn!(%error, "XDP programs of an earlier run stay");
                }
            }
        }
        Ok(())
    }

    /// Devices that new routes hand packets over to at XDP, and that nothing leaves by yet.
    pub(super) fn new_ends(&self, wanted: &[Wanted<'_>], routes: &Routes) -> BTreeSet<u32> {
        let new = wanted
            .iter()
            .filter(|route| self.wanted.may_take(route.key.ifindex()));
        let outputs = new.flat_map(|route| route.outputs.iter().map(|(_, output)| output.ifindex));
        let mut ends: BTreeSet<u32> = outputs
            .filter(|ifindex| self.wanted.ends.contains(&Ifindex(*ifindex)))
            .collect();
        if ends.is_empty() {
            return ends;
        }
        let entries = routes.entries.values();
        for entry in entries.filter(|entry| !entry.placeholder) {
            let Word { first, count, .. } = entry.word;
            for slot in first..first + u32::from(count) {
                ends.remove(&routes.outputs.read(slot).ifindex);
            }
        }
        ends
    }
}
