//! Cleans up after an earlier daemon of an instance: forwarding programs, sockets and workers that a
//! keeper holds, running rules. A start removes what it cannot adopt, [`end`] removes all of it.

use config::Automatic;
use host::offload::Offload;
use host::tunnels;
use nix::net::if_::if_nameindex;

use crate::dataplane_thread;
use crate::demand;
use crate::descriptor_store;
use crate::error::DaemonError;
use crate::instance::Instance;
use crate::options::Options;
use crate::state::running::RunningStore;

/// Removes everything that an ended daemon left, and reports each part in one sentence.
///
/// # Errors
/// When a daemon runs the instance, or something cannot be removed.
pub fn end(options: &Options) -> Result<Vec<String>, DaemonError> {
    let instance = Instance::claim(options)?;
    let directory = instance.directory();
    let links = links();
    let indexes: Vec<u32> = links.iter().map(|(index, _)| *index).collect();
    let detached = dataplane::cleanup::end(&options.bpffs, instance.name(), &indexes)
        .map_err(dataplane_thread::Error::from)?;
    let mut report: Vec<String> = detached
        .into_iter()
        .map(|index| format!("the program at {} is detached", name(&links, index)))
        .collect();
    let held = descriptor_store::cleanup(directory).map_err(|source| DaemonError::File {
        path: directory.to_owned(),
        operation: "end the keeper",
        source,
    })?;
    report.extend(
        held.map(|held| format!("the keeper is ended, and {held} descriptors that it held")),
    );
    for name in tunnels::end_left(instance.name()) {
        report.push(format!("tunnel {name} is taken away"));
    }
    Offload::open(directory, false, Automatic::Off).close();
    demand::cleanup(directory);
    let mut running = RunningStore::new(directory);
    if let Some(last) = running.load() {
        let rules = last.rules.len();
        report.push(format!("{rules} running rules are forgotten"));
    }
    running.remove();
    Ok(report)
}

/// Detaches programs that forward here and are pinned nowhere: they would relay beside this daemon
/// unnoticed. To be called while the process has all its capabilities.
pub(crate) fn end_strays(options: &Options) -> Result<(), DaemonError> {
    let links = links();
    let indexes: Vec<u32> = links.iter().map(|(index, _)| *index).collect();
    let (ended, running) = dataplane::cleanup::end_strays(&options.bpffs, &indexes)
        .map_err(dataplane_thread::Error::from)?;
    for index in ended {
        tracing::warn!(
            "a program that an earlier daemon left at {}, pinned nowhere here, is taken away",
            name(&links, index)
        );
    }
    for index in running {
        tracing::warn!(
            "a daemon with pins of its own, perhaps in a container, relays from {} too: it takes \
             packets from this one, or they leave twice",
            name(&links, index)
        );
    }
    Ok(())
}

/// The interfaces of this network namespace.
fn links() -> Vec<(u32, String)> {
    let Ok(links) = if_nameindex() else {
        return Vec::new();
    };
    links
        .iter()
        .map(|link| (link.index(), link.name().to_string_lossy().into_owned()))
        .collect()
}

fn name(links: &[(u32, String)], index: u32) -> String {
    let link = links.iter().find(|(own, _)| *own == index);
    link.map_or_else(|| format!("interface {index}"), |(_, name)| name.clone())
}
