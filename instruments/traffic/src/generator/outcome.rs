//! What the kernel accepted of a run, and what it refused.

use std::io;
use std::net::SocketAddr;

use nix::errno::Errno;

use super::option::Method;
use crate::report::Volume;

/// The account of one kind of sockets.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) sent: Volume,
    /// Datagrams refused.
    pub(super) errors: u64,
    /// The error of the first of them, with its remedy.
    pub(super) first_error: Option<String>,
}

impl Outcome {
    /// Counts datagrams that the kernel refused.
    pub(super) fn refused(
        &mut self,
        datagrams: u64,
        destination: SocketAddr,
        method: Method,
        error: &io::Error,
    ) {
        self.errors += datagrams;
        self.first_error.get_or_insert_with(|| {
            let remedy = remedy(method, error).unwrap_or_default();
            format!("{destination}: {error}{remedy}")
        });
    }
}

fn remedy(method: Method, error: &io::Error) -> Option<&'static str> {
    let errno = Errno::from_raw(error.raw_os_error()?);
    match (errno, method) {
        (Errno::EMSGSIZE, Method::Raw) => {
            Some("; raw frames are not fragmented: a smaller --size, or --method sockets")
        }
        (Errno::EINVAL | Errno::EMSGSIZE, Method::Gso) => {
            Some("; what is segmented must fit the MTU: a smaller --size, or --method sockets")
        }
        (Errno::EPERM, _) => Some("; a firewall rule of this host forbids it"),
        (Errno::ENETDOWN, _) => Some("; the interface is down"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_reported_with_a_remedy() {
        let to = "239.1.1.1:5001".parse().unwrap();
        let mut outcome = Outcome::default();
        let too_long = io::Error::from(Errno::EMSGSIZE);
        outcome.refused(2, to, Method::Raw, &too_long);
        outcome.refused(1, to, Method::Raw, &io::Error::from(Errno::ENOBUFS));
        assert_eq!(outcome.errors, 3);
        let error = outcome.first_error.unwrap();
        assert!(error.starts_with("239.1.1.1:5001: "), "{error}");
        assert!(error.contains("fragmented"), "{error}");
    }
}
