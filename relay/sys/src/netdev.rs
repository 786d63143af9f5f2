//! The `netdev` family of generic netlink (Linux 6.3): the XDP features of devices.

use std::collections::BTreeMap;
use std::io;

use crate::netlink::{DUMP, Protocol, Request, find};

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
const VERSION: u8 = 1;

/// The features of all devices of the calling thread's network namespace, by index.
///
/// # Errors
/// `ENOENT` where the kernel does not report them.
pub fn xdp_features() -> io::Result<BTreeMap<u32, u64>> {
    let mut request = Request::new(CONTROL, 0, &[GET_FAMILY, VERSION, 0, 0]);
    request.attribute(FAMILY_NAME, b"netdev\0");
    let answers = request.exchange(Protocol::NetlinkGeneric)?;
    let family = answers
        .iter()
        .find_map(|answer| find(answer, FAMILY_ID)?.first_chunk());
    let family = u16::from_ne_bytes(*family.ok_or(io::ErrorKind::NotFound)?);
    let request = Request::new(family, DUMP, &[GET_DEVICE, VERSION, 0, 0]);
    let devices = request.exchange(Protocol::NetlinkGeneric)?;
    let features = devices.iter().filter_map(|device| {
        let index = find(device, DEVICE_INDEX)?.first_chunk()?;
        let features = find(device, DEVICE_FEATURES)?.first_chunk()?;
        Some((u32::from_ne_bytes(*index), u64::from_ne_bytes(*features)))
    });
    Ok(features.collect())
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
