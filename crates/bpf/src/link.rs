//! The program at one interface's ingress.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::pin::failed;
use crate::program::Program;
use crate::{Error, syscall};

/// A tcx link. Dropping it detaches the program, unless the link is pinned.
#[derive(Debug)]
pub struct Link {
    link: OwnedFd,
}

impl Link {
    /// Attaches `program` to the ingress of an interface of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// ENODEV without such an interface, EPERM without CAP_NET_ADMIN.
    pub fn attach(program: &Program, ifindex: u32) -> Result<Self, Error> {
        syscall::create_tcx_link(program.variant(ifindex), ifindex)
            .map(|link| Self { link })
            .map_err(|error| Error::Attach { ifindex, error })
    }

    /// Opens the link pinned at `path`; `None` if there is none or its interface is gone.
    ///
    /// # Errors
    ///
    /// When the pin cannot be opened.
    pub fn adopt(path: &Path, ifindex: u32) -> Result<Option<Self>, Error> {
        match syscall::open_pin(path) {
            Ok(link) => {
                let link = Self { link };
                Ok((link.ifindex() == ifindex).then_some(link))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(path, "open", error)),
        }
    }

    /// Puts `program` in the place of the one that is attached; no packet sees neither.
    ///
    /// # Errors
    ///
    /// When the interface is gone.
    pub fn replace(&self, program: &Program) -> Result<(), Error> {
        let ifindex = self.ifindex();
        syscall::update_link(self.link.as_fd(), program.variant(ifindex))
            .map_err(|error| Error::Attach { ifindex, error })
    }

    /// Lets the link outlive this process.
    ///
    /// # Errors
    ///
    /// When something else lies at `path`.
    pub fn pin(&self, path: &Path) -> Result<(), Error> {
        syscall::pin(self.link.as_fd(), path).map_err(|error| failed(path, "pin a link", error))
    }

    /// The interface it is attached to, 0 once that is gone.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        syscall::tcx_link_ifindex(self.link.as_fd()).unwrap_or(0)
    }
}
