//! The hook at XDP: loaded once an interface is to have it, attached where nothing forwards yet, and made to
//! stand aside, or to leave devices out, as the host changes.

use std::collections::BTreeMap;

use bpf::pin::Pins;
use bpf::program::Program;
use bpf::xdp::{self, Xdp};
use compile::hook::Hooks;
use rules::net::Ifindex;

use crate::error::Error;
use crate::kernel::{Kernel, TakeOver};

/// What is told of an interface whose rules forward already.
const LATER: &str = "attaching XDP may stop the card for a moment, and rules forward from here already: at \
                     the next start after a stop of the daemon";

/// Why drivers refuse.
const REFUSED: &str = "the driver runs no XDP, its MTU is above what one buffer holds (`ip link set DEVICE mtu \
                       1500`), or it merges in hardware (`ethtool -K DEVICE lro off`)";

/// What is told of a device that is gone, or shares the lower bits of its index with another.
const CLOSED: &str = "XDP has no place for the output's device";

/// The hook, as far as there is one.
#[derive(Debug, Default)]
pub(super) struct Hook {
    wanted: Hooks,
    xdp: Option<Xdp>,
    /// Why it cannot be had at all.
    missing: Option<String>,
    /// Why it is not at an interface.
    refused: BTreeMap<u32, String>,
}

impl Hook {
    /// Puts the program at interfaces that nothing forwards from yet.
    pub(super) fn attach(&mut self, interfaces: impl Iterator<Item = u32>, pins: &Pins) {
        let Some(xdp) = &mut self.xdp else { return };
        let inputs = &self.wanted.inputs;
        let may_take = |ifindex: &u32| matches!(inputs.get(&Ifindex(*ifindex)), Some(Ok(())));
        for ifindex in interfaces.filter(may_take) {
            if xdp.is_at(ifindex) {
                continue;
            }
            match xdp.attach(ifindex, pins) {
                Ok(()) => drop(self.refused.remove(&ifindex)),
                Err(error) if xdp::is_taken(&error) => {
                    let text = "another XDP program is there".to_owned();
                    self.refused.insert(ifindex, text);
                }
                Err(error) => {
                    let text = format!("{error}; {REFUSED}");
                    self.refused.insert(ifindex, text);
                }
            }
        }
    }

    /// Does what is wanted with what is there.
    fn settle(&mut self, pins: &Pins) -> Result<(), Error> {
        let Some(xdp) = &mut self.xdp else {
            return Ok(());
        };
        let ports = { self.wanted.outputs.iter() }.filter(|(_, verdict)| verdict.is_ok());
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

    /// What was wanted, and why it is not where it is not.
    pub(super) fn standing(&self) -> Hooks {
        let mut standing = self.wanted.clone();
        for (index, verdict) in &mut standing.outputs {
            if verdict.is_ok() && self.xdp.as_ref().is_some_and(|xdp| !xdp.is_open(index.0)) {
                *verdict = Err(CLOSED.to_owned());
            }
        }
        for (index, verdict) in &mut standing.inputs {
            let is_there = self.xdp.as_ref().is_some_and(|xdp| xdp.is_at(index.0));
            if verdict.is_ok() && !is_there {
                let why = self.missing.as_ref().or_else(|| self.refused.get(&index.0));
                *verdict = Err(why.map_or(LATER, String::as_str).into());
            }
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

impl Kernel {
    /// Says what XDP may be used for from now on.
    pub(crate) fn set_hooks(&mut self, wanted: Hooks) -> Result<(), Error> {
        if wanted == self.hook.wanted {
            return Ok(());
        }
        self.hook.wanted = wanted;
        self.settle_hook()
    }

    /// What an earlier process left goes on as it is until the maps hold the rules.
    pub(super) fn settle_hook(&mut self) -> Result<(), Error> {
        let hook = &mut self.hook;
        let is_wanted = hook.wanted.inputs.values().any(Result::is_ok);
        let is_left = !self.pins.xdp_links()?.is_empty();
        if hook.xdp.is_none() && hook.missing.is_none() && (is_wanted || is_left) {
            let there: Vec<u32> = self.links.interfaces().collect();
            hook.load(&self.program, &self.pins, &there);
        }
        match self.take_over {
            TakeOver::Done => hook.settle(&self.pins),
            _ => Ok(()),
        }
    }
}

impl Hook {
    fn load(&mut self, program: &Program, pins: &Pins, there: &[u32]) {
        match Xdp::load(program, pins, there) {
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
    }
}
