//! Interfaces that merge packets before they are relayed (`rx-udp-gro-forwarding`): switched on where
//! the configuration asks for it, and back at the end. What was on before is left alone.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use model::config::{Gro, InterfaceSettings};
use model::host::Host;
use model::net::Ifindex;
use model::table::{self, Egress, OutputState, Route, Table};

/// Merging of received datagrams that are not for a local socket.
const MERGE: &str = "rx-udp-gro-forwarding";

/// Segmentation of what was merged, by the device.
const SEGMENT: &str = "tx-udp-segmentation";

/// Interfaces that this daemon switched.
#[derive(Debug)]
pub(crate) struct Offload {
    record: PathBuf,
    switched: BTreeSet<String>,
}

impl Offload {
    /// Takes over what an earlier run that crashed had switched.
    pub(crate) fn open(directory: &Path) -> Self {
        let record = directory.join("offload.json");
        let text = fs::read(&record).unwrap_or_default();
        Self {
            switched: serde_json::from_slice(&text).unwrap_or_default(),
            record,
        }
    }

    /// Switches on what is wanted, and back what is not wanted any more.
    pub(crate) fn settle(&mut self, wanted: &BTreeSet<String>) {
        let before = self.switched.clone();
        for interface in wanted {
            // What is on and not ours is the operator's; what is ours may be another device now.
            if !is_active(interface, MERGE) && switch(interface, true) {
                self.switched.insert(interface.clone());
            }
        }
        for interface in before.difference(wanted) {
            switch(interface, false);
            self.switched.remove(interface);
        }
        if before != self.switched {
            self.save();
        }
    }

    /// Switches everything back.
    pub(crate) fn close(mut self) {
        self.settle(&BTreeSet::new());
        let _ = fs::remove_file(&self.record);
    }

    fn save(&self) {
        let text = serde_json::to_vec(&self.switched).unwrap_or_default();
        if let Err(error) = fs::write(&self.record, text) {
            tracing::warn!(%error, "cannot write down which interfaces were switched");
        }
    }
}

/// The interfaces that should merge: `on` whatever follows, `auto` where all that is relayed from
/// there gains by it.
pub(crate) fn wanted(
    settings: &BTreeMap<String, InterfaceSettings>,
    host: &Host,
    table: &Table,
) -> BTreeSet<String> {
    let segments = |index| {
        let link = host.interfaces.get(&index);
        link.is_some_and(|link| is_active(&link.name, SEGMENT))
    };
    let asked = settings
        .iter()
        .filter(|(_, settings)| settings.gro != Gro::Off);
    let present = asked.filter_map(|(name, settings)| Some((host.by_name(name)?, settings.gro)));
    present
        .filter(|(link, gro)| *gro == Gro::On || all_gain(link.index, table, segments))
        .map(|(link, _)| link.name.clone())
        .collect()
}

/// On the kernel path merging gains where the device of every output segments. A worker sends
/// packets of a flow merged anyhow, so on the userspace path it gains always, unless a limit or
/// `fragment` judges packets one by one.
fn all_gain(ingress: Ifindex, table: &Table, segments: impl Fn(Ifindex) -> bool) -> bool {
    let routes = table.routes.iter();
    let mut routes = routes
        .filter(|(key, _)| key.ingress == ingress)
        .map(|(_, route)| route)
        .filter(|route| egresses(route).next().is_some())
        .peekable();
    let gains = |route: &Route| match route.path {
        table::Path::Kernel => egresses(route).all(|egress| segments(egress.interface)),
        table::Path::Userspace => {
            let limits = route.outputs.iter().map(|output| &output.limit);
            let limited = limits.chain([&route.limit]).any(Option::is_some);
            !limited && egresses(route).all(|egress| !egress.fragment)
        }
    };
    routes.peek().is_some() && routes.all(gains)
}

/// Where the outputs that are up send.
fn egresses(route: &Route) -> impl Iterator<Item = &Egress> {
    let states = route.outputs.iter().map(|output| &output.state);
    states.filter_map(|state| match state {
        OutputState::Up(egress) => Some(egress),
        OutputState::Down(_) => None,
    })
}

fn is_active(interface: &str, feature: &str) -> bool {
    let features = sys::ethtool::features(interface).unwrap_or_default();
    features
        .iter()
        .any(|have| have.name == feature && have.active)
}

fn switch(interface: &str, on: bool) -> bool {
    match sys::ethtool::switch(interface, MERGE, on) {
        Ok(()) => {
            let word = if on { "on" } else { "off" };
            tracing::info!(interface, "switched {MERGE} {word}");
            true
        }
        Err(error) => {
            tracing::warn!(interface, %error, "cannot switch {MERGE}");
            false
        }
    }
}
