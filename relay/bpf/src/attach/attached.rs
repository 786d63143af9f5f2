//! Which programs are attached at an interface's ingress, whoever attached them.

use std::io;

use aya::programs::{SchedClassifier, TcAttachType};

use super::program::NAMES;

/// A program that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The kernel's number of it.
    pub id: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
}

impl Attached {
    /// Says whether it is the kernel path's own program, by its name.
    #[must_use]
    pub fn is_relay(&self) -> bool {
        NAMES.contains(&self.name.as_str())
    }
}

/// Lists the programs at the tcx ingress of an interface of the calling thread's network
/// namespace, in the order in which they see a packet.
///
/// # Errors
///
/// The kernel's: EINVAL before Linux 6.6, EPERM without CAP_BPF and CAP_NET_ADMIN.
pub fn tcx_ingress(interface: &str) -> io::Result<Vec<Attached>> {
    let (_, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let attached = programs.iter().map(|program| Attached {
        id: program.id(),
        name: program.name_as_str().unwrap_or_default().to_owned(),
    });
    Ok(attached.collect())
}
