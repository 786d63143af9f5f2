//! A filter for a packet socket that also counts what no counter of the kernel shows: the datagrams in the
//! super-packets that it lets in. A full receive ring drops a super-packet as one
//! packet.
//!
//! The filter itself is classic BPF, which needs no privilege; where BPF is allowed, it is
//! translated one by one, with the counting behind its acceptance.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use aya_obj::generated::{
    BPF_F_MMAPABLE, BPF_PSEUDO_MAP_VALUE, bpf_insn, bpf_map_type, bpf_prog_type,
};
use packet::classic_bpf::{
    AND, Instruction, JUMP, JUMP_EQUAL, LOAD_BYTE, LOAD_WORD, MARK, NETWORK, PACKET_TYPE, RETURN,
    WHOLE,
};

use packet::{ipv6, udp};
use sys::memory::Array;

use crate::Error;
use crate::syscall::{create_array, instruction, load, map_array};

const NAME: &str = "tap_hidden";

/// Offsets in `struct __sk_buff`.
const LENGTH: i16 = 0;
const TYPE: i16 = 4;
const MARK_AT: i16 = 8;
const GSO_SIZE: i16 = 176;

/// Counts the datagrams of super-packets beyond the first of each.
#[derive(Debug)]
pub struct HiddenDatagrams {
    map: OwnedFd,
    count: Array<u64>,
}

impl HiddenDatagrams {
    /// Makes a counter at 0.
    ///
    /// # Errors
    ///
    /// [`Error::MapOperation`]; `EPERM` where BPF is not allowed.
    pub fn new() -> Result<Self, Error> {
        let kind = bpf_map_type::BPF_MAP_TYPE_ARRAY;
        let created = create_array(kind, 8, BPF_F_MMAPABLE, None);
        let failed = |operation| {
            move |error| Error::MapOperation {
                name: NAME,
                operation,
                error,
            }
        };
        let map = created.map_err(failed("create"))?;
        let count = map_array(map.as_fd(), 1).map_err(failed("mmap"))?;
        Ok(Self { map, count })
    }

    /// The count so far.
    pub fn read(&self) -> u64 {
        self.count.read(0)
    }

    /// Makes a program of a classic filter of loads, `and`, `jump if equal`, jumps and returns of nothing or
    /// everything, for packets whose IP header starts at `ip_offset`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for another instruction, else the kernel's.
    pub fn program(&self, filter: &[Instruction], ip_offset: u32) -> io::Result<OwnedFd> {
        let program = self.translate(filter, ip_offset as i32)?;
        load(bpf_prog_type::BPF_PROG_TYPE_SOCKET_FILTER, &program)
    }

    fn translate(&self, filter: &[Instruction], ip_offset: i32) -> io::Result<Vec<bpf_insn>> {
        let accept = filter.len();
        let counting = self.counting(ip_offset);
        let refuse = accept + counting.len();
        // LD_ABS wants the context in r6, and leaves what it loads in r0.
        let mut program = vec![instruction(0xbf, (6, 1), 0, 0)];
        for (at, one) in filter.iter().enumerate() {
            let to = |target: usize| (target - at - 1) as i16;
            let constant = one.k as i32;
            program.push(match (one.code, one.jt, one.jf, one.k) {
                (LOAD_BYTE, .., PACKET_TYPE) => instruction(0x61, (0, 6), TYPE, 0),
                (LOAD_WORD, .., MARK) => instruction(0x61, (0, 6), MARK_AT, 0),
                (LOAD_WORD | LOAD_BYTE, ..) => instruction(one.code as u8, (0, 0), 0, constant),
                (AND, ..) => instruction(AND as u8, (0, 0), 0, constant),
                // JMP32, for words with the highest bit set: equal, not equal.
                (JUMP_EQUAL, jt, 0, _) => instruction(0x16, (0, 0), jt.into(), constant),
                (JUMP_EQUAL, 0, jf, _) => instruction(0x56, (0, 0), jf.into(), constant),
                (JUMP, .., over) => instruction(0x05, (0, 0), over as i16, 0),
                (RETURN, _, _, 0) => instruction(0x05, (0, 0), to(refuse), 0),
                (RETURN, ..) => instruction(0x05, (0, 0), to(accept), 0),
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            });
        }
        program.extend(counting);
        program.push(instruction(0xb7, (0, 0), 0, 0));
        program.push(instruction(0x95, (0, 0), 0, 0));
        Ok(program)
    }

    /// Adds `(payload - 1) / gso_size` of a super-packet and accepts.
    fn counting(&self, ip_offset: i32) -> Vec<bpf_insn> {
        let map = self.map.as_raw_fd();
        vec![
            // r7 = gso_size; not a super-packet: accept
            instruction(0x61, (7, 6), GSO_SIZE, 0),
            instruction(0x15, (7, 0), 18, 0),
            // r0 = bytes of the headers
            instruction(LOAD_BYTE as u8, (0, 0), 0, NETWORK as i32),
            instruction(0xbf, (1, 0), 0, 0),
            instruction(0x77, (1, 0), 0, 4),
            instruction(0x55, (1, 0), 4, 4),
            instruction(0x57, (0, 0), 0, 0xf),
            instruction(0x67, (0, 0), 0, 2),
            instruction(0x07, (0, 0), 0, udp::HEADER as i32),
            instruction(0x05, (0, 0), 1, 0),
            instruction(0xb7, (0, 0), 0, ipv6::HEADER as i32 + udp::HEADER as i32),
            instruction(0x07, (0, 0), 0, ip_offset),
            // r1 = bytes of the payload but one; none: accept
            instruction(0x61, (1, 6), LENGTH, 0),
            instruction(0x1f, (1, 0), 0, 0),
            instruction(0xc5, (1, 0), 5, 1),
            instruction(0x07, (1, 0), 0, -1),
            instruction(0x3f, (1, 7), 0, 0),
            // r2 = the counter
            instruction(0x18, (2, BPF_PSEUDO_MAP_VALUE as u8), 0, map),
            instruction(0, (0, 0), 0, 0),
            // lock *r2 += r1
            instruction(0xdb, (2, 1), 0, 0),
            // accept
            instruction(0xb7, (0, 0), 0, WHOLE as i32),
            instruction(0x95, (0, 0), 0, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use packet::classic_bpf::OUTGOING;

    use super::*;

    const fn classic(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    #[test]
    fn a_filter_of_all_instructions_loads() {
        if crate::probe::probe().is_err() {
            eprintln!("skipped: needs BPF");
            return;
        }
        let filter = [
            classic(LOAD_WORD, 0, 0, MARK),
            classic(LOAD_BYTE, 0, 0, PACKET_TYPE),
            classic(JUMP_EQUAL, 1, 0, OUTGOING),
            classic(JUMP, 0, 0, 1),
            classic(RETURN, 0, 0, 0),
            classic(LOAD_BYTE, 0, 0, 23),
            classic(JUMP_EQUAL, 1, 0, 17),
            classic(RETURN, 0, 0, 0),
            classic(LOAD_WORD, 0, 0, 30),
            classic(AND, 0, 0, 0xf000_0000),
            classic(JUMP_EQUAL, 0, 1, 0xe000_0000),
            classic(RETURN, 0, 0, WHOLE),
            classic(RETURN, 0, 0, 0),
        ];
        let counter = HiddenDatagrams::new().unwrap();
        counter.program(&filter, 14).unwrap();
        assert_eq!(counter.read(), 0);
    }

    #[test]
    fn an_unknown_instruction_is_refused() {
        let Ok(counter) = HiddenDatagrams::new() else {
            eprintln!("skipped: needs BPF");
            return;
        };
        let refused = counter.program(&[classic(0x80, 0, 0, 0)], 14);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
