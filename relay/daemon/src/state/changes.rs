//! The log of changes: who changed what, in lines of JSON, over restarts and reboots. It is bounded; its
//! oldest lines go. A line that was not written to its end when power failed is cut off and told.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::reply::{ChangeRecord, Outcome, Via};
use sys::whole_file;

use super::lines::Lines;

/// What is kept of it: changes, and bytes.
const CHANGES_MAX: usize = 10_000;
const BYTES_MAX: u64 = 32 << 20;

/// How much goes where there is too much: one in so many.
const PART: usize = 10;

/// The log as the supervisor writes it.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    path: PathBuf,
    lines: Lines,
    count: usize,
    /// Lines that found no room, for later.
    behind: VecDeque<Vec<u8>>,
}

impl ChangeLog {
    /// Where an instance keeps it.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("changes.log")
    }

    /// Has what was written so far outlive a power failure, which takes a disk's time.
    pub(crate) fn sync(directory: &Path) -> io::Result<()> {
        match File::open(Self::path(directory)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            file => file?.sync_data(),
        }
    }

    /// Opens it, and cuts off what was not written to its end.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let path = Self::path(directory);
        let mut open = OpenOptions::new();
        let open = open.read(true).write(true).create(true).truncate(false);
        let file = open.mode(0o600).open(&path)?;
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
            behind: VecDeque::new(),
        })
    }

    /// Writes a line that does not count before [`Self::commit`]; how many bytes it has.
    pub(crate) fn prepare(&mut self, record: &ChangeRecord) -> io::Result<usize> {
        let line = self.line(record)?;
        self.catch_up()?;
        self.make_room(line.len())?;
        let prepared = self.lines.prepare(&line);
        prepared.map_err(|error| self.named(&error))?;
        Ok(line.len())
    }

    /// Has it count.
    pub(crate) fn commit(&mut self, bytes: usize) -> io::Result<()> {
        self.count += 1;
        self.lines.commit(bytes)
    }

    /// Takes it back.
    pub(crate) fn abort(&self) {
        // What is left is written over by the next.
        let _ = self.lines.abort();
    }

    /// Writes down what happened, now or as soon as there is room.
    pub(crate) fn append(&mut self, record: &ChangeRecord) -> io::Result<()> {
        if self.behind.len() < CHANGES_MAX {
            let line = self.line(record)?;
            self.behind.push_back(line);
        }
        self.catch_up()
    }

    /// Writes down what found no room before.
    pub(crate) fn catch_up(&mut self) -> io::Result<()> {
        while let Some(line) = self.behind.pop_front() {
            let written = self.make_room(line.len()).and_then(|()| {
                self.lines.prepare(&line)?;
                self.lines.commit(line.len())
            });
            if let Err(error) = written {
                let _ = self.lines.abort();
                self.behind.push_front(line);
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

    /// Where there is no room for one more, has the oldest go.
    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        let length = self.lines.length();
        let there_is = self.count < CHANGES_MAX && length + bytes as u64 <= BYTES_MAX;
        if there_is {
            return Ok(());
        }
        let text = fs::read(&self.path)?;
        let text = whole(&text);
        let all: Vec<&[u8]> = lines(text).collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        // A link that comes and goes all night leaves what people did where it is.
        order.sort_by_key(|at| !is_of_world(all[*at]));
        let (mut count, mut length) = (all.len(), text.len() as u64);
        let goes = order.into_iter().take_while(|at| {
            let is_much = count > CHANGES_MAX - CHANGES_MAX / PART
                || length > BYTES_MAX - BYTES_MAX / PART as u64;
            count -= 1;
            length -= all[*at].len() as u64 + 1;
            is_much
        });
        let goes: BTreeSet<usize> = goes.collect();
        let stays = all.iter().enumerate().filter(|(at, _)| !goes.contains(at));
        let kept: Vec<u8> = stays
            .flat_map(|(_, line)| [line, &b"\n"[..]].concat())
            .collect();
        whole_file::replace(&self.path, &kept)?;
        let file = OpenOptions::new().write(true).open(&self.path);
        let file = file.map_err(|error| self.named(&error))?;
        self.lines = Lines::new(file, kept.len() as u64);
        self.count = all.len() - goes.len();
        Ok(())
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

/// Whether a line tells of what no person did.
fn is_of_world(line: &[u8]) -> bool {
    let record = serde_json::from_slice::<ChangeRecord>(line);
    record.map_or(true, |record| {
        matches!(record.by.via, Via::Link | Via::Name)
    })
}

/// The generation after the last change of a log that is not open.
pub(crate) fn last_generation(path: &Path) -> u64 {
    last_of(whole(&fs::read(path).unwrap_or_default()))
}

/// Reads the last changes, the oldest first, each with what became of it since.
pub(crate) fn read(path: &Path, last: usize) -> io::Result<Vec<ChangeRecord>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let all: Vec<&[u8]> = lines(whole(&text)).collect();
    let told = all.iter().skip(all.len().saturating_sub(last));
    let mut records: Vec<ChangeRecord> = told
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    settle(&mut records);
    Ok(records)
}

/// Has changes that were to be confirmed say what later lines say of them.
fn settle(records: &mut [ChangeRecord]) {
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

/// What was written to its end.
fn whole(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    &text[..end.map_or(0, |end| end + 1)]
}

fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty())
}

fn last_of(text: &[u8]) -> u64 {
    let mut records = lines(text).rev();
    let last = records.find_map(|line| serde_json::from_slice::<ChangeRecord>(line).ok());
    last.map_or(0, |record| record.generation)
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
    fn what_is_prepared_counts_once_it_is_committed() {
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
            // Power loss may leave a length whose bytes never came.
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
    fn it_stays_within_its_bounds_and_keeps_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        for generation in 1..=20_000 {
            add(&mut log, &record(generation, 3));
            assert!(log.count <= CHANGES_MAX);
        }
        let kept = generations(&log);
        assert_eq!(kept.len(), log.count);
        assert!(kept.len() >= CHANGES_MAX - CHANGES_MAX / PART);
        let first = 20_001 - kept.len() as u64;
        assert!(kept.iter().copied().eq(first..=20_000), "without a gap");
        for generation in 20_001..20_801 {
            add(&mut log, &record(generation, 64 << 10));
            assert!(fs::metadata(&log.path).unwrap().len() <= BYTES_MAX);
        }
        let last = read(&log.path, 2).unwrap();
        assert_eq!(last.len(), 2);
        assert_eq!(last[1].generation, 20_800);
    }

    #[test]
    fn a_link_that_comes_and_goes_takes_no_change_of_a_person_away() {
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
    fn what_finds_no_room_is_written_as_soon_as_there_is_some() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = ChangeLog::open(directory.path()).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let good = std::mem::replace(&mut log.lines, Lines::new(full, 0));
        let error = log.prepare(&record(1, 1)).unwrap_err().to_string();
        assert!(error.contains("changes.log: No space left"), "{error}");
        assert!(log.append(&record(1, 1)).is_err() && !log.behind.is_empty());
        log.lines = good;
        add(&mut log, &record(2, 1));
        assert!(log.behind.is_empty());
        assert_eq!(generations(&log), [1, 2]);
    }

    #[test]
    fn a_change_says_what_became_of_it() {
        let mut records = [record(1, 0), record(2, 0), record(2, 0), record(3, 0)];
        records[1].outcome = Some(Outcome::Pending);
        (records[2].outcome, records[2].of) = (Some(Outcome::Confirmed), Some(2));
        records[3].outcome = Some(Outcome::Pending);
        settle(&mut records);
        let outcomes = records.map(|record| record.outcome);
        let (confirmed, pending) = (Some(Outcome::Confirmed), Some(Outcome::Pending));
        assert_eq!(outcomes, [None, confirmed, confirmed, pending]);
    }
}
