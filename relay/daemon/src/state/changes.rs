//! The log of changes: who changed what, in lines of JSON, over restarts and reboots. It is bounded; its
//! oldest lines are removed. A line that was torn by a power failure is cut off and reported.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::reply::{ChangeRecord, Outcome, Via};
use sys::whole_file;

use super::lines::Lines;

/// The most changes and bytes of the log.
const CHANGES_MAX: usize = 10_000;
const BYTES_MAX: u64 = 32 << 20;

/// When the log is full, one in this many parts is removed.
const PART: usize = 10;

/// The log, opened for writing.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    path: PathBuf,
    lines: Lines,
    count: usize,
    /// Lines that could not be written yet.
    backlog: VecDeque<Vec<u8>>,
}

impl ChangeLog {
    /// The path of an instance's log.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("changes.log")
    }

    /// Syncs the log to disk, so that it survives a power failure; slow.
    pub(crate) fn sync(directory: &Path) -> io::Result<()> {
        match File::open(Self::path(directory)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            file => file?.sync_data(),
        }
    }

    /// Opens it, and cuts off a torn line at its end.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let path = Self::path(directory);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        let text = fs::read(&path)?;
        let whole = whole(&text);
        let torn = text.len() - whole.len();
        if torn > 0 {
            tracing::warn!(
                bytes = torn,
                "{}: the last change was not written to its end; cut off",
                path.display()
            );
            file.set_len(whole.len() as u64)?;
        }
        Ok(Self {
            path,
            lines: Lines::new(file, whole.len() as u64),
            count: lines(whole).count(),
            backlog: VecDeque::new(),
        })
    }

    /// Writes a line that is not valid before [`Self::commit`]; returns its length in bytes.
    pub(crate) fn prepare(&mut self, record: &ChangeRecord) -> io::Result<usize> {
        let line = self.line(record)?;
        self.catch_up()?;
        self.make_room(line.len())?;
        let prepared = self.lines.prepare(&line);
        prepared.map_err(|error| self.named(&error))?;
        Ok(line.len())
    }

    /// Makes the prepared line valid.
    pub(crate) fn commit(&mut self, bytes: usize) -> io::Result<()> {
        self.count += 1;
        self.lines.commit(bytes)
    }

    /// Discards the prepared line.
    pub(crate) fn abort(&self) {
        // If that fails, the next line overwrites it.
        let _ = self.lines.abort();
    }

    /// Writes a change, now or as soon as there is room.
    pub(crate) fn append(&mut self, record: &ChangeRecord) -> io::Result<()> {
        if self.backlog.len() < CHANGES_MAX {
            let line = self.line(record)?;
            self.backlog.push_back(line);
        }
        self.catch_up()
    }

    /// Writes the lines that could not be written before.
    pub(crate) fn catch_up(&mut self) -> io::Result<()> {
        while let Some(line) = self.backlog.pop_front() {
            let written = self.make_room(line.len()).and_then(|()| {
                self.lines.prepare(&line)?;
                self.lines.commit(line.len())
            });
            if let Err(error) = written {
                let _ = self.lines.abort();
                self.backlog.push_front(line);
                return Err(self.named(&error));
            }
            self.count += 1;
        }
        Ok(())
    }

    fn line(&self, record: &ChangeRecord) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Removes the oldest lines if there is no room for one more.
    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        let length = self.lines.length();
        if self.count < CHANGES_MAX && length + bytes as u64 <= BYTES_MAX {
            return Ok(());
        }
        let bytes = fs::read(&self.path)?;
        let text = whole(&bytes);
        let all: Vec<&[u8]> = lines(text).collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        // A link that flaps all night must not displace the changes of people.
        order.sort_by_key(|index| !is_automatic(all[*index]));
        let (mut count, mut length) = (all.len(), text.len() as u64);
        let excess = order.into_iter().take_while(|index| {
            let is_much = count > CHANGES_MAX - CHANGES_MAX / PART
                || length > BYTES_MAX - BYTES_MAX / PART as u64;
            count -= 1;
            length -= all[*index].len() as u64 + 1;
            is_much
        });
        let removed: BTreeSet<usize> = excess.collect();
        let numbered = all.iter().enumerate();
        let retained: Vec<u8> = numbered
            .filter(|(index, _)| !removed.contains(index))
            .flat_map(|(_, line)| [line, &b"\n"[..]].concat())
            .collect();
        whole_file::replace(&self.path, &retained)?;
        let opened = OpenOptions::new().write(true).open(&self.path);
        let file = opened.map_err(|error| self.named(&error))?;
        self.lines = Lines::new(file, retained.len() as u64);
        self.count = all.len() - removed.len();
        Ok(())
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

/// Returns whether a line records a change that no person made.
fn is_automatic(line: &[u8]) -> bool {
    let record = serde_json::from_slice::<ChangeRecord>(line);
    record.map_or(true, |record| {
        matches!(record.by.via, Via::Link | Via::Name)
    })
}

/// The generation after the last change of a log, read without opening it for writing.
pub(crate) fn last_generation(path: &Path) -> u64 {
    let text = fs::read(path).unwrap_or_default();
    let mut records = lines(whole(&text)).rev();
    let last = records.find_map(|line| serde_json::from_slice::<ChangeRecord>(line).ok());
    last.map_or(0, |record| record.generation)
}

/// Reads the last changes, the oldest first, each with its final outcome.
pub(crate) fn read(path: &Path, last: usize) -> io::Result<Vec<ChangeRecord>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let all: Vec<&[u8]> = lines(whole(&text)).collect();
    let mut records: Vec<ChangeRecord> = all
        .iter()
        .skip(all.len().saturating_sub(last))
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    resolve_outcomes(&mut records);
    Ok(records)
}

/// Sets the outcome of changes that waited to be confirmed from later lines.
fn resolve_outcomes(records: &mut [ChangeRecord]) {
    let ends: Vec<(u64, Outcome)> = records
        .iter()
        .filter_map(|record| Some((record.of?, record.outcome?)))
        .collect();
    for record in records.iter_mut().filter(|record| record.of.is_none()) {
        let end = ends.iter().rev().find(|(of, _)| *of == record.generation);
        if let (Some(Outcome::Pending), Some((_, outcome))) = (record.outcome, end) {
            record.outcome = Some(*outcome);
        }
    }
}

/// The complete lines of a text.
fn whole(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    &text[..end.map_or(0, |end| end + 1)]
}

fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use api::reply::By;

    use super::*;

    fn record(generation: u64, what: usize) -> ChangeRecord {
        ChangeRecord {
            generation,
            before: generation.wrapping_sub(1),
            what: "x".repeat(what),
            ..ChangeRecord::default()
        }
    }

    fn add(log: &mut ChangeLog, record: &ChangeRecord) {
        let bytes = log.prepare(record).unwrap();
        log.commit(bytes).unwrap();
    }

    fn generations(log: &ChangeLog) -> Vec<u64> {
        let read = read(&log.path, usize::MAX).unwrap();
        read.into_iter().map(|record| record.generation).collect()
    }

    #[test]
    fn a_prepared_line_is_valid_once_it_is_committed() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        add(&mut log, &record(1, 3));
        let _ = log.prepare(&record(2, 1000)).unwrap();
        assert_eq!(generations(&log), [1]);
        log.abort();
        add(&mut log, &record(3, 3));
        assert_eq!(generations(&log), [1, 3]);
        let log = ChangeLog::open(directory.path()).unwrap();
        assert_eq!((last_generation(&log.path), log.count), (3, 2));
    }

    #[test]
    fn a_torn_end_is_cut_off_wherever_it_was_torn() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        (1..=3).for_each(|generation| add(&mut log, &record(generation, 9)));
        let text = fs::read(&log.path).unwrap();
        for length in 0..text.len() {
            // A power failure may leave a length without its bytes.
            let torn = [&text[..length], &[0; 5]].concat();
            fs::write(&log.path, torn).unwrap();
            let mut log = ChangeLog::open(directory.path()).unwrap();
            let whole = text[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(
                last_generation(&log.path),
                whole,
                "cut after {length} bytes"
            );
            add(&mut log, &record(9, 1));
            let expected: Vec<u64> = (1..=whole).chain([9]).collect();
            assert_eq!(generations(&log), expected);
        }
    }

    #[test]
    fn it_stays_within_its_bounds_and_retains_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        for generation in 1..=20_000 {
            add(&mut log, &record(generation, 3));
            assert!(log.count <= CHANGES_MAX);
        }
        let retained = generations(&log);
        assert_eq!(retained.len(), log.count);
        assert!(retained.len() >= CHANGES_MAX - CHANGES_MAX / PART);
        let first = 20_001 - retained.len() as u64;
        assert!(retained.iter().copied().eq(first..=20_000), "without a gap");
        for generation in 20_001..20_801 {
            add(&mut log, &record(generation, 64 << 10));
            assert!(fs::metadata(&log.path).unwrap().len() <= BYTES_MAX);
        }
        let last = read(&log.path, 2).unwrap();
        assert_eq!(last.len(), 2);
        assert_eq!(last[1].generation, 20_800);
    }

    #[test]
    fn a_flapping_link_displaces_no_change_of_a_person() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        add(&mut log, &record(1, 3));
        for generation in 2..12_000 {
            let mut flap = record(generation, 3);
            flap.by = By::of(Via::Link, Some("eth0".to_owned()));
            add(&mut log, &flap);
        }
        assert_eq!(generations(&log).first(), Some(&1));
    }

    #[test]
    fn a_line_without_room_is_written_as_soon_as_there_is_some() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let good = std::mem::replace(&mut log.lines, Lines::new(full, 0));
        let error = log.prepare(&record(1, 1)).unwrap_err().to_string();
        assert!(error.contains("changes.log: No space left"), "{error}");
        assert!(log.append(&record(1, 1)).is_err() && !log.backlog.is_empty());
        log.lines = good;
        add(&mut log, &record(2, 1));
        assert!(log.backlog.is_empty());
        assert_eq!(generations(&log), [1, 2]);
    }

    #[test]
    fn a_change_has_its_final_outcome() {
        let mut records = [record(1, 0), record(2, 0), record(2, 0), record(3, 0)];
        records[1].outcome = Some(Outcome::Pending);
        (records[2].outcome, records[2].of) = (Some(Outcome::Confirmed), Some(2));
        records[3].outcome = Some(Outcome::Pending);
        resolve_outcomes(&mut records);
        let outcomes = records.map(|record| record.outcome);
        let (confirmed, pending) = (Some(Outcome::Confirmed), Some(Outcome::Pending));
        assert_eq!(outcomes, [None, confirmed, confirmed, pending]);
    }
}
