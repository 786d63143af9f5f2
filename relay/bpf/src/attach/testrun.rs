//! Runs the loaded program on one packet, without an interface: BPF_PROG_TEST_RUN.
//!
//! Clones that the program makes do leave by their interfaces; the packet itself is returned with the verdict.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya_obj::generated::bpf_cmd;

use super::live;
use super::program::{PASS, RELAY};
use super::xdp::{OBJECT, TRACEPOINTS};
use crate::Error;
use crate::maps::{Capacity, Maps};
use crate::object::{Object, cpus};
use crate::program::Program;
use crate::syscall::{attr, bpf, program_info};
use crate::xdp::Xdp;

/// `struct __sk_buff` of linux/bpf.h, whose layout never changes, in 4-byte words.
const CONTEXT_WORDS: usize = 48;
const IFINDEX: usize = 10;
const RECEIVED: usize = 38;
const GSO_SEGMENTS: usize = 41;
const GSO_SIZE: usize = 44;

/// The program's verdict and the resulting packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the tc hook would do.
    pub action: Action,
    /// The packet after the program.
    pub packet: Vec<u8>,
    /// Mean duration of one run in nanoseconds.
    pub duration_ns: u32,
}

/// The program's return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// To the next program or the stack (TC_ACT_UNSPEC).
    Pass,
    /// Consumed (TC_ACT_SHOT).
    Consume,
    /// Out of the last output's interface (TC_ACT_REDIRECT).
    Redirect,
    /// Anything else, which the program never returns.
    Other(u32),
}

/// A packet as the device hands it over.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The frame, from its Ethernet header on, at least 14 bytes.
    pub frame: &'a [u8],
    /// Interface it arrives on; must exist in the calling thread's network namespace.
    pub ifindex: u32,
    /// Payload bytes per segment of a super-packet, 0 for an ordinary one.
    pub gso_size: u32,
    /// Segments of a super-packet.
    pub gso_segments: u32,
    /// The kernel's receive timestamp in nanoseconds of `CLOCK_REALTIME`, 0 for none.
    pub received_ns: u64,
    /// Runs, at least 1.
    pub repeat: u32,
}

/// What the kernel reports of the loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Instructions the verifier walked; its limit is a million.
    pub verified_instructions: u32,
    /// Bytes of the program after verification.
    pub translated_bytes: u32,
    /// Bytes of machine code.
    pub native_bytes: u32,
}

impl Program {
    /// Asks the kernel for the program's size and the verifier's effort.
    ///
    /// # Errors
    ///
    /// When the kernel does not report it.
    pub fn facts(&self) -> Result<Facts, Error> {
        facts(self.fd())
    }

    /// Runs the program on a packet.
    ///
    /// # Errors
    ///
    /// The kernel's: EINVAL for frames below 14 bytes or above a page.
    pub fn test_run(&self, input: Input<'_>) -> Result<Outcome, Error> {
        let mut context = [0u32; CONTEXT_WORDS];
        context[IFINDEX] = input.ifindex;
        let received = input.received_ns.to_ne_bytes();
        for (word, bytes) in context[RECEIVED..].iter_mut().zip(received.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        context[GSO_SEGMENTS] = input.gso_segments;
        context[GSO_SIZE] = input.gso_size;
        let mut packet = vec![0; input.frame.len() + 256];
        let mut attr = attr();
        attr.test.prog_fd = self.fd().as_raw_fd() as u32;
        attr.test.data_in = input.frame.as_ptr() as u64;
        attr.test.data_size_in = input.frame.len() as u32;
        attr.test.data_out = packet.as_mut_ptr() as u64;
        attr.test.data_size_out = packet.len() as u32;
        attr.test.ctx_in = context.as_ptr() as u64;
        attr.test.ctx_size_in = size_of_val(&context) as u32;
        attr.test.repeat = input.repeat;
        // SAFETY: each pointer is valid for the size given beside it.
        let run = unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) };
        run.map_err(Error::TestRun)?;
        // SAFETY: reads the union member that the command filled in.
        let result = unsafe { attr.test };
        packet.truncate(result.data_size_out as usize);
        Ok(Outcome {
            action: Action::from(result.retval),
            packet,
            duration_ns: result.duration,
        })
    }
}

fn facts(program: BorrowedFd<'_>) -> Result<Facts, Error> {
    let info = program_info(program).map_err(Error::TestRun)?;
    Ok(Facts {
        verified_instructions: info.verified_insns,
        translated_bytes: info.xlated_prog_len,
        native_bytes: info.jited_prog_len,
    })
}

impl Xdp {
    /// Verifies all of the hook's programs, and returns what the kernel reports of each.
    ///
    /// # Errors
    ///
    /// The verifier's.
    pub fn verify(capacity: Capacity) -> Result<Vec<(&'static str, Facts)>, Error> {
        let mut object = Object::make(OBJECT, &Maps::sizes(capacity, cpus()?), None)?;
        let names = [RELAY, PASS].into_iter().chain(TRACEPOINTS);
        let mut verified = Vec::new();
        for name in names {
            object.verify(name)?;
            verified.push((name, facts(object.program(name)?.as_fd())?));
        }
        Ok(verified)
    }

    /// Injects a frame on an interface of the calling thread's network namespace as a driver would hand it over:
    /// what the program passes on goes to the stack, including tc.
    ///
    /// # Errors
    ///
    /// The kernel's: EINVAL for frames below 14 bytes or above what one buffer holds.
    pub fn inject(&self, frame: &[u8], ifindex: u32) -> Result<(), Error> {
        live::run(self.fd(), frame, ifindex, (1, 1))
    }
}

impl From<u32> for Action {
    fn from(value: u32) -> Self {
        match value {
            u32::MAX => Self::Pass,
            2 => Self::Consume,
            7 => Self::Redirect,
            other => Self::Other(other),
        }
    }
}
