//! A relay's files: its session, for a process that follows within the hold, and the rules, for a start
//! without etcd.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::whole_file;

use crate::keys::{Current, Value};
use crate::member::Session;

/// Identifies the boot that a session belongs to: a gate's deadline has no meaning in another one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Serialize, Deserialize)]
struct RetainedSession {
    boot: String,
    session: Session,
}

/// The paths of the files.
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

    /// The session of a former process of this boot.
    pub(super) fn session(&self) -> Option<Session> {
        let bytes = fs::read(&self.session).ok()?;
        let retained: RetainedSession = serde_json::from_slice(&bytes).ok()?;
        (retained.boot == boot()?).then_some(retained.session)
    }

    /// Saves a session, or removes the saved one.
    pub(super) fn save_session(&self, session: Option<Session>) {
        let result = match (session, boot()) {
            (Some(session), Some(boot)) => {
                let retained = RetainedSession { boot, session };
                let bytes = serde_json::to_vec(&retained).unwrap_or_default();
                write(&self.session, &bytes)
            }
            _ => whole_file::remove(&self.session),
        };
        if let Err(error) = result {
            tracing::warn!("{error}: the session is not kept, so a restart will interrupt");
        }
    }

    /// The rules that were read last.
    pub(super) fn rules(&self) -> Option<(Current, Vec<u8>)> {
        let bytes = fs::read(&self.current).ok()?;
        let current = Current::read(&self.current.to_string_lossy(), &bytes).ok()?;
        Some((current, fs::read(&self.text).ok()?))
    }

    /// Saves rules. By their hash a reader can check that both files belong together.
    pub(super) fn save_rules(&self, current: &Current, text: &[u8]) {
        let result = write(&self.text, text).and_then(|()| write(&self.current, &current.write()));
        if let Err(error) = result {
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
