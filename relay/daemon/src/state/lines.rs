//! A file of lines. Each is written so that it does not count yet, without its end, which then needs no
//! room: one for which there is none is refused before anything is done about it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The file, and how much of it counts.
#[derive(Debug)]
pub(crate) struct Lines {
    file: File,
    length: u64,
}

impl Lines {
    /// Goes on behind the first `length` bytes.
    pub(crate) const fn new(file: File, length: u64) -> Self {
        Self { file, length }
    }

    /// Bytes that count.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Writes whole lines so that they do not count yet. What may stand in the file after a failure is
    /// the start of a line.
    pub(crate) fn prepare(&self, lines: &[u8]) -> io::Result<()> {
        let line = lines.strip_suffix(b"\n").unwrap_or(lines);
        let unfinished = [line, b" "].concat();
        self.file.write_all_at(&unfinished, self.length)
    }

    /// Has so many bytes that were prepared count.
    pub(crate) fn commit(&mut self, bytes: usize) -> io::Result<()> {
        self.length += bytes as u64;
        // In the place of a byte that is there: this needs no room.
        self.file.write_all_at(b"\n", self.length - 1)
    }

    /// Takes away what does not count.
    pub(crate) fn abort(&self) -> io::Result<()> {
        self.file.set_len(self.length)
    }
}
