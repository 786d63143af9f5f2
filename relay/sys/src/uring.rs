//! The io_uring of a worker: sends a batch of packets with one system call.
//!
//! A batch is synchronous: [`Batch::submit`] returns once every send has completed, so the borrowed
//! payloads outlive their use. Where io_uring is not allowed (`kernel.io_uring_disabled`, a
//! seccomp filter, the limit of locked memory) or cannot be kept to sending (before Linux 5.10),
//! the same batch goes out by `sendmsg`.
//!
//! Waiting for packets is not done here: a pending poll request holds its socket, and when the process is killed the
//! kernel releases it only some 10 ms later, during which the socket would swallow its share of a `packet_fanout`
//! group. [`crate::descriptor::Waiter`] does it.

#![expect(unsafe_code, reason = "the kernel reads messages through raw pointers")]

use std::io;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::slice::{from_mut, from_ref};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};

use crate::packet_socket::link_address;
use crate::routed_socket::{CONTROL, Headers};

/// What ICMP messages become (`icmp_err_convert`, `icmpv6_err_convert`).
const OF_ICMP: [i32; 10] = [
    libc::EACCES,
    libc::ECONNREFUSED,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::EMSGSIZE,
    libc::ENETUNREACH,
    libc::ENONET,
    libc::ENOPROTOOPT,
    libc::EOPNOTSUPP,
    libc::EPROTO,
];

/// Bytes a message's own part (vnet header, link header, IP and UDP headers) may have.
pub const HEAD: usize = 192;

const _: () = assert!(CONTROL <= HEAD);

/// Payload parts that fit in the pool, per message slot on average.
const PARTS_PER_MESSAGE: usize = 16;
/// The most parts of one message: the kernel's `UIO_MAXIOV` is 1024.
const MAX_PARTS: usize = 256;

/// Sends batches.
pub struct Uring {
    ring: Option<IoUring>,
    slots: Vec<Slot>,
    parts: Vec<libc::iovec>,
    messages: Vec<libc::msghdr>,
    results: Vec<i32>,
    capacity: usize,
}

struct Slot {
    fd: RawFd,
    address: Address,
    address_bytes: u32,
    head: [u8; HEAD],
    /// Bytes of `head` in front of its gap; [`HEAD`] where it has none.
    front: usize,
    first_part: usize,
    parts: usize,
    /// Bytes of `head` that are ancillary messages; then the message has no part of its own.
    control: usize,
}

/// A socket address, as long as its family's.
#[repr(C)]
union Address {
    link: libc::sockaddr_ll,
    ipv4: libc::sockaddr_in,
    ipv6: libc::sockaddr_in6,
}

/// A message's own part.
#[derive(Clone, Copy, Debug)]
pub struct Head<'h, 'p> {
    /// Its bytes, which are copied; at most [`HEAD`].
    pub bytes: &'h [u8],
    /// Bytes inserted after a number of them, which are not copied; may be empty.
    pub gap: (usize, &'p [u8]),
}

impl<'h> From<&'h [u8]> for Head<'h, '_> {
    #[inline]
    fn from(bytes: &'h [u8]) -> Self {
        Self {
            bytes,
            gap: (bytes.len(), &[]),
        }
    }
}

impl Head<'_, '_> {
    /// Parts of a message that it takes.
    #[inline]
    pub const fn parts(&self) -> usize {
        if self.gap.1.is_empty() { 1 } else { 3 }
    }
}

/// The batch has no room for another message: submit it and start the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Uring {
    /// Makes a ring for batches of up to `capacity` messages; without `ring` they go out by `sendmsg`.
    ///
    /// # Errors
    /// The system call's, other than those that say io_uring is not allowed here.
    pub fn new(capacity: usize, ring: bool) -> io::Result<Self> {
        let ring = match ring.then(|| build(capacity)).transpose() {
            Ok(ring) => ring,
            Err(error) if not_allowed(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            ring,
            slots: Vec::with_capacity(capacity),
            parts: Vec::with_capacity(capacity * PARTS_PER_MESSAGE + MAX_PARTS),
            messages: Vec::with_capacity(capacity),
            results: Vec::with_capacity(capacity),
            capacity,
        })
    }

    /// Returns whether io_uring is used, rather than one system call per message.
    pub const fn is_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Starts a batch whose payloads live for `'p`.
    #[inline]
    pub fn batch<'p>(&mut self) -> Batch<'_, 'p> {
        self.slots.clear();
        self.parts.clear();
        Batch {
            uring: self,
            payloads: PhantomData,
        }
    }
}

/// Messages collected to be sent together; dropped without [`Batch::submit`] they are not sent.
pub struct Batch<'u, 'p> {
    uring: &'u mut Uring,
    payloads: PhantomData<&'p [u8]>,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// Socket to send from.
    pub socket: BorrowedFd<'a>,
    /// The receivers.
    pub to: To,
}

/// The receivers of a message.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// Hosts on a link, by a packet socket.
    Link {
        /// Interface to send by.
        interface: u32,
        /// The link address that the kernel writes, if it writes the header.
        receiver: Option<[u8; 6]>,
        /// Ethertype of the payload.
        protocol: u16,
    },
    /// Sockets of this host that listen on this address, by a socket of [`crate::host_socket`].
    Host(IpAddr),
}

impl To {
    #[inline]
    const fn address(self) -> (Address, usize) {
        match self {
            Self::Link {
                interface,
                receiver,
                protocol,
            } => {
                let mut link = link_address(interface, protocol);
                if let Some([a, b, c, d, e, f]) = receiver {
                    link.sll_halen = 6;
                    link.sll_addr = [a, b, c, d, e, f, 0, 0];
                }
                (Address { link }, size_of::<libc::sockaddr_ll>())
            }
            Self::Host(address) => ip_address(address, 0, 0),
        }
    }
}

const fn ip_address(address: IpAddr, port: u16, scope: u32) -> (Address, usize) {
    match address {
        IpAddr::V4(address) => (
            Address {
                ipv4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.octets()),
                    },
                    sin_zero: [0; 8],
                },
            },
            size_of::<libc::sockaddr_in>(),
        ),
        IpAddr::V6(address) => (
            Address {
                ipv6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.octets(),
                    },
                    sin6_scope_id: scope,
                },
            },
            size_of::<libc::sockaddr_in6>(),
        ),
    }
}

impl<'p> Batch<'_, 'p> {
    /// Adds a message made of `head` and `payload`, which is not copied.
    ///
    /// # Errors
    /// [`Full`] if it does not fit, see [`Batch::is_full`].
    #[inline]
    pub fn push<'h>(
        &mut self,
        destination: Destination<'p>,
        head: impl Into<Head<'h, 'p>>,
        payload: impl ExactSizeIterator<Item = &'p [u8]>,
    ) -> Result<(), Full> {
        let head = head.into();
        let (bytes, (front, gap)) = (head.bytes, head.gap);
        let parts = payload.len() + head.parts();
        if self.is_full(parts) || parts > MAX_PARTS || bytes.len() > HEAD || front > bytes.len() {
            return Err(Full);
        }
        let uring = &mut *self.uring;
        let first_part = uring.parts.len();
        // The address of the head is known once the batch is complete.
        uring.parts.push(part(std::ptr::null(), front));
        if !gap.is_empty() {
            uring.parts.push(part(gap.as_ptr(), gap.len()));
            uring
                .parts
                .push(part(std::ptr::null(), bytes.len() - front));
        }
        uring
            .parts
            .extend(payload.map(|bytes| part(bytes.as_ptr(), bytes.len())));
        let (address, address_bytes) = destination.to.address();
        let mut slot = Slot {
            fd: destination.socket.as_raw_fd(),
            address,
            address_bytes: address_bytes as u32,
            head: [0; HEAD],
            front: if gap.is_empty() { HEAD } else { front },
            first_part,
            parts: uring.parts.len() - first_part,
            control: 0,
        };
        slot.head[..bytes.len()].copy_from_slice(bytes);
        uring.slots.push(slot);
        Ok(())
    }

    /// Adds a datagram for a socket of [`crate::routed_socket`].
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn push_routed(
        &mut self,
        socket: BorrowedFd<'p>,
        headers: &Headers,
        payload: &'p [u8],
    ) -> Result<(), Full> {
        if self.is_full(1) {
            return Err(Full);
        }
        let uring = &mut *self.uring;
        let first_part = uring.parts.len();
        uring.parts.push(part(payload.as_ptr(), payload.len()));
        let scope = headers.by;
        let (address, address_bytes) = ip_address(headers.to.ip(), headers.to.port(), scope);
        let mut slot = Slot {
            fd: socket.as_raw_fd(),
            address,
            address_bytes: address_bytes as u32,
            head: [0; HEAD],
            front: HEAD,
            first_part,
            parts: 1,
            control: 0,
        };
        slot.control = headers.control(&mut slot.head);
        uring.slots.push(slot);
        Ok(())
    }

    /// Returns whether a message of `parts` parts, its head included, no longer fits: submit the
    /// batch and start the next. An empty batch takes any message of up to 256 parts.
    #[inline]
    pub fn is_full(&self, parts: usize) -> bool {
        let uring = &self.uring;
        let room = uring.parts.capacity() - uring.parts.len();
        uring.slots.len() == uring.capacity || parts > room
    }

    /// Number of messages collected.
    #[inline]
    pub fn len(&self) -> usize {
        self.uring.slots.len()
    }

    /// Returns whether no message was collected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends all messages in order and returns, for each, the bytes sent or minus the error
    /// number. The batch is empty then and may be filled again.
    ///
    /// # Errors
    /// The ring's own failure, after which it must not be used again.
    pub fn submit(&mut self) -> io::Result<&[i32]> {
        let uring = &mut *self.uring;
        uring.messages.clear();
        for slot in &mut uring.slots {
            // SAFETY: all bytes zero are a msghdr without name, parts and control data.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            if slot.control == 0 {
                uring.parts[slot.first_part].iov_base = slot.head.as_mut_ptr().cast();
            } else {
                message.msg_control = slot.head.as_mut_ptr().cast();
                message.msg_controllen = slot.control as _;
            }
            if let Some(behind) = slot.head.get_mut(slot.front..).filter(|b| !b.is_empty()) {
                uring.parts[slot.first_part + 2].iov_base = behind.as_mut_ptr().cast();
            }
            message.msg_name = (&raw mut slot.address).cast();
            message.msg_namelen = slot.address_bytes;
            message.msg_iov = &raw mut uring.parts[slot.first_part];
            message.msg_iovlen = slot.parts as _;
            uring.messages.push(message);
        }
        uring.results.clear();
        uring.results.resize(uring.slots.len(), -libc::EIO);
        match &mut uring.ring {
            Some(ring) => submit_ring(ring, &uring.slots, &uring.messages, &mut uring.results)?,
            None => submit_calls(&uring.slots, &uring.messages, &mut uring.results),
        }
        send_again(&uring.slots, &uring.messages, &mut uring.results);
        uring.slots.clear();
        uring.parts.clear();
        Ok(&uring.results)
    }
}

fn submit_ring(
    ring: &mut IoUring,
    slots: &[Slot],
    messages: &[libc::msghdr],
    results: &mut [i32],
) -> io::Result<()> {
    for (index, (slot, message)) in slots.iter().zip(messages).enumerate() {
        let entry = opcode::SendMsg::new(types::Fd(slot.fd), message)
            .flags(libc::MSG_DONTWAIT as u32)
            .build()
            .user_data(index as u64);
        // SAFETY: message, address, head and parts stay in `Uring`'s vectors, unmoved, and the
        // payloads live for the batch's `'p`, until every completion has been seen below. Where
        // waiting fails instead, nothing is under way either: with MSG_DONTWAIT a send is over
        // when its submission is, and none that was not submitted is looked at again.
        let pushed = unsafe { ring.submission().push(&entry) };
        debug_assert!(
            pushed.is_ok(),
            "the ring was built for the batch's capacity"
        );
    }
    let mut open = slots.len();
    while open > 0 {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if is_no_error(&error) => {}
            Err(error) => return Err(error),
        }
        for completion in ring.completion() {
            open -= 1;
            if let Some(result) = results.get_mut(completion.user_data() as usize) {
                *result = completion.result();
            }
        }
    }
    Ok(())
}

fn submit_calls(slots: &[Slot], messages: &[libc::msghdr], results: &mut [i32]) {
    for ((slot, message), result) in slots.iter().zip(messages).zip(results) {
        // SAFETY: the message and all it points to live in `Uring` or for the batch's `'p`.
        let sent = unsafe { libc::sendmsg(slot.fd, message, libc::MSG_DONTWAIT) };
        *result = if sent < 0 {
            -io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO)
        } else {
            sent as i32
        };
    }
}

/// Sends what an ICMP message to the socket may have failed: it is kept for the next send there, whose packet it is
/// not about, and taken away by that.
#[inline]
fn send_again(slots: &[Slot], messages: &[libc::msghdr], results: &mut [i32]) {
    for ((slot, message), result) in slots.iter().zip(messages).zip(results) {
        if *result < 0 && OF_ICMP.contains(&-*result) {
            submit_calls(from_ref(slot), from_ref(message), from_mut(result));
        }
    }
}

fn build(capacity: usize) -> io::Result<IoUring> {
    let entries = capacity.next_power_of_two() as u32;
    let tuned = IoUring::<squeue::Entry>::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_r_disabled()
        .build(entries);
    let ring = match tuned {
        // Kernels before 6.1 do not know the first two flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::<squeue::Entry>::builder()
                .setup_r_disabled()
                .build(entries)?
        }
        other => other?,
    };
    // A ring bypasses seccomp, so it may only send.
    let submitter = ring.submitter();
    submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::SendMsg::CODE)])?;
    submitter.register_enable_rings()?;
    Ok(ring)
}

fn not_allowed(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES | libc::ENOMEM | libc::EINVAL)
    )
}

fn is_no_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
    )
}

const fn part(start: *const u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast_mut().cast(),
        iov_len: length,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_ring_sends_and_nothing_else() {
        let Ok(mut ring) = build(4) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        let (here, _there) = UnixDatagram::pair().unwrap();
        let entry = opcode::Close::new(types::Fd(here.as_fd().as_raw_fd())).build();
        // SAFETY: closing takes no pointer; were it carried out, the test would fail.
        unsafe { ring.submission().push(&entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let refused = ring.completion().next().unwrap().result();
        assert_eq!(refused, -libc::EACCES);
        here.local_addr().unwrap();
    }
}
