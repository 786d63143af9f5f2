//! What the generator refuses, and what prevents a run.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use thiserror::Error;

use crate::framing::Framing;

/// What prevents a run.
#[derive(Debug, Error)]
pub enum Error {
    /// Nothing to send to.
    #[error("no destination given")]
    NoDestination,
    /// The rate or speed is not a positive number.
    #[error("rate and speed must be above 0")]
    Rate,
    /// A fault's share is not a percentage.
    #[error("faults are percentages from 0 to 100")]
    Percentage,
    /// The framing has no numbers to start with.
    #[error(
        "mcr's own numbers are from 0 on; a first number and restarts need --framing rtp, rtp-ts, \
         moldudp64 or mdp3"
    )]
    Unnumbered,
    /// A restart without due times.
    #[error("a restart has its time: give a --rate other than max")]
    Untimed,
    /// A size cannot carry what the framing needs, or exceeds UDP.
    #[error("{}: {}", sizes(*.smallest, *.largest), .framing.sizes())]
    Size {
        /// Smallest size asked for, in bytes.
        smallest: usize,
        /// Largest size asked for, in bytes.
        largest: usize,
        /// The framing asked for.
        framing: Framing,
    },
    /// The source address and the destination are not of one family.
    #[error("{destination}: the source address {source_address} is not of its family")]
    Family {
        /// The stream's destination.
        destination: SocketAddr,
        /// The source address asked for.
        source_address: IpAddr,
    },
    /// No interface has that name in this network namespace.
    #[error("{destination}: no interface {name} (have: {have})")]
    NoInterface {
        /// The stream's destination.
        destination: SocketAddr,
        /// The name that is not there.
        name: String,
        /// Those that are.
        have: String,
    },
    /// Raw frames need an Ethernet interface, a group and a source address.
    #[error("{destination}: raw frames need {missing}")]
    Raw {
        /// The stream's destination.
        destination: SocketAddr,
        /// What is missing.
        missing: &'static str,
    },
    /// A socket could not be set up.
    #[error("cannot {action} for {destination}: {source}{}", remedy(*.destination, .source))]
    Socket {
        /// What was tried.
        action: &'static str,
        /// The stream's destination.
        destination: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The host's interfaces could not be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(io::Error),
    /// The thread could not be moved to the CPU asked for.
    #[error("cannot run on CPU {cpu}: {source}{}", usable())]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Error {
    pub(super) fn no_interface(destination: SocketAddr, name: &str) -> Self {
        Self::NoInterface {
            destination,
            name: name.to_owned(),
            have: crate::host::names(),
        }
    }
}

/// Sizes as the user wrote them.
fn sizes(smallest: usize, largest: usize) -> String {
    if smallest == largest {
        format!("a size of {smallest} bytes does not fit")
    } else {
        format!("sizes of {smallest} to {largest} bytes do not fit")
    }
}

/// The remedy for a socket that the kernel does not set up.
fn remedy(destination: SocketAddr, error: &io::Error) -> &'static str {
    let is_group = destination.ip().is_multicast();
    match error.kind() {
        io::ErrorKind::AddrNotAvailable if is_group => {
            "; another host's address takes raw frames and the interface, as in GROUP%eth0:PORT"
        }
        io::ErrorKind::AddrNotAvailable => "; give an address of this host",
        // IPv4 reports no interface in this case.
        io::ErrorKind::InvalidInput if is_group && destination.is_ipv4() => {
            "; its source may not leave by that interface, as 127.0.0.1 by none but lo"
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::InvalidInput if is_group => {
            "; the interface must be named, as in GROUP%eth0:PORT, and up"
        }
        _ => "",
    }
}

/// The usable CPUs, for a message.
fn usable() -> String {
    let Ok(cpus) = sched_getaffinity(Pid::from_raw(0)) else {
        return String::new();
    };
    let usable: Vec<_> = (0..CpuSet::count())
        .filter(|&cpu| cpus.is_set(cpu).unwrap_or(false))
        .map(|cpu| cpu.to_string())
        .collect();
    format!(" (usable: {})", usable.join(", "))
}
