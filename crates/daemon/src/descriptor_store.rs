//! Where descriptors outlive this process: the service manager's descriptor store or a keeper holds
//! duplicates of membership sockets, and a record says what is joined through which. After a crash
//! the next daemon takes both, so no switch ever sees a leave. With them go the counters of the
//! userspace path and, at a keeper, the control sockets of its workers, which forward until then.

pub mod fd_holder;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::membership::{Change, Membership};

use crate::dataplane_thread::LabelledDescriptors;
use crate::descriptor_store::fd_holder::Keeper;
use crate::memberships::Joined;
use crate::service_manager as notify;
use crate::state::journal::Journal;

/// How long a keeper may take to answer after it was started.
const PATIENCE: Duration = Duration::from_secs(2);

/// Labels of membership sockets in the manager's store.
const LABEL: &str = "membership-";
/// Labels of what the dataplane leaves.
const DATAPLANE: &str = "userspace-";
/// Those of them that are of no use to a manager: it ends every worker.
const OF_WORKERS: [&str; 2] = ["control-", "process-"];

/// Where the sockets are held.
#[derive(Debug)]
pub(crate) struct Shelter {
    home: Home,
    command: Vec<OsString>,
    socket: PathBuf,
    record: Journal,
    keeper: Option<Keeper>,
    stored: BTreeSet<u32>,
    /// Up to where the memberships are held and recorded.
    revision: Option<u64>,
    /// What the dataplane of an earlier run left, until it is asked for.
    inherited: LabelledDescriptors,
    /// What the dataplane wants held, and the labels of what is held of it.
    heirlooms: LabelledDescriptors,
    held: BTreeSet<String>,
}

/// Who holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// Nobody: memberships end with this process.
    None,
    Keeper,
    /// A manager ends every process of a service that crashed, a keeper too.
    Manager,
}

/// What is joined through each socket, by its number.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record(BTreeMap<u32, Vec<Claim>>);

/// One membership: interface, group, source.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim(u32, IpAddr, Option<IpAddr>);

/// A change of the record, a line of its journal: whether joined, socket, membership.
#[derive(Debug, Serialize, Deserialize)]
struct Line(bool, u32, Claim);

impl Record {
    fn take(&mut self, Line(joined, number, claim): Line) {
        let claims = self.0.entry(number).or_default();
        match joined {
            true => claims.push(claim),
            false => claims.retain(|held| *held != claim),
        }
    }
}

impl Shelter {
    /// Takes back what an earlier run left, and makes sure that somebody holds what is joined.
    /// Without a manager and without `command` memberships end with this process.
    pub(crate) fn open(command: &[OsString], directory: &Path, joined: &mut Joined) -> Self {
        let home = match (notify::has_store(), command.is_empty()) {
            (true, _) => Home::Manager,
            (false, false) => Home::Keeper,
            (false, true) => Home::None,
        };
        let mut shelter = Self {
            home,
            command: command.to_vec(),
            socket: directory.join("keeper.sock"),
            record: Journal::new(directory, "memberships"),
            keeper: None,
            stored: BTreeSet::new(),
            revision: None,
            inherited: Vec::new(),
            heirlooms: Vec::new(),
            held: BTreeSet::new(),
        };
        match home {
            Home::None => {}
            Home::Manager => shelter.take_stored(joined),
            Home::Keeper => {
                if let Err(error) = shelter.recall(joined) {
                    tracing::warn!(%error, "cannot take memberships back from the keeper");
                }
                shelter.connect();
            }
        }
        shelter
    }

    /// Brings the keeper up to what is joined now.
    pub(crate) fn update(&mut self, joined: &Joined) {
        if self.home == Home::None {
            return;
        }
        if self.home == Home::Keeper && self.keeper.as_ref().is_none_or(Keeper::is_gone) {
            self.stored.clear();
            self.held.clear();
            self.revision = None;
            self.connect();
        }
        if let Err(error) = self.store_heirlooms() {
            tracing::warn!(%error, "the keeper does not hold the workers; trying again");
            self.keeper = None;
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
                self.keeper = None;
            }
        }
    }

    /// What the dataplane of an earlier run left; to be asked for once.
    pub(crate) fn inherited(&mut self) -> LabelledDescriptors {
        std::mem::take(&mut self.inherited)
    }

    /// Takes what the dataplane wants held from now on; the next update brings it there.
    pub(crate) fn take(&mut self, heirlooms: LabelledDescriptors) {
        self.heirlooms = heirlooms;
        if self.home == Home::Manager {
            let is_of_workers = |label: &str| OF_WORKERS.iter().any(|kind| label.starts_with(kind));
            self.heirlooms.retain(|(label, _)| !is_of_workers(label));
        }
    }

    /// Says whether workers go on when this process ends.
    pub(crate) fn holds_workers(&self) -> bool {
        let mut heirlooms = self.heirlooms.iter();
        self.home == Home::Keeper
            && self.keeper.as_ref().is_some_and(|keeper| !keeper.is_gone())
            && heirlooms.all(|(label, _)| self.held.contains(label))
    }

    fn store_heirlooms(&mut self) -> io::Result<()> {
        let heirlooms = std::mem::take(&mut self.heirlooms);
        let done = self.settle_heirlooms(&heirlooms);
        self.heirlooms = heirlooms;
        done
    }

    fn settle_heirlooms(&mut self, heirlooms: &LabelledDescriptors) -> io::Result<()> {
        let mut unused = self.held.clone();
        for (label, fd) in heirlooms {
            if !unused.remove(label) {
                self.hold(&format!("{DATAPLANE}{label}"), fd.as_fd())?;
                self.held.insert(label.clone());
            }
        }
        for label in unused {
            self.let_go(&format!("{DATAPLANE}{label}"))?;
            self.held.remove(&label);
        }
        Ok(())
    }

    /// Has whoever holds them let go of the sockets; the memberships end.
    pub(crate) fn close(mut self) {
        if self.home == Home::Manager {
            let memberships = self.stored.iter();
            memberships.for_each(|number| notify::release(&format!("{LABEL}{number}")));
            let held = self.held.iter();
            held.for_each(|label| notify::release(&format!("{DATAPLANE}{label}")));
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.quit();
        }
        self.record.remove();
        let _ = fs::remove_file(&self.socket);
    }

    fn take_stored(&mut self, joined: &mut Joined) {
        let mut record = self.read_record();
        for (label, fd) in notify::stored() {
            if let Some(label) = label.strip_prefix(DATAPLANE) {
                self.inherit(label, fd);
            } else if let Some(number) = number(&label) {
                self.adopt(joined, &mut record, number, fd);
            }
        }
    }

    fn recall(&mut self, joined: &mut Joined) -> io::Result<()> {
        let Ok(mut keeper) = Keeper::connect(&self.socket) else {
            return Ok(());
        };
        let mut record = self.read_record();
        for (label, fd) in keeper.recall()? {
            if let Some(label) = label.strip_prefix(DATAPLANE) {
                self.inherit(label, fd);
            } else if let Some(number) = number(&label) {
                self.adopt(joined, &mut record, number, fd);
            } else {
                keeper.release(&label)?;
            }
        }
        let memberships = joined.set().len();
        tracing::info!(memberships, "took memberships over from an earlier run");
        self.keeper = Some(keeper);
        Ok(())
    }

    fn inherit(&mut self, label: &str, fd: OwnedFd) {
        self.inherited.push((label.to_owned(), fd));
        self.held.insert(label.to_owned());
    }

    fn adopt(&mut self, joined: &mut Joined, record: &mut Record, number: u32, socket: OwnedFd) {
        let claims = record.0.remove(&number).unwrap_or_default();
        let claims = claims.into_iter().map(Membership::from).collect();
        joined.adopt(number, socket, claims);
        self.stored.insert(number);
    }

    fn read_record(&self) -> Record {
        let Ok(Some(read)) = self.record.read() else {
            return Record::default();
        };
        let mut record: Record = serde_json::from_slice(&read.snapshot).unwrap_or_default();
        let lines = read.lines.iter().map(|line| serde_json::from_slice(line));
        lines
            .map_while(Result::ok)
            .for_each(|line| record.take(line));
        record
    }

    fn connect(&mut self) {
        if self.keeper.is_some() && !self.keeper.as_ref().is_none_or(Keeper::is_gone) {
            return;
        }
        self.keeper = match self.start() {
            Ok(keeper) => Some(keeper),
            Err(error) => {
                tracing::warn!(%error, "no keeper; a crash would end the memberships");
                None
            }
        };
    }

    /// Starts a keeper that outlives this process.
    fn start(&self) -> io::Result<Keeper> {
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::NotFound)?;
        // A group of its own: Ctrl-C in a terminal is not meant for it.
        let mut child = Command::new(program)
            .args(arguments)
            .arg(&self.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Keeper::connect(&self.socket) {
                Ok(keeper) => {
                    // Waits for its end, so that no zombie is left while this process lives.
                    std::thread::spawn(move || child.wait());
                    return Ok(keeper);
                }
                Err(error) if deadline <= Instant::now() => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error);
                }
                Err(_) => sleep(Duration::from_millis(2)),
            }
        }
    }

    fn store(&mut self, joined: &Joined) -> io::Result<()> {
        let mut record = Record::default();
        let mut unused = self.stored.clone();
        for held in joined.set().sockets() {
            if !unused.remove(&held.number) {
                self.hold(&format!("{LABEL}{}", held.number), held.socket)?;
                self.stored.insert(held.number);
            }
            let claims = held.memberships.iter().map(Claim::from).collect();
            record.0.insert(held.number, claims);
        }
        for number in unused {
            self.let_go(&format!("{LABEL}{number}"))?;
            self.stored.remove(&number);
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
                Some(socket) if !self.stored.contains(&number) => {
                    self.hold(&format!("{LABEL}{number}"), socket)?;
                    self.stored.insert(number);
                }
                None if self.stored.contains(&number) => {
                    self.let_go(&format!("{LABEL}{number}"))?;
                    self.stored.remove(&number);
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
        match (self.home, &mut self.keeper) {
            (Home::Manager, _) => notify::store(label, fd),
            (_, Some(keeper)) => keeper.store(label, fd),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn let_go(&mut self, label: &str) -> io::Result<()> {
        match (self.home, &mut self.keeper) {
            (Home::Manager, _) => {
                notify::release(label);
                Ok(())
            }
            (_, Some(keeper)) => keeper.release(label),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// The number of a membership socket.
fn number(label: &str) -> Option<u32> {
    label.strip_prefix(LABEL)?.parse().ok()
}

impl From<&Membership> for Claim {
    fn from(membership: &Membership) -> Self {
        Self(membership.interface, membership.group, membership.source)
    }
}

impl From<&Change> for Line {
    fn from(change: &Change) -> Self {
        Self(
            change.joined,
            change.number,
            Claim::from(&change.membership),
        )
    }
}

impl From<Claim> for Membership {
    fn from(Claim(interface, group, source): Claim) -> Self {
        Self {
            interface,
            group,
            source,
        }
    }
}
