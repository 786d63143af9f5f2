//! Descriptors that outlive this process: the service manager, or a process that does nothing else,
//! holds duplicates of them. After a crash the next daemon takes them back, so no switch ever sees a
//! leave: the membership sockets, with a record of what is joined through each; the counters of the
//! userspace path; and the control sockets of its workers, which forward until then.

pub mod fd_holder;
mod record;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use sys::membership::{Change, Held};

use crate::dataplane_thread::LabelledDescriptors;
use crate::memberships::Joined;
use crate::service_manager;
use crate::state::journal::Journal;
use fd_holder::FdHolder;
use record::{Record, claim, line, membership};

/// The holding process's socket, in the instance's directory.
const SOCKET: &str = "keeper.sock";
/// Name of the record of memberships.
const RECORD: &str = "memberships";
/// Prefix of the labels of membership sockets.
const MEMBERSHIP: &str = "membership-";
/// Prefix of the labels of the dataplane's descriptors.
const DATAPLANE: &str = "userspace-";

/// The descriptors that are held for the next daemon, and their holder.
#[derive(Debug)]
pub(crate) struct DescriptorStore {
    holder: Holder,
    command: Vec<OsString>,
    socket: PathBuf,
    record: Journal,
    process: Option<FdHolder>,
    /// Labels of the held descriptors.
    held: BTreeSet<String>,
    /// The revision up to which memberships are held and recorded.
    revision: Option<u64>,
    /// The descriptors of an earlier run's dataplane, until they are taken.
    inherited: LabelledDescriptors,
    /// The dataplane's descriptors to hold, with their labels.
    dataplane: LabelledDescriptors,
}

/// The holder of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Nobody: memberships end with this process.
    None,
    /// A process of this daemon's own.
    Process,
    /// systemd's unit leaves the workers alone (`KillMode=process`).
    ServiceManager,
}

impl DescriptorStore {
    /// Takes back the descriptors of an earlier run, and makes sure that there is a holder. Without a
    /// manager and without `command` memberships end with this process.
    pub(crate) fn open(command: &[OsString], directory: &Path, joined: &mut Joined) -> Self {
        let holder = match (service_manager::has_store(), command.is_empty()) {
            (true, _) => Holder::ServiceManager,
            (false, false) => Holder::Process,
            (false, true) => Holder::None,
        };
        let mut store = Self {
            holder,
            command: command.to_vec(),
            socket: directory.join(SOCKET),
            record: Journal::new(directory, RECORD),
            process: None,
            held: BTreeSet::new(),
            revision: None,
            inherited: Vec::new(),
            dataplane: Vec::new(),
        };
        match holder {
            Holder::None => {}
            Holder::ServiceManager => store.take_from_manager(joined),
            Holder::Process => {
                if let Err(error) = store.take_from_process(joined) {
                    tracing::warn!(%error, "cannot take memberships back from the keeper");
                }
                store.connect();
            }
        }
        joined.take_stock();
        store
    }

    /// Brings the holder up to the current memberships.
    pub(crate) fn update(&mut self, joined: &Joined) {
        if self.holder == Holder::None {
            return;
        }
        if self.holder == Holder::Process && self.process.as_ref().is_none_or(FdHolder::has_ended) {
            self.held.clear();
            self.revision = None;
            self.connect();
        }
        if let Err(error) = self.store_dataplane() {
            tracing::warn!(%error, "the keeper does not hold the workers; trying again");
            self.process = None;
        }
        let revision = joined.set().revision();
        let holds = self.held.iter().any(|label| label.starts_with(MEMBERSHIP));
        if self.revision == Some(revision) || self.revision.is_none() && revision == 0 && !holds {
            return;
        }
        let last = self.revision.take();
        let stored = match last.and_then(|last| joined.set().changes_since(last)) {
            Some(changes) => self.follow(joined, changes),
            None => self.store_memberships(joined),
        };
        match stored {
            Ok(()) => self.revision = Some(revision),
            Err(error) => {
                tracing::warn!(%error, "the keeper does not hold the memberships; trying again");
                self.process = None;
            }
        }
    }

    /// Returns whether an update would have anything to do.
    pub(crate) fn is_behind(&self, joined: &Joined) -> bool {
        let is_held = |(label, _): &(String, OwnedFd)| self.held.contains(label);
        match self.holder {
            Holder::None => false,
            Holder::Process if self.process.as_ref().is_none_or(FdHolder::has_ended) => true,
            _ => {
                self.revision != Some(joined.set().revision())
                    && !(self.revision.is_none() && joined.set().revision() == 0)
                    || !self.dataplane.iter().all(is_held)
            }
        }
    }

    /// Takes the descriptors of an earlier run's dataplane; once.
    pub(crate) fn take_inherited(&mut self) -> LabelledDescriptors {
        std::mem::take(&mut self.inherited)
    }

    /// Sets the dataplane's descriptors to hold; the next update stores them.
    pub(crate) fn set_dataplane(&mut self, dataplane: LabelledDescriptors) {
        self.dataplane = dataplane
            .into_iter()
            .map(|(label, fd)| (format!("{DATAPLANE}{label}"), fd))
            .collect();
    }

    /// Returns whether workers continue when this process ends.
    pub(crate) fn holds_workers(&self) -> bool {
        let mut dataplane = self.dataplane.iter();
        let has_holder = match self.holder {
            Holder::None => false,
            Holder::Process => !self.process.as_ref().is_none_or(FdHolder::has_ended),
            Holder::ServiceManager => true,
        };
        has_holder && dataplane.all(|(label, _)| self.held.contains(label))
    }

    /// Releases all descriptors; the memberships end.
    pub(crate) fn close(mut self) {
        if self.holder == Holder::ServiceManager {
            for label in &self.held {
                service_manager::release(label);
            }
        }
        if let Some(process) = self.process.take() {
            let _ = process.quit();
        }
        self.record.remove();
        let _ = fs::remove_file(&self.socket);
    }

    fn take_from_manager(&mut self, joined: &mut Joined) {
        let mut record = self.read_record();
        for (label, fd) in service_manager::stored() {
            self.take_back(label, fd, joined, &mut record);
        }
    }

    fn take_from_process(&mut self, joined: &mut Joined) -> io::Result<()> {
        let Ok(mut process) = FdHolder::connect(&self.socket) else {
            return Ok(());
        };
        let mut record = self.read_record();
        for (label, fd) in process.recall()? {
            if let Some(unknown) = self.take_back(label, fd, joined, &mut record) {
                process.release(&unknown)?;
            }
        }
        let memberships = joined.set().len();
        tracing::info!(memberships, "took memberships over from an earlier run");
        self.process = Some(process);
        Ok(())
    }

    /// Takes one descriptor back; returns its label if it is unknown.
    fn take_back(
        &mut self,
        label: String,
        fd: OwnedFd,
        joined: &mut Joined,
        record: &mut Record,
    ) -> Option<String> {
        if let Some(name) = label.strip_prefix(DATAPLANE) {
            self.inherited.push((name.to_owned(), fd));
        } else if let Some(number) = number(&label) {
            let claims = record.0.remove(&number).unwrap_or_default();
            let memberships = claims.into_iter().map(membership).collect();
            joined.adopt(number, fd, memberships);
        } else {
            return Some(label);
        }
        self.held.insert(label);
        None
    }

    fn read_record(&self) -> Record {
        let Ok(Some(read)) = self.record.read() else {
            return Record::default();
        };
        Record::of(&read)
    }

    fn connect(&mut self) {
        if self.process.is_some() && !self.process.as_ref().is_none_or(FdHolder::has_ended) {
            return;
        }
        self.process = match FdHolder::start(&self.command, &self.socket) {
            Ok(process) => Some(process),
            Err(error) => {
                tracing::warn!(%error, "no keeper; a crash would end the memberships");
                None
            }
        };
    }

    fn store_dataplane(&mut self) -> io::Result<()> {
        let dataplane = std::mem::take(&mut self.dataplane);
        let wanted = dataplane
            .iter()
            .map(|(label, fd)| (label.clone(), fd.as_fd()));
        let stored = self.hold_exactly(DATAPLANE, wanted);
        self.dataplane = dataplane;
        stored
    }

    fn store_memberships(&mut self, joined: &Joined) -> io::Result<()> {
        let sockets = joined.set().sockets();
        self.hold_exactly(
            MEMBERSHIP,
            sockets.map(|held| (label(held.number), held.socket)),
        )?;
        let claims = |held: Held<'_>| held.memberships.iter().map(claim).collect();
        let sockets = joined.set().sockets();
        let record = sockets.map(|held| (held.number, claims(held)));
        self.record
            .replace(&serde_json::to_vec(&Record(record.collect()))?)
    }

    /// Holds exactly `wanted` of the descriptors whose labels begin with `prefix`.
    fn hold_exactly<'a>(
        &mut self,
        prefix: &str,
        wanted: impl Iterator<Item = (String, BorrowedFd<'a>)>,
    ) -> io::Result<()> {
        let mut unused: BTreeSet<String> = self
            .held
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|label| label.starts_with(prefix))
            .cloned()
            .collect();
        for (label, fd) in wanted {
            if !unused.remove(&label) {
                self.hold(label, fd)?;
            }
        }
        unused
            .into_iter()
            .try_for_each(|label| self.release(&label))
    }

    /// Brings the holder and the record up to date by changes.
    fn follow<'a>(
        &mut self,
        joined: &Joined,
        changes: impl Iterator<Item = &'a Change>,
    ) -> io::Result<()> {
        let mut lines = Vec::new();
        for change in changes {
            let number = change.number;
            serde_json::to_writer(&mut lines, &line(change))?;
            lines.push(b'\n');
            let label = label(number);
            match joined.set().socket(number) {
                Some(socket) if !self.held.contains(&label) => self.hold(label, socket)?,
                None if self.held.contains(&label) => self.release(&label)?,
                _ => {}
            }
        }
        if self.record.append(&lines) {
            Ok(())
        } else {
            self.store_memberships(joined)
        }
    }

    fn hold(&mut self, label: String, fd: BorrowedFd<'_>) -> io::Result<()> {
        match (self.holder, &mut self.process) {
            (Holder::ServiceManager, _) => service_manager::store(&label, fd)?,
            (_, Some(process)) => process.store(&label, fd)?,
            (_, None) => return Err(io::ErrorKind::NotConnected.into()),
        }
        self.held.insert(label);
        Ok(())
    }

    fn release(&mut self, label: &str) -> io::Result<()> {
        match (self.holder, &mut self.process) {
            (Holder::ServiceManager, _) => service_manager::release(label),
            (_, Some(process)) => process.release(label)?,
            (_, None) => return Err(io::ErrorKind::NotConnected.into()),
        }
        self.held.remove(label);
        Ok(())
    }
}

/// Ends the process that holds an ended daemon's descriptors, if there is one; returns how many it held.
pub(crate) fn cleanup(directory: &Path) -> io::Result<Option<usize>> {
    let socket = directory.join(SOCKET);
    let mut held = None;
    if let Ok(mut process) = FdHolder::connect(&socket) {
        held = Some(process.recall()?.len());
        process.end()?;
    }
    Journal::new(directory, RECORD).remove();
    let _ = fs::remove_file(socket);
    Ok(held)
}

/// Reads a record of memberships. For fuzzers and tests.
#[cfg(feature = "rehearsal")]
pub(crate) fn read_memberships(read: &crate::state::journal::Contents) {
    let claims = Record::of(read).0.into_values().flatten();
    claims.map(membership).for_each(drop);
}

fn label(number: u32) -> String {
    format!("{MEMBERSHIP}{number}")
}

/// The number of a membership socket, low enough for more numbers after it.
fn number(label: &str) -> Option<u32> {
    let number: u32 = label.strip_prefix(MEMBERSHIP)?.parse().ok()?;
    (number <= u32::MAX / 2).then_some(number)
}
