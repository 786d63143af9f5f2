//! Descriptors that outlive this process: the service manager, or a process that does nothing else,
//! holds duplicates of them. After a crash the next daemon takes them back, so no switch ever sees a
//! leave: the membership sockets, and a record of what is joined through which; the counters of the
//! userspace path; and, where a process holds them, the control sockets of its workers, which
//! forward until then.

pub mod fd_holder;
mod record;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use sys::membership::{Change, Membership};

use crate::dataplane_thread::LabelledDescriptors;
use crate::memberships::Joined;
use crate::service_manager;
use crate::state::journal::Journal;
use fd_holder::FdHolder;
use record::{Claim, Line, Record};

/// Labels of membership sockets in the manager's store.
const LABEL: &str = "membership-";
/// Labels of what the dataplane leaves.
const DATAPLANE: &str = "userspace-";
/// Those of them that are of no use to a manager: it ends every worker.
const OF_WORKERS: [&str; 2] = ["control-", "process-"];

/// What is held for the next daemon, and by whom.
#[derive(Debug)]
pub(crate) struct DescriptorStore {
    holder: Holder,
    command: Vec<OsString>,
    socket: PathBuf,
    record: Journal,
    process: Option<FdHolder>,
    stored_sockets: BTreeSet<u32>,
    /// Up to where the memberships are held and recorded.
    revision: Option<u64>,
    /// What the dataplane of an earlier run left, until it is asked for.
    inherited: LabelledDescriptors,
    /// What the dataplane wants held, and the labels of what is held of it.
    dataplane: LabelledDescriptors,
    held_labels: BTreeSet<String>,
}

/// Who holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Nobody: memberships end with this process.
    None,
    /// A process of this daemon's own.
    Process,
    /// It ends every process of a service that crashed, a holding one too.
    ServiceManager,
}

impl DescriptorStore {
    /// Takes back what an earlier run left, and makes sure that somebody holds what is joined.
    /// Without a manager and without `command` memberships end with this process.
    pub(crate) fn open(command: &[OsString], directory: &Path, joined: &mut Joined) -> Self {
        let holder = match (service_manager::has_store(), command.is_empty()) {
            (true, _) => Holder::ServiceManager,
            (false, false) => Holder::Process,
            (false, true) => Holder::None,
        };
        let mut store = Self {
            holder,
            command: command.to_vec(),
            socket: directory.join("keeper.sock"),
            record: Journal::new(directory, "memberships"),
            process: None,
            stored_sockets: BTreeSet::new(),
            revision: None,
            inherited: Vec::new(),
            dataplane: Vec::new(),
            held_labels: BTreeSet::new(),
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
        store
    }

    /// Brings whoever holds the sockets up to what is joined now.
    pub(crate) fn update(&mut self, joined: &Joined) {
        if self.holder == Holder::None {
            return;
        }
        if self.holder == Holder::Process && self.process.as_ref().is_none_or(FdHolder::is_gone) {
            self.stored_sockets.clear();
            self.held_labels.clear();
            self.revision = None;
            self.connect();
        }
        if let Err(error) = self.store_dataplane() {
            tracing::warn!(%error, "the keeper does not hold the workers; trying again");
            self.process = None;
        }
        let revision = joined.set().revision();
        if self.revision == Some(revision) || self.revision.is_none() && revision == 0 {
            return;
        }
        let before = self.revision.take();
        let stored = match before.and_then(|before| joined.set().changes_since(before)) {
            Some(changes) => self.follow(joined, changes),
            None => self.store(joined),
        };
        match stored {
            Ok(()) => self.revision = Some(revision),
            Err(error) => {
                tracing::warn!(%error, "the keeper does not hold the memberships; trying again");
                self.process = None;
            }
        }
    }

    /// Hands out what the dataplane of an earlier run left; once.
    pub(crate) fn take_inherited(&mut self) -> LabelledDescriptors {
        std::mem::take(&mut self.inherited)
    }

    /// Sets what of the dataplane is to be held from now on; the next update brings it there.
    pub(crate) fn set_dataplane(&mut self, dataplane: LabelledDescriptors) {
        self.dataplane = dataplane;
        if self.holder == Holder::ServiceManager {
            let is_of_workers = |label: &str| OF_WORKERS.iter().any(|kind| label.starts_with(kind));
            self.dataplane.retain(|(label, _)| !is_of_workers(label));
        }
    }

    /// Says whether workers go on when this process ends.
    pub(crate) fn holds_workers(&self) -> bool {
        let mut dataplane = self.dataplane.iter();
        self.holder == Holder::Process
            && self
                .process
                .as_ref()
                .is_some_and(|process| !process.is_gone())
            && dataplane.all(|(label, _)| self.held_labels.contains(label))
    }

    fn store_dataplane(&mut self) -> io::Result<()> {
        let dataplane = std::mem::take(&mut self.dataplane);
        let done = self.settle_dataplane(&dataplane);
        self.dataplane = dataplane;
        done
    }

    fn settle_dataplane(&mut self, dataplane: &LabelledDescriptors) -> io::Result<()> {
        let mut unused = self.held_labels.clone();
        for (label, fd) in dataplane {
            if !unused.remove(label) {
                self.hold(&format!("{DATAPLANE}{label}"), fd.as_fd())?;
                self.held_labels.insert(label.clone());
            }
        }
        for label in unused {
            self.let_go(&format!("{DATAPLANE}{label}"))?;
            self.held_labels.remove(&label);
        }
        Ok(())
    }

    /// Has whoever holds them let go of the sockets; the memberships end.
    pub(crate) fn close(mut self) {
        if self.holder == Holder::ServiceManager {
            let memberships = self.stored_sockets.iter();
            memberships.for_each(|number| service_manager::release(&format!("{LABEL}{number}")));
            let held = self.held_labels.iter();
            held.for_each(|label| service_manager::release(&format!("{DATAPLANE}{label}")));
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
            if let Some(label) = label.strip_prefix(DATAPLANE) {
                self.inherit(label, fd);
            } else if let Some(number) = number(&label) {
                self.adopt(joined, &mut record, number, fd);
            }
        }
    }

    fn take_from_process(&mut self, joined: &mut Joined) -> io::Result<()> {
        let Ok(mut process) = FdHolder::connect(&self.socket) else {
            return Ok(());
        };
        let mut record = self.read_record();
        for (label, fd) in process.recall()? {
            if let Some(label) = label.strip_prefix(DATAPLANE) {
                self.inherit(label, fd);
            } else if let Some(number) = number(&label) {
                self.adopt(joined, &mut record, number, fd);
            } else {
                process.release(&label)?;
            }
        }
        let memberships = joined.set().len();
        tracing::info!(memberships, "took memberships over from an earlier run");
        self.process = Some(process);
        Ok(())
    }

    fn inherit(&mut self, label: &str, fd: OwnedFd) {
        self.inherited.push((label.to_owned(), fd));
        self.held_labels.insert(label.to_owned());
    }

    fn adopt(&mut self, joined: &mut Joined, record: &mut Record, number: u32, socket: OwnedFd) {
        let claims = record.0.remove(&number).unwrap_or_default();
        let claims = claims.into_iter().map(Membership::from).collect();
        joined.adopt(number, socket, claims);
        self.stored_sockets.insert(number);
    }

    fn read_record(&self) -> Record {
        let Ok(Some(read)) = self.record.read() else {
            return Record::default();
        };
        let mut record: Record = serde_json::from_slice(&read.snapshot).unwrap_or_default();
        let lines = read.lines.iter().map(|line| serde_json::from_slice(line));
        lines
            .map_while(Result::ok)
            .for_each(|line| record.apply(line));
        record
    }

    fn connect(&mut self) {
        if self.process.is_some() && !self.process.as_ref().is_none_or(FdHolder::is_gone) {
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

    fn store(&mut self, joined: &Joined) -> io::Result<()> {
        let mut record = Record::default();
        let mut unused = self.stored_sockets.clone();
        for held in joined.set().sockets() {
            if !unused.remove(&held.number) {
                self.hold(&format!("{LABEL}{}", held.number), held.socket)?;
                self.stored_sockets.insert(held.number);
            }
            let claims = held.memberships.iter().map(Claim::from).collect();
            record.0.insert(held.number, claims);
        }
        for number in unused {
            self.let_go(&format!("{LABEL}{number}"))?;
            self.stored_sockets.remove(&number);
        }
        self.record.replace(&serde_json::to_vec(&record)?)
    }

    /// Brings those who hold the sockets, and the record, up to a few changes.
    fn follow<'a>(
        &mut self,
        joined: &Joined,
        changes: impl Iterator<Item = &'a Change>,
    ) -> io::Result<()> {
        let mut lines = Vec::new();
        for change in changes {
            let number = change.number;
            serde_json::to_writer(&mut lines, &Line::from(change))?;
            lines.push(b'\n');
            match joined.set().socket(number) {
                Some(socket) if !self.stored_sockets.contains(&number) => {
                    self.hold(&format!("{LABEL}{number}"), socket)?;
                    self.stored_sockets.insert(number);
                }
                None if self.stored_sockets.contains(&number) => {
                    self.let_go(&format!("{LABEL}{number}"))?;
                    self.stored_sockets.remove(&number);
                }
                _ => {}
            }
        }
        match self.record.append(&lines) {
            true => Ok(()),
            false => self.store(joined),
        }
    }

    fn hold(&mut self, label: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        match (self.holder, &mut self.process) {
            (Holder::ServiceManager, _) => service_manager::store(label, fd),
            (_, Some(process)) => process.store(label, fd),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn let_go(&mut self, label: &str) -> io::Result<()> {
        match (self.holder, &mut self.process) {
            (Holder::ServiceManager, _) => {
                service_manager::release(label);
                Ok(())
            }
            (_, Some(process)) => process.release(label),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// The number of a membership socket.
fn number(label: &str) -> Option<u32> {
    label.strip_prefix(LABEL)?.parse().ok()
}
