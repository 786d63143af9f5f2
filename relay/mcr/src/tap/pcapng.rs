//! Writing pcapng (draft-ietf-opsawg-pcapng): a section, an interface block per point, a packet block
//! per packet, at the end a statistics block per point. Little-endian, nanoseconds.

use std::io::{self, Write};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const COMMENT: u16 = 1;
const ETHERNET: u16 = 1;
const RAW_IP: u16 = 101;

/// A file being written.
pub(crate) struct Pcapng<W> {
    out: W,
    block: Vec<u8>,
    /// Bytes written so far.
    pub(crate) written: u64,
}

/// One packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Captured<'a> {
    /// Number of its interface block.
    pub(crate) interface: u32,
    pub(crate) at_ns: u64,
    pub(crate) bytes: &'a [u8],
    /// Bytes it had before it was truncated.
    pub(crate) length: usize,
    /// Whether it left rather than arrived.
    pub(crate) outbound: bool,
}

impl<W: Write> Pcapng<W> {
    /// Begins a file.
    pub(crate) fn begin(out: W, comment: &str) -> io::Result<Self> {
        let mut file = Self {
            out,
            block: Vec::new(),
            written: 0,
        };
        file.put(&0x1a2b_3c4d_u32.to_le_bytes());
        file.put(&1u16.to_le_bytes());
        file.put(&0u16.to_le_bytes());
        file.put(&u64::MAX.to_le_bytes());
        file.option(COMMENT, comment.as_bytes());
        let program = concat!("mcr ", env!("CARGO_PKG_VERSION"));
        file.option(4, program.as_bytes());
        file.end_options();
        file.write(SECTION)?;
        Ok(file)
    }

    /// Describes the next interface; they are numbered from 0.
    pub(crate) fn interface(
        &mut self,
        name: &str,
        comment: &str,
        ethernet: bool,
        snap_length: u32,
    ) -> io::Result<()> {
        let link = if ethernet { ETHERNET } else { RAW_IP };
        self.put(&link.to_le_bytes());
        self.put(&[0, 0]);
        self.put(&snap_length.to_le_bytes());
        self.option(2, name.as_bytes());
        self.option(3, comment.as_bytes());
        self.option(COMMENT, comment.as_bytes());
        self.option(9, &[9]);
        self.end_options();
        self.write(INTERFACE)
    }

    /// Adds a packet.
    pub(crate) fn packet(&mut self, packet: Captured<'_>) -> io::Result<()> {
        self.put(&packet.interface.to_le_bytes());
        self.put(&((packet.at_ns >> 32) as u32).to_le_bytes());
        self.put(&(packet.at_ns as u32).to_le_bytes());
        self.put(&(packet.bytes.len() as u32).to_le_bytes());
        self.put(&(packet.length as u32).to_le_bytes());
        self.put(packet.bytes);
        self.pad();
        let direction: u32 = if packet.outbound { 2 } else { 1 };
        self.option(2, &direction.to_le_bytes());
        self.end_options();
        self.write(PACKET)
    }

    /// Writes how many packets an interface received and how many the capture lost.
    pub(crate) fn statistics(
        &mut self,
        interface: u32,
        at_ns: u64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        self.put(&interface.to_le_bytes());
        self.put(&((at_ns >> 32) as u32).to_le_bytes());
        self.put(&(at_ns as u32).to_le_bytes());
        self.option(4, &received.to_le_bytes());
        self.option(7, &dropped.to_le_bytes());
        self.end_options();
        self.write(STATISTICS)
    }

    /// Flushes the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    fn end_options(&mut self) {
        self.put(&[0; 4]);
    }

    fn write(&mut self, kind: u32) -> io::Result<()> {
        let length = (self.block.len() as u32 + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&length)?;
        self.written += 12 + self.block.len() as u64;
        self.block.clear();
        Ok(())
    }
}

/// How many bytes at the beginning are whole blocks.
pub(crate) fn whole_blocks(bytes: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(&[.., a, b, c, d]) = bytes.get(whole..).and_then(|rest| rest.first_chunk::<8>())
    {
        let end = whole + (u32::from_le_bytes([a, b, c, d]) as usize).max(12);
        if end > bytes.len() {
            break;
        }
        whole = end;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_their_length_twice_in_whole_words() {
        let mut bytes = Vec::new();
        let mut file = Pcapng::begin(&mut bytes, "abc").unwrap();
        file.interface("eth0", "input", true, 0).unwrap();
        file.packet(Captured {
            interface: 0,
            at_ns: 1,
            bytes: &[1, 2, 3],
            length: 9,
            outbound: false,
        })
        .unwrap();
        file.statistics(0, 2, 1, 0).unwrap();
        let mut rest = bytes.as_slice();
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let length = word(4) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(length - 4) as usize, length);
            kinds.push(word(0));
            rest = &rest[length..];
        }
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET, STATISTICS]);
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(whole_blocks(&bytes), bytes.len());
        assert!(cut.starts_with(&bytes[..whole_blocks(cut)]) && whole_blocks(cut) > 0);
        assert_eq!(whole_blocks(&bytes[..7]), 0);
    }
}
