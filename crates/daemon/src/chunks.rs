//! A long text in pieces, each with a mapping of its own that is gone as soon as nobody needs it: a
//! text of megabytes in one piece is copied as it grows, and one in small pieces stays in the heap.

use std::fmt;
use std::io;

use axum::body::Bytes;

/// Bytes of a piece: from this size on the allocator makes mappings ([`sys::heap::keep_little`]).
const PIECE: usize = 1 << 20;

/// A text that is being written.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    whole: Vec<Bytes>,
    last: Vec<u8>,
}

impl Chunks {
    /// The text.
    pub(crate) fn finish(mut self) -> Vec<Bytes> {
        self.last.shrink_to_fit();
        self.whole.push(self.last.into());
        self.whole
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.last.len() == self.last.capacity() {
                let next = Vec::with_capacity(PIECE);
                let full = std::mem::replace(&mut self.last, next);
                if !full.is_empty() {
                    self.whole.push(full.into());
                }
            }
            let room = self.last.capacity() - self.last.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.last.extend_from_slice(now);
            bytes = later;
        }
    }
}

impl io::Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for Chunks {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn a_text_is_what_was_written_in_pieces_of_one_size() {
        let mut chunks = Chunks::default();
        let mut expected = String::new();
        for number in 0..400_000 {
            let _ = writeln!(chunks, "line {number}");
            expected += &format!("line {number}\n");
        }
        let pieces = chunks.finish();
        let (last, whole) = pieces.split_last().unwrap();
        assert!(whole.len() > 3 && whole.iter().all(|piece| piece.len() == PIECE));
        assert!(!last.is_empty() && last.len() <= PIECE);
        assert_eq!(pieces.concat(), expected.as_bytes());
        assert_eq!(Chunks::default().finish().concat(), b"");
    }
}
