//! What a relay keeps on disk: its session, for a process that follows within the hold, and the rules,
//! for a start without etcd.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::whole_file;

use crate::keys::{Current, Value};
use crate::member::Session;

/// Which boot a session belongs to: a gate's deadline means nothing after it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Serialize, Deserialize)]
struct RetainedSession {
    boot: String,
    session: Session,
}

/// The files.
#[derive(Clone, Debug)]
pub(super) struct Retained {
    session: PathBuf,
    current: PathBuf,
    text: PathBuf,
}

impl Retained {
    pub(super) fn new(run: &Path, cache: &Path) -> Self {
        Self {
            session: run.join("fleet-session.json"),
            current: cache.join("current.json"),
            text: cache.join("rules.json"),
        }
    }

    /// The session of a process before this one, since this boot.
    pub(super) fn session(&self) -> Option<Session> {
        let retained = fs::read(&self.session).ok()?;
        let retained: RetainedSession = serde_json::from_slice(&retained).ok()?;
        (retained.boot == boot()?).then_some(retained.session)
    }

    /// Keeps a session, or forgets it.
    pub(super) fn keep_session(&self, session: Option<Session>) {
        let done = match (session, boot()) {
            (Some(session), Some(boot)) => {
                let retained = RetainedSession { boot, session };
                let retained = serde_json::to_vec(&retained).unwrap_or_default();
                write(&self.session, &retained)
            }
            _ => whole_file::remove(&self.session),
        };
        if let Err(error) = done {
            tracing::warn!("{error}: the session is not kept, so a restart will interrupt");
        }
    }

    /// The rules as they were read last.
    pub(super) fn rules(&self) -> Option<(Current, Vec<u8>)> {
        let current = fs::read(&self.current).ok()?;
        let current = Current::read(&self.current.to_string_lossy(), &current).ok()?;
        Some((current, fs::read(&self.text).ok()?))
    }

    /// Keeps rules. Their hash tells a reader whether both files are of the same.
    pub(super) fn keep_rules(&self, current: &Current, text: &[u8]) {
        let done = write(&self.text, text).and_then(|()| write(&self.current, &current.write()));
        if let Err(error) = done {
            tracing::warn!("{error}: the rules are not kept, so a start needs etcd");
        }
    }
}

fn boot() -> Option<String> {
    Some(fs::read_to_string(BOOT_ID).ok()?.trim().to_owned())
}

fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    whole_file::replace(file, bytes)
}
