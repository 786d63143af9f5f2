//! Frames as a driver delivers them: BPF_PROG_TEST_RUN with live frames. The program's verdict on a frame is
//! carried out.

use std::os::fd::{AsRawFd, BorrowedFd};

use aya_obj::generated::bpf_cmd;

use crate::Error;
use crate::syscall::{attr, bpf};

/// BPF_F_TEST_XDP_LIVE_FRAMES of linux/bpf.h.
const LIVE_FRAMES: u32 = 1 << 1;

/// Runs an XDP program on `count` copies of a frame, `batch` at a time, as if they arrived by an interface of
/// the calling thread's network namespace, or with 0 by none.
///
/// # Errors
///
/// The kernel's: EINVAL for frames below 14 bytes or above what one buffer holds.
pub fn run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ifindex: u32,
    (count, batch): (u32, u32),
) -> Result<(), Error> {
    // data, data_end, data_meta, ingress_ifindex, rx_queue_index of `struct xdp_md`.
    let context = [0, frame.len() as u32, 0, ifindex, 0];
    let mut attr = attr();
    attr.test.prog_fd = program.as_raw_fd() as u32;
    attr.test.data_in = frame.as_ptr() as u64;
    attr.test.data_size_in = frame.len() as u32;
    attr.test.ctx_in = context.as_ptr() as u64;
    attr.test.ctx_size_in = size_of_val(&context) as u32;
    attr.test.repeat = count;
    attr.test.batch_size = batch;
    attr.test.flags = LIVE_FRAMES;
    // SAFETY: each pointer is valid for the size given beside it.
    let run = unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) };
    run.map(drop).map_err(Error::TestRun)
}
