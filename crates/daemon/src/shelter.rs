//! Where membership sockets outlive this process: a keeper holds duplicates of them, and a record
//! beside it says what is joined through which. After a crash the next daemon takes both, so no
//! switch ever sees a leave.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::membership::Membership;

use crate::keeper::Keeper;
use crate::memberships::Joined;

/// How long a keeper may take to answer after it was started.
const PATIENCE: Duration = Duration::from_secs(2);

/// The keeper's other end.
#[derive(Debug)]
pub(crate) struct Shelter {
    command: Vec<OsString>,
    socket: PathBuf,
    record: PathBuf,
    keeper: Option<Keeper>,
    stored: BTreeSet<u32>,
    revision: u64,
}

/// What is joined through each socket, by its number.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record(BTreeMap<u32, Vec<Claim>>);

/// One membership: interface, group, source.
#[derive(Debug, Serialize, Deserialize)]
struct Claim(u32, IpAddr, Option<IpAddr>);

impl Shelter {
    /// Takes back what an earlier run left, and makes sure that a keeper runs. Without `command`
    /// memberships end with this process.
    pub(crate) fn open(command: &[OsString], directory: &Path, joined: &mut Joined) -> Self {
        let mut shelter = Self {
            command: command.to_vec(),
            socket: directory.join("keeper.sock"),
            record: directory.join("memberships.json"),
            keeper: None,
            stored: BTreeSet::new(),
            revision: 0,
        };
        if !command.is_empty() {
            if let Err(error) = shelter.recall(joined) {
                tracing::warn!(%error, "cannot take memberships back from the keeper");
            }
            shelter.connect();
        }
        shelter
    }

    /// Brings the keeper up to what is joined now.
    pub(crate) fn update(&mut self, joined: &Joined) {
        if self.command.is_empty() {
            return;
        }
        if self.keeper.as_ref().is_none_or(Keeper::is_gone) {
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

    /// Ends the keeper, and the memberships that it alone holds.
    pub(crate) fn close(mut self) {
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.quit();
        }
        let _ = fs::remove_file(&self.record);
        let _ = fs::remove_file(&self.socket);
    }

    fn recall(&mut self, joined: &mut Joined) -> io::Result<()> {
        let Ok(mut keeper) = Keeper::connect(&self.socket) else {
            return Ok(());
        };
        let record = fs::read(&self.record)
            .ok()
            .and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let mut record = record.unwrap_or_default();
        for (label, socket) in keeper.recall()? {
            match label.parse() {
                Ok(number) => {
                    let claims = record.0.remove(&number).unwrap_or_default();
                    let claims = claims.into_iter().map(Membership::from).collect();
                    joined.adopt(number, socket, claims);
                    self.stored.insert(number);
                }
                Err(_) => keeper.release(&label)?,
            }
        }
        tracing::info!(
            memberships = joined.set().len(),
            "took memberships over from an earlier run"
        );
        self.keeper = Some(keeper);
        Ok(())
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
        let Some(keeper) = &mut self.keeper else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut record = Record::default();
        let mut unused = self.stored.clone();
        for held in joined.set().sockets() {
            if !unused.remove(&held.number) {
                keeper.store(&held.number.to_string(), held.socket)?;
                self.stored.insert(held.number);
            }
            let claims = held.memberships.iter().map(Claim::from).collect();
            record.0.insert(held.number, claims);
        }
        for number in unused {
            keeper.release(&number.to_string())?;
            self.stored.remove(&number);
        }
        let temporary = self.record.with_extension("json.new");
        fs::write(&temporary, serde_json::to_vec(&record)?)?;
        fs::rename(&temporary, &self.record)
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
