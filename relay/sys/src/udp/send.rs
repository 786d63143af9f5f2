//! Sends many datagrams with one system call.

use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// One message of a batch: a range of the buffer, cut by the kernel into datagrams of
/// `segment` bytes (UDP_SEGMENT) or, with 0, sent as one datagram.
#[derive(Clone, Debug)]
pub struct Message {
    /// The bytes to send.
    pub bytes: Range<usize>,
    /// Bytes per datagram; 0 for one datagram.
    pub segment: u16,
}

const CONTROL_BYTES: usize = 24;

/// One ancillary message, aligned as cmsghdr wants it.
#[repr(align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// The arrays sendmmsg needs, sized once.
pub struct SendBatch {
    headers: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    controls: Vec<Control>,
}

// SAFETY: the raw pointers inside `headers` and `vectors` are written anew from borrowed data
// before each system call and never read at any other time, so moving them between threads moves
// only dead values.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Makes room for `capacity` messages a call.
    pub fn new(capacity: usize) -> Self {
        // SAFETY: mmsghdr and iovec are plain C structs for which all zeroes (null pointers, zero
        // lengths) is a value.
        let (header, vector) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::iovec>()) };
        Self {
            headers: vec![header; capacity],
            vectors: vec![vector; capacity],
            controls: vec![Control([0; CONTROL_BYTES]); capacity],
        }
    }

    /// Sends the messages, at most the batch's capacity, on a connected socket and returns how
    /// many the kernel took.
    ///
    /// # Errors
    /// That of the first message; an error of a later one shows at the next call.
    ///
    /// # Panics
    /// If a message's range lies outside `buffer`.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &[u8],
        messages: &[Message],
    ) -> io::Result<usize> {
        let count = messages.len().min(self.headers.len());
        for (index, message) in messages[..count].iter().enumerate() {
            self.prepare(index, &buffer[message.bytes.clone()], message.segment);
        }
        // SAFETY: the first `count` headers point at entries of `vectors` and `controls`, which
        // `self` owns and which do not move during the call, and at `buffer`, which is borrowed
        // for the call. sendmmsg only reads what they point at and writes msg_len.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                0,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn prepare(&mut self, index: usize, bytes: &[u8], segment: u16) {
        self.vectors[index] = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let header = &mut self.headers[index].msg_hdr;
        header.msg_iov = &raw mut self.vectors[index];
        header.msg_iovlen = 1;
        if segment == 0 || bytes.len() <= usize::from(segment) {
            header.msg_control = std::ptr::null_mut();
            header.msg_controllen = 0;
        } else {
            let control = &mut self.controls[index];
            control.fill(segment);
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
    }
}

impl Control {
    /// Writes `cmsghdr { len, SOL_UDP, UDP_SEGMENT }` and the segment size behind it.
    fn fill(&mut self, segment: u16) {
        // SAFETY: CMSG_LEN is arithmetic on its argument and dereferences nothing.
        let length = unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as usize;
        let (head, data) = self.0.split_at_mut(16);
        head[..8].copy_from_slice(&length.to_ne_bytes());
        head[8..12].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
        head[12..].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
        data[..2].copy_from_slice(&segment.to_ne_bytes());
    }
}
