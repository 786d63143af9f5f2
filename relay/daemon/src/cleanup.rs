//! What an earlier daemon of an instance left: programs that forward, sockets and workers that a
//! keeper holds, running rules. A start finds what it cannot adopt, [`end`] ends all of it.

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

/// Ends what a daemon left that nobody runs any more, and says what that was, one sentence each.
///
/// # Errors
/// When somebody runs the instance, or something cannot be ended.
pub fn end(options: &Options) -> Result<Vec<String>, DaemonError> {
    let instance = Instance::claim(options)?;
    let directory = instance.directory();
    let links = links();
    let indexes: Vec<u32> = links.iter().map(|(index, _)| *index).collect();
    let ended = dataplane::cleanup::end(&options.bpffs, instance.name(), &indexes);
    let ended = ended.map_err(dataplane_thread::Error::from)?;
    let mut told: Vec<String> = ended
        .into_iter()
        .map(|index| format!("the program at {} is detached", name(&links, index)))
        .collect();
    let held = descriptor_store::end_left(directory);
    let held = held.map_err(|source| DaemonError::File {
        path: directory.to_owned(),
        operation: "end the keeper",
        source,
    })?;
    told.extend(
        held.map(|held| format!("the keeper is ended, and {held} descriptors that it held")),
    );
    let tunnels = tunnels::end_left(instance.name());
    told.extend(
        tunnels
            .iter()
            .map(|name| format!("tunnel {name} is taken away")),
    );
    Offload::open(directory, false, Automatic::Off).close();
    demand::end_left(directory);
    let mut running = RunningStore::new(directory);
    if let Some(left) = running.load() {
        let rules = left.rules.len();
        told.push(format!("{rules} running rules are forgotten"));
    }
    running.remove();
    Ok(told)
}

/// Takes away what forwards here and is pinned nowhere: it would relay beside this daemon, and nobody
/// would know. To be called while the process has all its capabilities.
pub(crate) fn end_strays(options: &Options) -> Result<(), DaemonError> {
    let links = links();
    let indexes: Vec<u32> = links.iter().map(|(index, _)| *index).collect();
    let found = dataplane::cleanup::end_strays(&options.bpffs, &indexes);
    let (ended, running) = found.map_err(dataplane_thread::Error::from)?;
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
    let links = if_nameindex().map(|links| {
        let links = links.iter();
        let links = links.map(|link| (link.index(), link.name().to_string_lossy().into_owned()));
        links.collect()
    });
    links.unwrap_or_default()
}

fn name(links: &[(u32, String)], index: u32) -> String {
    let link = links.iter().find(|(known, _)| *known == index);
    link.map_or_else(|| format!("interface {index}"), |(_, name)| name.clone())
}
