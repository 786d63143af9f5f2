//! State on disk with frequent small changes: a snapshot, and a journal of the changes since, so that a
//! change costs in proportion to itself and not to the whole state.
//!
//! The journal begins with a digest of the snapshot it continues. A process killed between a new
//! snapshot and its journal leaves the new one with the old journal, which is then not read; one
//! killed while it appends leaves a last line without an end, which is not read either.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::lines::Lines;

/// How long a journal may grow after a shorter snapshot, in bytes.
const ROOM: usize = 64 * 1024;

/// A snapshot and its journal: `NAME.json` and `NAME.log`.
#[derive(Debug)]
pub(crate) struct Journal {
    snapshot: PathBuf,
    journal: PathBuf,
    /// The journal of the snapshot that this process wrote last.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    lines: Lines,
    /// Bytes that may be added.
    room: usize,
}

/// A write that is not valid yet, but already has all the room that it needs.
#[derive(Debug)]
#[must_use]
pub(crate) enum Prepared {
    /// Lines, by their length in bytes.
    Lines(usize),
    /// A snapshot beside the valid one.
    Snapshot(Vec<u8>),
}

/// The contents of snapshot and journal.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) snapshot: Vec<u8>,
    /// The lines added since.
    pub(crate) lines: Vec<Vec<u8>>,
}

impl Contents {
    /// Parses a snapshot and a journal.
    pub(crate) fn of(snapshot: Vec<u8>, journal: &[u8]) -> Self {
        let mut all = journal.split_inclusive(|byte| *byte == b'\n');
        let mut lines = Vec::new();
        if all.next() == Some(&head(&snapshot)) {
            let whole = all.filter_map(|line| line.strip_suffix(b"\n"));
            lines.extend(whole.map(<[u8]>::to_vec));
        }
        Self { snapshot, lines }
    }
}

impl Journal {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        Self {
            snapshot: directory.join(format!("{name}.json")),
            journal: directory.join(format!("{name}.log")),
            open: None,
        }
    }

    /// The path of the snapshot.
    pub(crate) fn path(&self) -> &Path {
        &self.snapshot
    }

    /// Reads the contents, if there are any.
    pub(crate) fn read(&self) -> io::Result<Option<Contents>> {
        let snapshot = match fs::read(&self.snapshot) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let journal = fs::read(&self.journal).unwrap_or_default();
        Ok(Some(Contents::of(snapshot, &journal)))
    }

    /// Replaces everything by `snapshot`, atomically.
    pub(crate) fn replace(&mut self, snapshot: &[u8]) -> io::Result<()> {
        let prepared = self.prepare_snapshot(snapshot.to_vec())?;
        self.commit(prepared)
    }

    /// Adds whole lines atomically; returns whether it succeeded. If not, a snapshot has to follow: the
    /// journal is full, or cannot be written.
    #[must_use]
    pub(crate) fn append(&mut self, lines: &[u8]) -> bool {
        let prepared = self.prepare_lines(lines);
        prepared.is_some_and(|prepared| self.commit(prepared).is_ok())
    }

    /// Writes whole lines that are not valid yet: without the end of the last one. `None` if a snapshot
    /// has to follow.
    pub(crate) fn prepare_lines(&mut self, lines: &[u8]) -> Option<Prepared> {
        let open = self.open.take().filter(|open| lines.len() <= open.room)?;
        open.lines.prepare(lines).ok()?;
        self.open = Some(open);
        Some(Prepared::Lines(lines.len()))
    }

    /// Writes a snapshot beside the valid one.
    pub(crate) fn prepare_snapshot(&mut self, snapshot: Vec<u8>) -> io::Result<Prepared> {
        let written = fs::write(self.temporary(), &snapshot);
        if written.is_err() {
            let _ = fs::remove_file(self.temporary());
        }
        written.map(|()| Prepared::Snapshot(snapshot))
    }

    /// Makes a prepared write valid.
    pub(crate) fn commit(&mut self, prepared: Prepared) -> io::Result<()> {
        match (prepared, self.open.take()) {
            (Prepared::Lines(bytes), Some(mut open)) => {
                open.room -= bytes;
                open.lines.commit(bytes)?;
                self.open = Some(open);
            }
            (Prepared::Lines(_), None) => return Err(ErrorKind::NotFound.into()),
            (Prepared::Snapshot(snapshot), _) => {
                fs::rename(self.temporary(), &self.snapshot)?;
                self.open = self.begin(&snapshot).ok();
            }
        }
        Ok(())
    }

    /// Discards a prepared write.
    pub(crate) fn abort(&mut self, prepared: Prepared) {
        match (prepared, &self.open) {
            (Prepared::Lines(_), Some(open)) => {
                if open.lines.abort().is_err() {
                    self.open = None;
                }
            }
            (Prepared::Lines(_), None) => {}
            (Prepared::Snapshot(_), _) => {
                let _ = fs::remove_file(self.temporary());
            }
        }
    }

    /// Removes all files.
    pub(crate) fn remove(&mut self) {
        self.open = None;
        let _ = fs::remove_file(&self.snapshot);
        let _ = fs::remove_file(self.temporary());
        let _ = fs::remove_file(&self.journal);
    }

    fn begin(&self, snapshot: &[u8]) -> io::Result<Open> {
        let mut file = File::create(&self.journal)?;
        let head = head(snapshot);
        file.write_all(&head)?;
        Ok(Open {
            lines: Lines::new(file, head.len() as u64),
            room: snapshot.len().max(ROOM),
        })
    }

    fn temporary(&self) -> PathBuf {
        self.snapshot.with_extension("json.new")
    }
}

/// The first line of a snapshot's journal: its length and its FNV-1a hash.
pub(crate) fn head(snapshot: &[u8]) -> Vec<u8> {
    let hash = snapshot.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{}-{hash:016x}\n", snapshot.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(journal: &Journal) -> Option<(String, Vec<String>)> {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let read = journal.read().unwrap()?;
        let lines = read.lines.into_iter().map(text);
        Some((text(read.snapshot), lines.collect()))
    }

    #[test]
    fn reads_a_snapshot_and_the_lines_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(directory.path(), "a");
        assert_eq!(texts(&journal), None);
        assert!(!journal.append(b"nothing to continue\n"));
        journal.replace(b"first").unwrap();
        assert!(journal.append(b"one\ntwo\n") && journal.append(b"three\n"));
        let expected = ["one", "two", "three"].map(str::to_owned).to_vec();
        assert_eq!(texts(&journal), Some(("first".to_owned(), expected)));
        journal.replace(b"second").unwrap();
        assert_eq!(texts(&journal), Some(("second".to_owned(), Vec::new())));
        journal.remove();
        assert_eq!(texts(&journal), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_prepared_write_is_valid_once_committed_and_never_once_aborted() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(directory.path(), "a");
        journal.replace(b"first").unwrap();
        let of = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
        let aborted = journal
            .prepare_lines(b"longer than the next one\n")
            .unwrap();
        assert_eq!(texts(&journal), Some(("first".to_owned(), of(&[]))));
        journal.abort(aborted);
        let prepared = journal.prepare_lines(b"one\ntwo\n").unwrap();
        journal.commit(prepared).unwrap();
        let expected = Some(("first".to_owned(), of(&["one", "two"])));
        assert_eq!(texts(&journal), expected);
        let aborted = journal.prepare_snapshot(b"second".to_vec()).unwrap();
        assert_eq!(texts(&journal), expected);
        journal.abort(aborted);
        assert!(journal.append(b"three\n"), "the journal goes on");
        let prepared = journal.prepare_snapshot(b"third".to_vec()).unwrap();
        journal.commit(prepared).unwrap();
        assert_eq!(texts(&journal), Some(("third".to_owned(), of(&[]))));
    }

    #[test]
    fn reads_whole_lines_wherever_the_journal_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(directory.path(), "a");
        journal.replace(b"first").unwrap();
        assert!(journal.append(b"one\ntwo\n"));
        let whole = fs::read(&journal.journal).unwrap();
        for length in 0..whole.len() {
            fs::write(&journal.journal, &whole[..length]).unwrap();
            let (snapshot, lines) = texts(&journal).unwrap();
            assert_eq!(snapshot, "first");
            let ends = whole[..length].iter().filter(|byte| **byte == b'\n');
            let count = ends.count().saturating_sub(1);
            assert_eq!(lines, ["one", "two"][..count], "cut after {length} bytes");
        }
    }

    #[test]
    fn leaves_the_journal_of_another_snapshot_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(directory.path(), "a");
        journal.replace(b"first").unwrap();
        assert!(journal.append(b"one\n"));
        // As left by a process killed right after the new snapshot.
        fs::write(&journal.snapshot, "second").unwrap();
        assert_eq!(texts(&journal), Some(("second".to_owned(), Vec::new())));
    }

    #[test]
    fn asks_for_a_snapshot_once_the_journal_is_as_long() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::new(directory.path(), "a");
        journal.replace(b"first").unwrap();
        let line = [b'x'; 1024];
        let fits = (0..100).take_while(|_| journal.append(&line)).count();
        assert_eq!(fits, ROOM / line.len());
        assert!(
            !journal.append(b"short\n"),
            "a line may be missing before it"
        );
        journal.replace(&[b'y'; 3 * ROOM]).unwrap();
        let fits = (0..1000).take_while(|_| journal.append(&line)).count();
        assert_eq!(fits, 3 * ROOM / line.len());
    }
}
