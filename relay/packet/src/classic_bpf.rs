//! Classic BPF (linux/filter.h), the language of socket filters: its instructions, and programs
//! composed of tests.

/// Loads 4 bytes at `k` of the packet, big-endian.
pub const LOAD_WORD: u16 = 0x20;
/// Loads the byte at `k` of the packet.
pub const LOAD_BYTE: u16 = 0x30;
/// Keeps the bits of `k`.
pub const AND: u16 = 0x54;
/// Skips `jt` instructions if `k` is loaded, `jf` if not.
pub const JUMP_EQUAL: u16 = 0x15;
/// Skips `k` instructions.
pub const JUMP: u16 = 0x05;
/// Multiplies by `k`.
const MULTIPLY: u16 = 0x24;
/// Shifts right by `k` bits.
const SHIFT_RIGHT: u16 = 0x74;
/// Flips the bits that are set in the stored word, which is 0 at first.
const XOR_ASIDE: u16 = 0xac;
/// Stores the loaded word.
const PUT_ASIDE: u16 = 0x07;
/// Ends with the loaded word.
const RETURN_LOADED: u16 = 0x16;
/// Odd, with pseudo-random bits (2^32 divided by the golden ratio): consecutive numbers are spread evenly.
const MULTIPLIER: u32 = 0x9e37_79b1;
/// Ends: the packet is taken with its first `k` bytes, or with 0 not at all.
pub const RETURN: u16 = 0x06;
/// More bytes than any packet has.
pub const WHOLE: u32 = 0x4_0000;
/// Added to an offset: from the network header on, whatever link header there is (`SKF_NET_OFF`).
pub const NETWORK: u32 = -0x10_0000_i32 as u32;
/// Loaded as a byte: the packet's type, such as [`OUTGOING`] (`SKF_AD_OFF + SKF_AD_PKTTYPE`).
pub const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;
/// Loaded as a word: the packet's mark on this host (`SKF_AD_OFF + SKF_AD_MARK`).
pub const MARK: u32 = (-0x1000_i32 + 20) as u32;
/// The type of packets that leave (linux/if_packet.h).
pub const OUTGOING: u32 = 4;
/// The type of packets whose frames are for another host.
pub const OTHER_HOST: u32 = 3;

/// One instruction, `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a test holds.
    pub jt: u8,
    /// Instructions to skip if not.
    pub jf: u8,
    /// Offset, value or mask.
    pub k: u32,
}

/// Builds a program. Packets that it has not taken by its end are refused.
#[derive(Clone, Debug, Default)]
pub struct Program {
    instructions: Vec<Instruction>,
    /// Whether further instructions would be unreachable: a verifier would refuse them.
    has_ended: bool,
}

impl Program {
    /// A program without instructions.
    pub const fn new() -> Self {
        Self {
            instructions: Vec::new(),
            has_ended: false,
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

    /// Keeps these bits of the loaded word.
    pub fn mask(&mut self, bits: u32) {
        self.push(AND, 0, 0, bits);
    }

    /// Refuses the packet unless `value` is loaded.
    pub fn require(&mut self, value: u32) {
        self.push(JUMP_EQUAL, 1, 0, value);
        self.push(RETURN, 0, 0, 0);
    }

    /// Refuses the packet if `value` is loaded.
    pub fn refuse_if(&mut self, value: u32) {
        self.push(JUMP_EQUAL, 0, 1, value);
        self.push(RETURN, 0, 0, 0);
    }

    /// Takes the whole packet if `value` is loaded.
    pub fn take_if(&mut self, value: u32) {
        self.push(JUMP_EQUAL, 0, 1, value);
        self.push(RETURN, 0, 0, WHOLE);
    }

    /// Runs `tests` if `value` is loaded, then ends.
    pub fn only_if(&mut self, value: u32, tests: impl FnOnce(&mut Self)) {
        self.when(value, |inner| {
            tests(inner);
            inner.refuse();
        });
    }

    /// Runs `tests` if `value` is loaded; continues where they do not end.
    pub fn when(&mut self, value: u32, tests: impl FnOnce(&mut Self)) {
        let mut inner = Self::new();
        tests(&mut inner);
        let instructions = inner.instructions;
        match u8::try_from(instructions.len()) {
            Ok(few) => self.push(JUMP_EQUAL, 0, few, value),
            Err(_) => {
                self.push(JUMP_EQUAL, 1, 0, value);
                self.push(JUMP, 0, 0, instructions.len() as u32);
            }
        }
        self.instructions.extend(instructions);
    }

    /// Takes the first `bytes` of the packet.
    pub fn take(&mut self, bytes: u32) {
        if !self.has_ended {
            self.push(RETURN, 0, 0, bytes);
        }
        self.has_ended = true;
    }

    /// Refuses the packet.
    pub fn refuse(&mut self) {
        self.take(0);
    }

    /// Ends with a number that is equal for all packets with the same words at `offsets`.
    pub fn hash(&mut self, offsets: impl IntoIterator<Item = u32>) {
        for offset in offsets {
            self.load_word(offset);
            self.push(XOR_ASIDE, 0, 0, 0);
            self.push(MULTIPLY, 0, 0, MULTIPLIER);
            self.push(PUT_ASIDE, 0, 0, 0);
        }
        // The upper half depends on all bits, the lowest bit on one.
        self.push(SHIFT_RIGHT, 0, 0, 16);
        self.push(RETURN_LOADED, 0, 0, 0);
        self.has_ended = true;
    }

    /// The finished program.
    pub fn finish(mut self) -> Vec<Instruction> {
        self.refuse();
        self.instructions
    }

    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.instructions.push(Instruction { code, jt, jf, k });
        self.has_ended = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does; a load beyond the packet refuses it.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut at, mut loaded, mut aside) = (0, 0_u32, 0);
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
                MULTIPLY => loaded = loaded.wrapping_mul(k),
                SHIFT_RIGHT => loaded >>= k,
                XOR_ASIDE => loaded ^= aside,
                PUT_ASIDE => aside = loaded,
                RETURN_LOADED => return loaded,
                JUMP_EQUAL if loaded == k => at += usize::from(jt),
                JUMP_EQUAL => at += usize::from(jf),
                JUMP => at += offset,
                RETURN => return k,
                _ => return 0,
            }
        }
        panic!("a program ends with a return");
    }

    #[test]
    fn a_hash_distinguishes_words_and_spreads_them() {
        let mut program = Program::new();
        program.hash([0, 4]);
        let program = program.finish();
        let of = |source: u8, group: u8, rest: u8| {
            run(&program, &[10, 0, 0, source, 239, 1, 1, group, rest])
        };
        assert_eq!(of(5, 1, 0), of(5, 1, 9));
        assert_ne!(of(5, 1, 0), of(1, 5, 0));
        for workers in [2, 3, 4] {
            let mut shares = vec![0; workers as usize];
            (0..120).for_each(|group| shares[(of(5, group, 0) % workers) as usize] += 1);
            let even = 120 / workers;
            assert!(
                shares
                    .iter()
                    .all(|share| (even * 3 / 4..=even * 5 / 4).contains(share)),
                "{shares:?}"
            );
        }
    }

    #[test]
    fn tests_of_any_length_are_passed_over() {
        for length in [1, 255, 256, 1000] {
            let mut program = Program::new();
            program.load_byte(0);
            program.when(1, |one| {
                (0..length - 1).for_each(|_| one.load_byte(1));
                one.load_byte(2);
            });
            program.take_if(7);
            let program = program.finish();
            assert_eq!(run(&program, &[1, 0, 7]), WHOLE, "{length}");
            assert_eq!(run(&program, &[1, 7, 0]), 0, "{length}");
            assert_eq!(run(&program, &[7, 0, 0]), WHOLE, "{length}");
        }
    }

    #[test]
    fn tests_take_and_refuse_the_right_packets() {
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
