//! The program at one interface's ingress: a pinned tcx link, or below Linux 6.6 a clsact filter.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use super::clsact::Filter;
use super::pin_lock::failed;
use crate::pin::Pins;
use crate::program::Program;
use crate::{Error, syscall};

/// How long the kernel may take to release a link whose pin was removed: it does so in a work item, and until
/// then the same program cannot be attached again.
const LET_GO: Duration = Duration::from_millis(500);

/// How the program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// tcx links, since Linux 6.6.
    #[default]
    Tcx,
    /// A filter of the clsact queueing discipline.
    Clsact,
}

/// The program at an interface. It stays when this is dropped; [`Link::remove`] ends it.
#[derive(Debug)]
pub struct Link {
    attachment: Attachment,
}

#[derive(Debug)]
enum Attachment {
    Tcx(OwnedFd),
    Clsact { filter: Filter, ifindex: u32 },
}

impl Link {
    /// Attaches `program` to the ingress of an interface of the calling thread's network namespace,
    /// to outlive this process.
    ///
    /// # Errors
    ///
    /// ENODEV without such an interface, EPERM without CAP_NET_ADMIN.
    pub fn attach(program: &Program, ifindex: u32, hook: Hook, pins: &Pins) -> Result<Self, Error> {
        let attachment = match hook {
            Hook::Tcx => attach_tcx(program, ifindex, pins)?,
            Hook::Clsact => attach_clsact(program, ifindex, pins)?,
        };
        Ok(Self { attachment })
    }

    /// Takes over what an earlier process left at the interface, and removes its remains if that no longer
    /// works.
    ///
    /// # Errors
    ///
    /// When the pins cannot be read.
    pub fn adopt(ifindex: u32, pins: &Pins) -> Result<Option<Self>, Error> {
        let attachment = if pins.has_filter(ifindex) {
            Some(Attachment::Clsact {
                filter: pins.filter(),
                ifindex,
            })
        } else {
            open_tcx(ifindex, pins)?.map(Attachment::Tcx)
        };
        let link = attachment.map(|attachment| Self { attachment });
        match link {
            Some(link) if link.is_at(ifindex) => Ok(Some(link)),
            _ => Self::remove(ifindex, pins).map(|()| None),
        }
    }

    /// Replaces the attached program by `program`; every packet sees one of the two.
    ///
    /// # Errors
    ///
    /// When the interface no longer exists.
    pub fn replace(&self, program: &Program) -> Result<(), Error> {
        let ifindex = self.ifindex();
        let variant = program.variant(ifindex)?;
        let replaced = match &self.attachment {
            Attachment::Tcx(link) => syscall::update_link(link.as_fd(), variant),
            Attachment::Clsact { filter, ifindex } => filter.attach(variant, *ifindex),
        };
        replaced.map_err(|error| Error::Attach { ifindex, error })
    }

    /// The interface it is attached to, 0 once that no longer exists.
    pub fn ifindex(&self) -> u32 {
        match &self.attachment {
            Attachment::Tcx(link) => syscall::link(link.as_fd()).map_or(0, |link| link.ifindex),
            Attachment::Clsact { filter, ifindex } => match filter.is_attached(*ifindex) {
                Ok(true) => *ifindex,
                _ => 0,
            },
        }
    }

    /// Returns whether it is attached to this interface of the calling thread's network namespace: a
    /// link that an earlier process left may be at one of the same number in another namespace.
    pub fn is_at(&self, ifindex: u32) -> bool {
        let Attachment::Tcx(link) = &self.attachment else {
            return self.ifindex() == ifindex;
        };
        syscall::link(link.as_fd()).is_ok_and(|link| link.is_at_tcx(ifindex))
    }

    /// Removes this instance's program from an interface, and a clsact discipline that was added for it; does
    /// nothing if there is none. A tcx link stays as long as a [`Link`] is held.
    ///
    /// # Errors
    ///
    /// When the pins cannot be changed or the kernel keeps the filter.
    pub fn remove(ifindex: u32, pins: &Pins) -> Result<(), Error> {
        pins.remove_link(ifindex)?;
        if pins.has_filter(ifindex) {
            let removed = pins.filter().detach(ifindex);
            removed.map_err(|error| Error::Attach { ifindex, error })?;
            if pins.added_qdisc(ifindex) {
                // The interface may not exist any more, the discipline may be in use or already removed.
                let _ = Filter::remove_empty_qdisc(ifindex);
            }
            pins.remove_filter(ifindex)?;
        }
        Ok(())
    }

    /// Removes everything of the instance: its links detach, its maps end with the last user.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn remove_all(pins: &Pins) -> Result<(), Error> {
        for ifindex in pins.links()? {
            Self::remove(ifindex, pins)?;
        }
        pins.remove_rest()
    }
}

/// Attaches a program to the ingress of an interface of the calling thread's network namespace, for as
/// long as the returned link is held.
///
/// # Errors
///
/// ENODEV without such an interface, EPERM without CAP_NET_ADMIN.
pub fn attach_while_held(program: BorrowedFd<'_>, ifindex: u32) -> Result<OwnedFd, Error> {
    let link = syscall::create_tcx_link(program, ifindex);
    link.map_err(|error| Error::Attach { ifindex, error })
}

fn attach_tcx(program: &Program, ifindex: u32, pins: &Pins) -> Result<Attachment, Error> {
    let variant = program.variant(ifindex)?;
    let deadline = Instant::now() + LET_GO;
    let link = loop {
        match syscall::create_tcx_link(variant, ifindex) {
            Ok(link) => break link,
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(Error::Attach { ifindex, error }),
        }
    };
    let path = pins.link(ifindex);
    syscall::pin(link.as_fd(), &path).map_err(|error| failed(&path, "pin a link", error))?;
    Ok(Attachment::Tcx(link))
}

/// Records the filter before it is attached, so that a process killed in between leaves nothing that the next
/// one does not find.
fn attach_clsact(program: &Program, ifindex: u32, pins: &Pins) -> Result<Attachment, Error> {
    let variant = program.variant(ifindex)?;
    let filter = pins.filter();
    let attach = || {
        if Filter::add_qdisc(ifindex)? {
            pins.note_qdisc(ifindex)?;
        }
        filter.attach(variant, ifindex)
    };
    pins.note_filter(ifindex)?;
    if let Err(error) = attach() {
        pins.remove_filter(ifindex)?;
        return Err(Error::Attach { ifindex, error });
    }
    Ok(Attachment::Clsact { filter, ifindex })
}

fn open_tcx(ifindex: u32, pins: &Pins) -> Result<Option<OwnedFd>, Error> {
    let path = pins.link(ifindex);
    match syscall::open_pin(&path) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path, "open", error)),
    }
}
