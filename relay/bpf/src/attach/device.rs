//! What a device puts in front of IP, as far as the kernel tells: its type, and the length of its link
//! header, which rtnetlink does not show. Nothing is sent by a device to find out.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use aya_obj::generated::{bpf_cmd, bpf_insn, bpf_prog_type};
use sys::ifreq::device_type;

use crate::syscall::{attr, bpf, instruction, load};

/// Types (linux/if_arp.h) of devices whose frames have an Ethernet header: Ethernet, loopback.
const ETHERNET: [u16; 2] = [1, 772];
/// PPP, which has no header although it asks for the room of one.
const PPP: u16 = 512;
/// Types that carry bare IP, as the kernel's `dev_is_mac_header_xmit` (include/linux/if_arp.h) has them:
/// tunnels of five kinds, void, none (tun), raw IP, PPP.
const BARE: [u16; 9] = [768, 769, 776, 778, 823, 0xffff, 0xfffe, 519, PPP];
/// Types among them whose devices have a link header of their own if their settings say so.
const GRE: [u16; 2] = [778, 823];

/// The longest link header that is distinguished.
const LONGEST: i32 = 255;
/// `mark` in `struct __sk_buff`: which device is asked for.
const MARK: usize = 2;

/// What stands in front of IP in packets of a device, and who can write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// An Ethernet header.
    Ethernet,
    /// Nothing.
    Bare,
    /// What only the device's driver can write.
    Foreign,
}

/// Says so for a device of that type and header length, if that is known. `is_open` says that it has no
/// single peer.
pub fn framing(device: u16, header: Option<u32>, is_open: bool) -> Framing {
    match header {
        _ if ETHERNET.contains(&device) => Framing::Ethernet,
        Some(0) if BARE.contains(&device) => Framing::Bare,
        _ if device == PPP => Framing::Bare,
        None if BARE.contains(&device) && !(is_open && GRE.contains(&device)) => Framing::Bare,
        _ => Framing::Foreign,
    }
}

/// Returns whether packets of the interface begin with an Ethernet header. An interface that does not
/// exist is taken for Ethernet; attaching to it fails anyway.
pub(crate) fn is_ethernet(ifindex: u32) -> bool {
    device_type(ifindex).is_none_or(|device| ETHERNET.contains(&device))
}

/// The length of the link header that packet sockets have to bring for an interface of the calling
/// thread's network namespace (`hard_header_len`); `None` where that cannot be found out: before Linux
/// 5.12 and without BPF.
pub fn header_length(ifindex: u32) -> Option<u32> {
    static PROGRAM: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let program =
        PROGRAM.get_or_init(|| load(bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS, &measuring()).ok());
    let frame = [0_u8; 64];
    let mut context = [0_u32; 48];
    context[MARK] = ifindex;
    let mut attr = attr();
    attr.test.prog_fd = program.as_ref()?.as_fd().as_raw_fd() as u32;
    attr.test.data_in = frame.as_ptr() as u64;
    attr.test.data_size_in = frame.len() as u32;
    attr.test.ctx_in = context.as_ptr() as u64;
    attr.test.ctx_size_in = size_of_val(&context) as u32;
    attr.test.repeat = 1;
    // SAFETY: each pointer is valid for the size given beside it.
    unsafe { bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr) }.ok()?;
    // SAFETY: reads the union member that the command filled in.
    let length = unsafe { attr.test }.retval;
    (length < LONGEST as u32).then_some(length)
}

/// A program that asks `bpf_check_mtu` for ever longer packets: those of MTU and header length are the last
/// that fit.
fn measuring() -> Vec<bpf_insn> {
    const CHECK_MTU: i32 = 163;
    let ask = |length: (u8, u8)| {
        [
            // *(r10 - 4) = 0; check_mtu(ctx, ctx->mark, r10 - 4, length, 0)
            instruction(0x62, (10, 0), -4, 0),
            instruction(0xbf, (1, 6), 0, 0),
            instruction(0x61, (2, 6), 4 * MARK as i16, 0),
            instruction(0xbf, (3, 10), 0, 0),
            instruction(0x07, (3, 0), 0, -4),
            instruction(0xbf, (4, length.0), 0, 0),
            instruction(0x0f, (4, length.1), 0, 0),
            instruction(0xb7, (5, 0), 0, 0),
            instruction(0x85, (0, 0), 0, CHECK_MTU),
        ]
    };
    let mut program = vec![
        // r8 = -ctx->len; r7 = 0
        instruction(0xbf, (6, 1), 0, 0),
        instruction(0x61, (8, 6), 0, 0),
        instruction(0x87, (8, 0), 0, 0),
        instruction(0xb7, (7, 0), 0, 0),
    ];
    // A packet of no length at all: the MTU is told. No such device: end.
    program.extend(ask((8, 7)));
    program.extend([
        instruction(0x15, (0, 0), 2, 0),
        instruction(0xb7, (0, 0), 0, LONGEST),
        instruction(0x95, (0, 0), 0, 0),
        // r8 += MTU
        instruction(0x61, (1, 10), -4, 0),
        instruction(0x0f, (8, 1), 0, 0),
        // again: r7 += 1; one byte more, as long as that fits
        instruction(0x07, (7, 0), 0, 1),
        instruction(0x25, (7, 0), 10, LONGEST),
    ]);
    program.extend(ask((8, 7)));
    program.extend([
        instruction(0x15, (0, 0), -12, 0),
        // The last that fitted was one less.
        instruction(0x07, (7, 0), 0, -1),
        instruction(0xbf, (0, 7), 0, 0),
        instruction(0x95, (0, 0), 0, 0),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_has_an_ethernet_header() {
        if crate::probe::probe().is_err() {
            eprintln!("skipped: needs BPF");
            return;
        }
        assert_eq!(header_length(1), Some(14));
        assert_eq!(header_length(u32::MAX / 2), None);
    }
}
