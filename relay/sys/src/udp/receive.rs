//! Receives many datagrams with one system call, with the kernel's timestamps.

use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for the timestamp, the segment size and more.
const CONTROL_BYTES: usize = 128;
/// Size of `sockaddr_in6`, the longer of the two addresses of a UDP socket.
const NAME_BYTES: usize = 28;

#[repr(align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

#[repr(align(8))]
#[derive(Clone, Copy)]
struct Name([u8; NAME_BYTES]);

/// One receive: a datagram, or a super-packet of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The payload, or the payloads back to back.
    pub bytes: &'a [u8],
    /// Bytes per datagram; the last one may be shorter. Equals the length for a single datagram.
    pub segment: usize,
    /// When the kernel received it, in nanoseconds of CLOCK_REALTIME, where requested.
    pub timestamp_ns: Option<u64>,
    /// The datagram was longer than the buffer.
    pub truncated: bool,
    /// The sender's address as the kernel writes it.
    name: &'a [u8],
}

impl<'a> Received<'a> {
    /// Walks the datagrams.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let whole = self.bytes.is_empty().then_some(self.bytes);
        whole
            .into_iter()
            .chain(self.bytes.chunks(self.segment.max(1)))
    }

    /// The sender's address and port; `None` if the kernel named none.
    pub fn source(&self) -> Option<SocketAddr> {
        // sockaddr_in { family, port, address }, sockaddr_in6 { family, port, flow, address, .. }.
        let (family, rest) = self.name.split_first_chunk::<2>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let port = u16::from_be_bytes(*port);
        match libc::c_int::from(u16::from_ne_bytes(*family)) {
            libc::AF_INET => {
                let address = Ipv4Addr::from(*rest.first_chunk::<4>()?);
                Some(SocketAddr::new(address.into(), port))
            }
            libc::AF_INET6 => {
                let address = Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?);
                Some(SocketAddr::new(address.into(), port))
            }
            _ => None,
        }
    }
}

/// The arrays and buffers recvmmsg needs, sized once.
pub struct ReceiveBatch {
    buffer: Vec<u8>,
    size: usize,
    headers: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    controls: Vec<Control>,
    names: Vec<Name>,
    used: usize,
}

// SAFETY: the raw pointers in `headers` and `vectors` point only into heap blocks that this value
// owns, that never change size and that move with it; nothing else holds them.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// Makes room for `capacity` receives of `size` bytes.
    pub fn new(capacity: usize, size: usize) -> Self {
        // SAFETY: mmsghdr and iovec are plain C structs for which all zeroes (null pointers, zero
        // lengths) is a value.
        let (header, vector) = unsafe { (zeroed::<libc::mmsghdr>(), zeroed::<libc::iovec>()) };
        let mut batch = Self {
            buffer: vec![0; capacity * size],
            size,
            headers: vec![header; capacity],
            vectors: vec![vector; capacity],
            controls: vec![Control([0; CONTROL_BYTES]); capacity],
            names: vec![Name([0; NAME_BYTES]); capacity],
            used: 0,
        };
        for (vector, chunk) in batch.vectors.iter_mut().zip(batch.buffer.chunks_mut(size)) {
            vector.iov_base = chunk.as_mut_ptr().cast();
            vector.iov_len = size;
        }
        for index in 0..capacity {
            let header = &mut batch.headers[index].msg_hdr;
            header.msg_iov = &raw mut batch.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = batch.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
            header.msg_name = batch.names[index].0.as_mut_ptr().cast();
            header.msg_namelen = NAME_BYTES as _;
        }
        batch
    }

    /// Takes what is waiting, without blocking, and returns how many receives there are.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise the socket's error.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for header in &mut self.headers[..self.used] {
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            header.msg_hdr.msg_namelen = NAME_BYTES as _;
        }
        self.used = 0;
        // SAFETY: every header points at this value's own vector, control, name and buffer of the stated
        // lengths (`new` sets them, nothing resizes them); the kernel writes within those lengths.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        self.used = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(self.used)
    }

    /// The `index`-th receive of the last call.
    ///
    /// # Panics
    /// If the last call received fewer.
    pub fn received(&self, index: usize) -> Received<'_> {
        assert!(index < self.used, "receive {index} of {}", self.used);
        let header = &self.headers[index];
        let length = (header.msg_len as usize).min(self.size);
        let start = index * self.size;
        let mut received = Received {
            bytes: &self.buffer[start..start + length],
            segment: length,
            timestamp_ns: None,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            name: &self.names[index].0[..(header.msg_hdr.msg_namelen as usize).min(NAME_BYTES)],
        };
        let control_length: usize = header.msg_hdr.msg_controllen as _;
        received.read_control(&self.controls[index].0[..control_length.min(CONTROL_BYTES)]);
        received
    }

    /// How many receives one call can take.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }
}

impl Received<'_> {
    /// Walks the ancillary messages: each is `cmsghdr { usize len, int level, int type }` and its
    /// data, padded to 8 bytes.
    fn read_control(&mut self, mut control: &[u8]) {
        while let Some((head, _)) = control.split_first_chunk::<16>() {
            let length = usize::from_ne_bytes(first(head));
            if length < 16 || length > control.len() {
                return;
            }
            let data = &control[16..length];
            match (int(&head[8..]), int(&head[12..])) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if data.len() >= 16 => {
                    let seconds = i64::from_ne_bytes(first(data)) as u64;
                    let nanoseconds = i64::from_ne_bytes(first(&data[8..])) as u64;
                    self.timestamp_ns = Some(seconds * 1_000_000_000 + nanoseconds);
                }
                (libc::SOL_UDP, libc::UDP_GRO) if data.len() >= 4 => {
                    self.segment = int(data) as usize;
                }
                _ => {}
            }
            control = control.get(length.next_multiple_of(8)..).unwrap_or(&[]);
        }
    }
}

fn int(bytes: &[u8]) -> libc::c_int {
    libc::c_int::from_ne_bytes(first(bytes))
}

/// The first `N` bytes; callers have checked the length.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}
