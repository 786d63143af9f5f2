//! A long text in pieces, each compressed as soon as it is written: the metrics of 100,000 rules are
//! 127 MB, a twentieth of that compressed, and a reader decompresses one piece at a time.

use std::fmt;
use std::io;

use axum::body::Bytes;
use lz4_flex::block;

/// Bytes of a piece before compression; each reader decompresses that much at a time.
const PIECE: usize = 16 << 10;

/// A text that is being written.
#[derive(Debug, Default)]
pub struct CompressedBody {
    whole: Vec<Piece>,
    last: Vec<u8>,
}

/// A part of a text.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Uncompressed, because it is short.
    Plain(Bytes),
    /// As an LZ4 block.
    Packed {
        /// Bytes of text.
        length: usize,
        /// The compressed text.
        block: Box<[u8]>,
    },
}

impl Piece {
    /// Bytes of text.
    pub fn length(&self) -> usize {
        match self {
            Self::Plain(text) => text.len(),
            Self::Packed { length, .. } => *length,
        }
    }

    /// Bytes of memory.
    pub fn held(&self) -> usize {
        match self {
            Self::Plain(text) => text.len(),
            Self::Packed { block, .. } => block.len(),
        }
    }

    /// The text.
    pub fn text(&self) -> Bytes {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Packed { length, block } => {
                let text = block::decompress(block, *length);
                text.expect("it was packed here").into()
            }
        }
    }
}

impl CompressedBody {
    /// The text.
    pub fn finish(mut self) -> Vec<Piece> {
        if self.whole.is_empty() {
            self.last.shrink_to_fit();
            return vec![Piece::Plain(self.last.into())];
        }
        self.pack();
        self.whole
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.last.len() == PIECE {
                self.pack();
            }
            let room = PIECE - self.last.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.last.extend_from_slice(now);
            bytes = later;
        }
    }

    fn pack(&mut self) {
        if !self.last.is_empty() {
            self.whole.push(Piece::Packed {
                length: self.last.len(),
                block: block::compress(&self.last).into(),
            });
            self.last.clear();
        }
    }
}

impl FromIterator<Self> for CompressedBody {
    /// Concatenates texts.
    fn from_iter<T: IntoIterator<Item = Self>>(texts: T) -> Self {
        let mut all = Self::default();
        for text in texts {
            if !text.whole.is_empty() {
                all.pack();
                all.whole.extend(text.whole);
            }
            all.write(&text.last);
        }
        all
    }
}

impl io::Write for CompressedBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for CompressedBody {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn unpacked(pieces: &[Piece]) -> Vec<u8> {
        pieces.iter().flat_map(Piece::text).collect()
    }

    #[test]
    fn a_text_is_what_was_written_and_takes_less_room() {
        let mut chunks = CompressedBody::default();
        let mut expected = String::new();
        for number in 0..400_000 {
            let _ = writeln!(chunks, "line {number}");
            expected += &format!("line {number}\n");
        }
        let pieces = chunks.finish();
        let (last, whole) = pieces.split_last().unwrap();
        assert!(whole.len() > 3 && whole.iter().all(|piece| piece.length() == PIECE));
        assert!((1..=PIECE).contains(&last.length()));
        assert_eq!(unpacked(&pieces), expected.as_bytes());
        let held: usize = pieces.iter().map(Piece::held).sum();
        assert!(held < expected.len() / 2, "{held} bytes");
        assert_eq!(unpacked(&CompressedBody::default().finish()), b"");
    }

    #[test]
    fn texts_follow_each_other() {
        let text = |length: usize| {
            let mut text = CompressedBody::default();
            let letters: Vec<u8> = (b'a'..=b'z').cycle().take(length).collect();
            text.write(&letters);
            (text, letters)
        };
        for lengths in [[3, 5, 7], [PIECE, 1, PIECE + 1], [0, 3 * PIECE, 2]] {
            let (texts, letters): (Vec<CompressedBody>, Vec<Vec<u8>>) =
                lengths.map(text).into_iter().unzip();
            let all: CompressedBody = texts.into_iter().collect();
            assert_eq!(unpacked(&all.finish()), letters.concat());
        }
    }
}
