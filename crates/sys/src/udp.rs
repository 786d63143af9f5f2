//! UDP sockets for the traffic tools: sendmmsg, recvmmsg, segmentation offload, timestamps.
//!
//! Sockets are `socket2::Socket`; this module adds only what socket2 has no safe call for.
#![expect(
    unsafe_code,
    reason = "setsockopt, sendmmsg and recvmmsg take raw pointers"
)]

pub mod option;
pub mod receive;
pub mod send;

#[cfg(test)]
mod tests;
