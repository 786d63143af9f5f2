//! The programs attached to an interface's ingress, whoever attached them.

use std::os::fd::AsFd;
use std::path::Path;
use std::{fs, io};

use aya::programs::{SchedClassifier, TcAttachType};
use aya_obj::generated::bpf_cmd;

use super::clsact::Filter;
use super::pin::XDP;
use super::program::{NAMES, RELAY};
use crate::syscall;

/// A program that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The kernel's number of it.
    pub id: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
}

impl Attached {
    /// Returns whether it is the kernel path's own program, by its name.
    pub fn is_relay(&self) -> bool {
        NAMES.contains(&self.name.as_str())
    }

    /// Returns whether it takes packets at XDP.
    pub fn relays_at_xdp(&self) -> bool {
        self.name == RELAY
    }
}

/// The program that the kernel has under a number.
///
/// # Errors
///
/// The kernel's: ENOENT if there is none, EPERM without CAP_SYS_ADMIN.
pub fn program(id: u32) -> io::Result<Attached> {
    let program = syscall::open_by_id(bpf_cmd::BPF_PROG_GET_FD_BY_ID, id)?;
    let (name, _) = syscall::program_maps(program.as_fd())?;
    Ok(Attached { id, name })
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

/// Returns for each program at the tcx ingress of an interface of the calling thread's network namespace, in
/// the order in which they see a packet, whether it is an instance's, as links pinned below `bpffs` show.
/// Names require CAP_SYS_ADMIN, which the daemon gives up; this does not.
///
/// # Errors
///
/// The kernel's: EINVAL before Linux 6.6.
pub fn are_instances(bpffs: &Path, ifindex: u32) -> io::Result<Vec<bool>> {
    let programs = syscall::tcx_ingress(ifindex)?.into_iter();
    let pinned = pinned(bpffs, "link", ifindex);
    let is_pinned = |id| pinned.iter().any(|link| link.id == id);
    Ok(programs.map(|(id, _)| is_pinned(id)).collect())
}

/// Returns whether an XDP program at an interface of the calling thread's network namespace is an instance's, in
/// the same way.
pub fn is_xdp_instances(bpffs: &Path, ifindex: u32, program: u32) -> bool {
    let pinned = pinned(bpffs, XDP, ifindex);
    pinned.iter().any(|link| link.program == program)
}

/// Instances' links of a kind that are at an interface of that index.
fn pinned(bpffs: &Path, kind: &str, ifindex: u32) -> Vec<syscall::Link> {
    let directories = fs::read_dir(bpffs.join("mcr")).into_iter().flatten();
    let link = |directory: fs::DirEntry| {
        let pin = directory.path().join(format!("{kind}-{ifindex}"));
        syscall::link(syscall::open_pin(&pin).ok()?.as_fd()).ok()
    };
    let links = directories.flatten().filter_map(link);
    links.filter(|link| link.ifindex == ifindex).collect()
}

/// Returns whether all filters at the ingress qdisc of an interface of the calling thread's network namespace
/// are programs of instances, as they are before Linux 6.6, and there is at least one.
pub fn has_instances_filters_alone(ifindex: u32) -> bool {
    Filter::are_instances_alone(ifindex).unwrap_or(false)
}
