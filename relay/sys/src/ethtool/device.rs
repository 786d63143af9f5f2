//! What `ethtool`, `-i`, `-g`, `-l` and `-S` show of a device: driver, speed, rings, channels and
//! the driver's own counters. Read only.

use std::io;

use super::{ETH_GSTRING_LEN, ETHTOOL_GSTRINGS, header, ioctl, set_size, text, word_at};

const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_STATS: u32 = 1;
/// Bytes behind the command in `struct ethtool_drvinfo`.
const DRIVER_BYTES: usize = 192;
/// The same for `struct ethtool_cmd`, and for `ethtool_ringparam` and `ethtool_channels`.
const SETTINGS_BYTES: usize = 40;
const EIGHT_WORDS: usize = 32;
/// Counters that there is room for. The kernel writes as many as the driver has at that moment, not as many as
/// were requested, so a driver with more than half of it is not queried.
const ROOM: usize = 65_536;

/// A device and its settings; what the driver does not report is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Name of the driver.
    pub driver: Option<String>,
    /// Its bus address, for instance on PCI; `None` for devices that are only software.
    pub bus: Option<String>,
    /// Speed of the link, Mbit/s; `None` also while there is no link.
    pub speed_mbit: Option<u32>,
    /// Descriptors of the receive ring, and the most there can be.
    pub receive_ring: Option<(u32, u32)>,
    /// The same for the transmit ring.
    pub transmit_ring: Option<(u32, u32)>,
    /// Queues that receive.
    pub receive_queues: Option<u32>,
}

/// Reads what the driver of an interface of the calling thread's network namespace reports.
///
/// # Errors
/// `ENODEV` for an unknown interface.
pub fn device(interface: &str) -> io::Result<Device> {
    let mut device = Device::default();
    if let Some(reply) = query(interface, ETHTOOL_GDRVINFO, DRIVER_BYTES)? {
        device.driver = Some(text(&reply[4..36]));
        // struct ethtool_drvinfo: driver, version, fw_version, bus_info, 32 bytes each.
        let bus = text(&reply[100..132]);
        device.bus = Some(bus).filter(|bus| !bus.is_empty() && bus != "N/A");
    }
    if let Some(reply) = query(interface, ETHTOOL_GSET, SETTINGS_BYTES)? {
        // struct ethtool_cmd keeps the speed in two halves; all ones is "not known".
        let half = |at: usize| u32::from(u16::from_ne_bytes([reply[at], reply[at + 1]]));
        let speed = half(28) << 16 | half(12);
        device.speed_mbit = (speed != 0 && speed != 0xffff && speed != u32::MAX).then_some(speed);
    }
    if let Some(reply) = query(interface, ETHTOOL_GRINGPARAM, EIGHT_WORDS)? {
        let ring = |now, most| (word_at(&reply, now), word_at(&reply, most));
        device.receive_ring = Some(ring(20, 4)).filter(|(_, most)| *most > 0);
        device.transmit_ring = Some(ring(32, 16)).filter(|(_, most)| *most > 0);
    }
    if let Some(reply) = query(interface, ETHTOOL_GCHANNELS, EIGHT_WORDS)? {
        let queues = word_at(&reply, 20) + word_at(&reply, 32);
        device.receive_queues = Some(queues).filter(|queues| *queues > 0);
    }
    Ok(device)
}

/// Reads the driver's own counters, in its order; empty where it has none.
///
/// # Errors
/// `ENODEV` for an unknown interface.
pub fn statistics(interface: &str) -> io::Result<Vec<(String, u64)>> {
    let count = match set_size(interface, ETH_SS_STATS) {
        Ok(count) => count,
        Err(error) => return absent(&error).then(Vec::new).ok_or(error),
    };
    if count == 0 || count > ROOM / 2 {
        return Ok(Vec::new());
    }
    let words = [ETHTOOL_GSTRINGS, ETH_SS_STATS, count as u32];
    let mut strings = header(&words, ROOM * ETH_GSTRING_LEN);
    ioctl(interface, &mut strings)?;
    let mut values = header(&[ETHTOOL_GSTATS, count as u32], ROOM * 8);
    ioctl(interface, &mut values)?;
    let names = strings[12..].chunks_exact(ETH_GSTRING_LEN).map(text);
    let counts = values[8..].chunks_exact(8).map(|bytes| {
        let mut value = [0; 8];
        value.copy_from_slice(bytes);
        u64::from_ne_bytes(value)
    });
    Ok(names.zip(counts).take(count).collect())
}

/// Queries a structure of `bytes` after the command; `None` where the driver has no reply.
fn query(interface: &str, command: u32, bytes: usize) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = header(&[command], bytes);
    match ioctl(interface, &mut buffer) {
        Ok(()) => Ok(Some(buffer)),
        Err(error) if absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn absent(error: &io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::EINVAL, libc::EPERM];
    error
        .raw_os_error()
        .is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_interface_is_no_device() {
        for error in [
            device("no-such-device0").unwrap_err(),
            statistics("no-such-device0").unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        }
    }

    #[test]
    fn loopback_has_no_ring_and_no_counters() {
        let device = device("lo").unwrap();
        assert_eq!((device.receive_ring, device.speed_mbit), (None, None));
        assert_eq!(device.bus, None);
        assert_eq!(statistics("lo").unwrap(), []);
    }
}
