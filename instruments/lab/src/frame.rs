//! Raw frames in and out of an interface, for packets that no UDP socket would make and for headers
//! that no UDP socket shows.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::packet_socket::{PacketSocket, VNET_HEADER, VnetHeader};

use crate::link::End;
use crate::wait;

const BUFFER: usize = 4 << 20;

/// Sends frames as they are, Ethernet header first.
#[derive(Debug)]
pub struct FrameSender(File);

impl FrameSender {
    /// Opens a sender on an interface.
    ///
    /// # Errors
    /// When there is no such interface or privilege.
    pub fn open(end: End<'_>) -> Result<Self> {
        Ok(Self(File::from(OwnedFd::from(open(end)?))))
    }

    /// Sends a frame with its checksums unchanged.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.send_with(VnetHeader::default(), frame)
    }

    /// Sends a frame with `vnet`'s description of its checksum and segmentation.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn send_with(&self, vnet: VnetHeader, frame: &[u8]) -> Result<()> {
        let whole = [vnet.encode().as_slice(), frame].concat();
        loop {
            match (&self.0).write(&whole) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error).context("sending a frame"),
            }
        }
    }
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kernel's description of its checksum and segmentation.
    pub vnet: VnetHeader,
    /// Its bytes, Ethernet header first.
    pub bytes: Vec<u8>,
}

/// Receives every frame an interface sees, both directions.
#[derive(Debug)]
pub struct FrameReceiver(PacketSocket);

impl FrameReceiver {
    /// Opens a receiver on an interface.
    ///
    /// # Errors
    /// When there is no such interface or privilege.
    pub fn open(end: End<'_>) -> Result<Self> {
        Ok(Self(open(end)?))
    }

    /// Waits for a frame that `wanted` accepts; `None` if none arrives within `patience`.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn receive(
        &self,
        patience: Duration,
        mut wanted: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<Frame>> {
        let deadline = Instant::now() + wait::scaled(patience);
        let mut buffer = vec![0; 1 << 17];
        loop {
            match self.0.receive(&mut buffer) {
                Ok(length) => {
                    let frame = decode(&buffer[..length])?;
                    if wanted(&frame.bytes) {
                        return Ok(Some(frame));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let remaining = deadline.saturating_duration_since(Instant::now());
                    if remaining.is_zero() {
                        return Ok(None);
                    }
                    self.wait(remaining)?;
                }
                Err(error) => return Err(error).context("receiving a frame"),
            }
        }
    }

    fn wait(&self, patience: Duration) -> Result<()> {
        let timeout = PollTimeout::try_from(patience.as_millis().max(1))?;
        match poll(
            &mut [PollFd::new(
                std::os::fd::AsFd::as_fd(&self.0),
                PollFlags::POLLIN,
            )],
            timeout,
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn open((namespace, interface): End<'_>) -> Result<PacketSocket> {
    namespace.run(|| {
        let index = if_nametoindex(interface).with_context(|| interface.to_owned())?;
        let socket = PacketSocket::egress(BUFFER)?;
        socket.bind(index)?;
        Ok(socket)
    })
}

fn decode(bytes: &[u8]) -> Result<Frame> {
    let (vnet, frame) = bytes
        .split_first_chunk::<VNET_HEADER>()
        .context("no vnet header")?;
    Ok(Frame {
        vnet: VnetHeader::decode(*vnet),
        bytes: frame.to_vec(),
    })
}
