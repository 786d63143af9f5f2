//! Reads files of an earlier daemon as the next one does, whatever their contents. For fuzzers and tests.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use config::Settings;
use rules::ruleset::{Policy, RuleSet};

use crate::descriptor_store::{self, fd_holder};
use crate::state::journal::{Contents, head};
use crate::state::running::Running;

/// Reads a snapshot and the lines of its journal, of the running rules and of the memberships.
///
/// # Panics
/// If valid rules differ after they were written and read again.
pub fn journal(snapshot: &[u8], lines: &[u8]) {
    let journal = [&head(snapshot), lines].concat();
    let read = Contents::of(snapshot.to_vec(), &journal);
    descriptor_store::read_memberships(&read);
    let Some(running) = Running::of(&read) else {
        return;
    };
    let settings = running.settings.clone().unwrap_or_default();
    let policy = settings.policy(Policy::default());
    if let Ok(rules) = RuleSet::from_documents(&running.rules, policy) {
        check_written_again(running.generation, &rules, &settings);
    }
}

fn check_written_again(generation: u64, rules: &RuleSet, settings: &Settings) {
    let running = Running::new(generation, rules, settings);
    let snapshot = serde_json::to_vec(&running).expect("what was read from JSON is JSON again");
    let read = Running::of(&Contents::of(snapshot, b""));
    assert_eq!(read, Some(running), "written down and read again");
}

/// Sends bytes to the process that holds descriptors.
pub fn keeper(bytes: &[u8]) {
    let Ok((mut client, mut holder)) = UnixStream::pair() else {
        return;
    };
    let sent = client.write_all(bytes);
    if sent.and_then(|()| client.shutdown(Shutdown::Write)).is_ok() {
        fd_holder::attend_once(&mut holder);
    }
}
