//! Classic BPF (linux/filter.h), in which socket filters are written: its instructions, and programs
//! put together of tests.

/// Loads 4 bytes at `k` of the packet, big-endian.
pub const LOAD_WORD: u16 = 0x20;
/// Loads the byte at `k` of the packet.
pub const LOAD_BYTE: u16 = 0x30;
/// Keeps the bits of `k`.
pub const AND: u16 = 0x54;
/// Skips `jt` instructions if `k` is loaded, `jf` if not.
pub const JUMP_EQUAL: u16 = 0x15;
/// Ends: the packet is taken with its first `k` bytes, or with 0 not at all.
pub const RETURN: u16 = 0x06;
/// More bytes than any packet has.
pub const WHOLE: u32 = 0x4_0000;
/// Added to an offset: from the network header on, whatever link header there is (`SKF_NET_OFF`).
pub const NETWORK: u32 = -0x10_0000_i32 as u32;
/// Loaded as a byte: the packet's type, such as [`OUTGOING`] (`SKF_AD_OFF + SKF_AD_PKTTYPE`).
pub const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;
/// The type of packets that leave (linux/if_packet.h).
pub const OUTGOING: u32 = 4;

/// One instruction, `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// How far to jump if a test holds.
    pub jt: u8,
    /// How far to jump if not.
    pub jf: u8,
    /// Offset, value or mask.
    pub k: u32,
}

/// A program in the making. What it does not take by its end it refuses.
#[derive(Clone, Debug, Default)]
pub struct Program {
    instructions: Vec<Instruction>,
}

impl Program {
    /// A program without instructions.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            instructions: Vec::new(),
        }
    }

    /// Loads the byte at `offset`.
    pub fn load_byte(&mut self, offset: u32) {
        self.push(LOAD_BYTE, 0, 0, offset);
    }

    /// Loads the big-endian word at `offset`.
    pub fn load_word(&mut self, offset: u32) {
        self.push(LOAD_WORD, 0, 0, offset);
    }

    /// Keeps these bits of what is loaded.
    pub fn mask(&mut self, bits: u32) {
        self.push(AND, 0, 0, bits);
    }

    /// Refuses the packet unless `value` is loaded.
    pub fn require(&mut self, value: u32) {
        self.push(JUMP_EQUAL, 1, 0, value);
        self.refuse();
    }

    /// Refuses the packet if `value` is loaded.
    pub fn refuse_if(&mut self, value: u32) {
        self.push(JUMP_EQUAL, 0, 1, value);
        self.refuse();
    }

    /// Takes the whole packet if `value` is loaded.
    pub fn take_if(&mut self, value: u32) {
        self.push(JUMP_EQUAL, 0, 1, value);
        self.take(WHOLE);
    }

    /// Does what `tests` do if `value` is loaded, then ends.
    pub fn only_if(&mut self, value: u32, tests: impl FnOnce(&mut Self)) {
        let mut inner = Self::new();
        tests(&mut inner);
        inner.refuse();
        self.push(JUMP_EQUAL, 0, inner.instructions.len() as u8, value);
        self.instructions.extend(inner.instructions);
    }

    /// Takes the first `bytes` of the packet.
    pub fn take(&mut self, bytes: u32) {
        self.push(RETURN, 0, 0, bytes);
    }

    /// The finished program.
    #[must_use]
    pub fn finish(mut self) -> Vec<Instruction> {
        self.refuse();
        self.instructions
    }

    fn refuse(&mut self) {
        self.push(RETURN, 0, 0, 0);
    }

    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.instructions.push(Instruction { code, jt, jf, k });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does; a load beyond the packet refuses it.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        while let Some(Instruction { code, jt, jf, k }) = program.get(at).copied() {
            at += 1;
            let offset = k as usize;
            let word = packet.get(offset..).and_then(<[u8]>::first_chunk);
            match code {
                LOAD_BYTE if offset < packet.len() => loaded = u32::from(packet[offset]),
                LOAD_WORD if word.is_some() => {
                    loaded = word.copied().map_or(0, u32::from_be_bytes);
                }
                AND => loaded &= k,
                JUMP_EQUAL if loaded == k => at += usize::from(jt),
                JUMP_EQUAL => at += usize::from(jf),
                RETURN => return k,
                _ => return 0,
            }
        }
        panic!("a program ends with a return");
    }

    #[test]
    fn tests_take_and_refuse_what_they_say() {
        let mut program = Program::new();
        program.load_byte(0);
        program.mask(0xf0);
        program.only_if(0x60, |six| {
            six.load_byte(1);
            six.take_if(0xff);
        });
        program.require(0x40);
        program.load_word(2);
        program.refuse_if(7);
        program.take(5);
        let program = program.finish();
        assert_eq!(run(&program, &[0x65, 0xff]), WHOLE);
        assert_eq!(run(&program, &[0x65, 0xfe]), 0);
        assert_eq!(run(&program, &[0x45, 0, 0, 0, 0, 8]), 5);
        assert_eq!(run(&program, &[0x45, 0, 0, 0, 0, 7]), 0);
        assert_eq!(run(&program, &[0x35, 0, 0, 0, 0, 8]), 0);
        assert_eq!(run(&program, &[0x45, 0]), 0);
    }
}
