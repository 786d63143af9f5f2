//! A file of lines. Each is first written without its end, so that it is not valid yet; the end then needs
//! no room: a full disk is noticed before the change is made.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The file, and the length of its valid part.
#[derive(Debug)]
pub(crate) struct Lines {
    file: File,
    length: u64,
}

impl Lines {
    /// Continues after the first `length` bytes.
    pub(crate) const fn new(file: File, length: u64) -> Self {
        Self { file, length }
    }

    /// The valid bytes.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Writes whole lines that are not valid yet. After a failure the file may contain the start of a
    /// line.
    pub(crate) fn prepare(&self, lines: &[u8]) -> io::Result<()> {
        let line = lines.strip_suffix(b"\n").unwrap_or(lines);
        let unfinished = [line, b" "].concat();
        self.file.write_all_at(&unfinished, self.length)
    }

    /// Makes the prepared bytes valid.
    pub(crate) fn commit(&mut self, bytes: usize) -> io::Result<()> {
        self.length += bytes as u64;
        // Overwrites an existing byte: this needs no room.
        self.file.write_all_at(b"\n", self.length - 1)
    }

    /// Removes what is not valid.
    pub(crate) fn abort(&self) -> io::Result<()> {
        self.file.set_len(self.length)
    }
}
