//! Where membership sockets outlive this process: the service manager's descriptor store or a
//! keeper holds duplicates of them, and a record says what is joined through which. After a crash
//! the next daemon takes both, so no switch ever sees a leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::membership::Membership;

use crate::keeper::Keeper;
use crate::memberships::Joined;
use crate::notify;

/// How long a keeper may take to answer after it was started.
const PATIENCE: Duration = Duration::from_secs(2);

/// Labels of membership sockets in the manager's store, which may hold others.
const LABEL: &str = "membership-";

/// Where the sockets are held.
#[derive(Debug)]
pub(crate) struct Shelter {
    home: Home,
    command: Vec<OsString>,
    socket: PathBuf,
    record: PathBuf,
    keeper: Option<Keeper>,
    stored: BTreeSet<u32>,
    revision: u64,
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
#[derive(Debug, Serialize, Deserialize)]
struct Claim(u32, IpAddr, Option<IpAddr>);

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
            record: directory.join("memberships.json"),
            keeper: None,
            stored: BTreeSet::new(),
            revision: 0,
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
            self.revision = 0;
            self.connect();
        }
        if self.revision == joined.set().revision() {
            return;
        }
        match self.store(joined) {
            Ok(()) => self.revision = joined.set().revision(),
            Err(error) => {
                tracing::warn!(%error, "the keeper does not hold the memberships; trying again");
                self.keeper = None;
            }
        }
    }

    /// Has whoever holds them let go of the sockets; the memberships end.
    pub(crate) fn close(mut self) {
        if self.home == Home::Manager {
            let held = self.stored.iter();
            held.for_each(|number| notify::release(&format!("{LABEL}{number}")));
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.quit();
        }
        let _ = fs::remove_file(&self.record);
        let _ = fs::remove_file(&self.socket);
    }

    fn take_stored(&mut self, joined: &mut Joined) {
        let mut record = self.read_record();
        for (label, socket) in notify::stored() {
            let number = label.strip_prefix(LABEL).and_then(|text| text.parse().ok());
            if let Some(number) = number {
                self.adopt(joined, &mut record, number, socket);
            }
        }
    }

    fn recall(&mut self, joined: &mut Joined) -> io::Result<()> {
        let Ok(mut keeper) = Keeper::connect(&self.socket) else {
            return Ok(());
        };
        let mut record = self.read_record();
        for (label, socket) in keeper.recall()? {
            match label.parse() {
                Ok(number) => self.adopt(joined, &mut record, number, socket),
                Err(_) => keeper.release(&label)?,
            }
        }
        let memberships = joined.set().len();
        tracing::info!(memberships, "took memberships over from an earlier run");
        self.keeper = Some(keeper);
        Ok(())
    }

    fn adopt(&mut self, joined: &mut Joined, record: &mut Record, number: u32, socket: OwnedFd) {
        let claims = record.0.remove(&number).unwrap_or_default();
        let claims = claims.into_iter().map(Membership::from).collect();
        joined.adopt(number, socket, claims);
        self.stored.insert(number);
    }

    fn read_record(&self) -> Record {
        let text = fs::read(&self.record).ok();
        let record = text.and_then(|text| serde_json::from_slice(&text).ok());
        record.unwrap_or_default()
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
                self.hold(held.number, held.socket)?;
                self.stored.insert(held.number);
            }
            let claims = held.memberships.iter().map(Claim::from).collect();
            record.0.insert(held.number, claims);
        }
        for number in unused {
            self.let_go(number)?;
            self.stored.remove(&number);
        }
        let temporary = self.record.with_extension("json.new");
        fs::write(&temporary, serde_json::to_vec(&record)?)?;
        fs::rename(&temporary, &self.record)
    }

    fn hold(&mut self, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        match (self.home, &mut self.keeper) {
            (Home::Manager, _) => notify::store(&format!("{LABEL}{number}"), socket),
            (_, Some(keeper)) => keeper.store(&number.to_string(), socket),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn let_go(&mut self, number: u32) -> io::Result<()> {
        match (self.home, &mut self.keeper) {
            (Home::Manager, _) => {
                notify::release(&format!("{LABEL}{number}"));
                Ok(())
            }
            (_, Some(keeper)) => keeper.release(&number.to_string()),
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl From<&Membership> for Claim {
    fn from(membership: &Membership) -> Self {
        Self(membership.interface, membership.group, membership.source)
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
