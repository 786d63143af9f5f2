//! The `netdev` family of generic netlink (Linux 6.3): what devices can do with XDP.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// The device's driver runs XDP programs (NETDEV_XDP_ACT_BASIC).
pub const RUNS_PROGRAMS: u64 = 1;
/// The device sends frames that XDP of another hands over (NETDEV_XDP_ACT_NDO_XMIT).
pub const TAKES_FRAMES: u64 = 1 << 2;

const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;
/// Bytes of `nlmsghdr` and `genlmsghdr`.
const HEADERS: usize = 20;
const ROOM: usize = 65_536;

/// The features of all devices of the calling thread's network namespace, by index.
///
/// # Errors
/// `ENOENT` where the kernel does not tell.
pub fn xdp_features() -> io::Result<BTreeMap<u32, u64>> {
    let mut name = Vec::from((4 + b"netdev\0".len() as u16).to_ne_bytes());
    name.extend(FAMILY_NAME.to_ne_bytes());
    name.extend(b"netdev\0\0");
    let mut family = None;
    ask((CONTROL, 0, GET_FAMILY), &name, |kind, value| {
        if kind == FAMILY_ID {
            family = value.first_chunk().map(|id| u16::from_ne_bytes(*id));
        }
    })?;
    let family = family.ok_or(io::ErrorKind::NotFound)?;
    let (mut index, mut features) = (0, BTreeMap::new());
    let dump = libc::NLM_F_DUMP as u16;
    ask((family, dump, GET_DEVICE), &[], |kind, value| match kind {
        DEVICE_INDEX => {
            index = value
                .first_chunk()
                .map_or(0, |index| u32::from_ne_bytes(*index))
        }
        DEVICE_FEATURES => {
            let bits = value
                .first_chunk()
                .map_or(0, |bits| u64::from_ne_bytes(*bits));
            features.insert(index, bits);
        }
        _ => {}
    })?;
    Ok(features)
}

/// Sends one request and hands over the attributes of its answers.
fn ask(
    (family, flags, command): (u16, u16, u8),
    attributes: &[u8],
    mut take: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkGeneric,
    )?;
    let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut request = Vec::new();
    request.extend((HEADERS as u32 + attributes.len() as u32).to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([command, 1, 0, 0]);
    request.extend(attributes);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut buffer = vec![0; ROOM];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((message, behind)) = part(rest, 4) {
            rest = behind;
            let kind = u16::from_ne_bytes([message[4], message[5]]);
            if kind == libc::NLMSG_ERROR as u16 || kind == libc::NLMSG_DONE as u16 {
                let error = message.get(16..20).and_then(<[u8]>::first_chunk);
                return match error.map_or(0, |error| i32::from_ne_bytes(*error)) {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            let mut attributes = message.get(HEADERS..).unwrap_or_default();
            while let Some((attribute, behind)) = part(attributes, 2) {
                attributes = behind;
                let kind = u16::from_ne_bytes([attribute[2], attribute[3]]);
                take(kind & 0x3fff, &attribute[4..]);
            }
        }
    }
}

/// Splits off what begins with its own length, a number of `width` bytes.
fn part(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let least = if width == 4 { 16 } else { 4 };
    let length = match width {
        4 => u32::from_ne_bytes(*bytes.first_chunk()?) as usize,
        _ => u16::from_ne_bytes(*bytes.first_chunk()?).into(),
    };
    let part = bytes.get(..length).filter(|part| part.len() >= least)?;
    Some((
        part,
        bytes.get(length.next_multiple_of(4)..).unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_takes_no_frames_of_xdp() {
        match xdp_features() {
            Ok(features) => assert_eq!(features[&1] & TAKES_FRAMES, 0),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
}
