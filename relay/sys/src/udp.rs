//! Sockets of the traffic tools: UDP with sendmmsg, recvmmsg, segmentation offload, timestamps;
//! whole frames.
//!
//! Sockets are `socket2::Socket`; this module adds only what socket2 has no safe call for.
#![expect(
    unsafe_code,
    reason = "setsockopt, bind, sendmmsg and recvmmsg take raw pointers"
)]

pub mod frame;
pub mod null_socket;
pub mod option;
pub mod receive;
pub mod send;

#[cfg(test)]
mod tests;
