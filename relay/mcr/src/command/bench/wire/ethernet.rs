//! Ethernet: the frame of a payload's size, and how many of them a link carries.

use traffic::endpoint::Destination;
use traffic::wire::host::Host;

use crate::failure::{Failure, usage};

const UDP: usize = 8;
/// Header and frame check sequence.
const ETHERNET: usize = 18;
/// Preamble and the gap between frames, which a wire carries too.
const GAP: usize = 20;

/// Bytes of the IP header.
const fn ip(is_ipv4: bool) -> usize {
    if is_ipv4 { 20 } else { 40 }
}

/// Bytes of the frame, check sequence included, as RFC 2544 counts them.
pub(super) const fn frame_bytes(payload: usize, is_ipv4: bool) -> usize {
    let frame = payload + UDP + ip(is_ipv4) + ETHERNET;
    // The shortest frame.
    if frame < 64 { 64 } else { frame }
}

/// Packets of this size that a link of so many Mbit/s carries in a second.
pub(super) fn line_rate(payload: usize, is_ipv4: bool, speed_mbit: u32) -> f64 {
    let bits = (frame_bytes(payload, is_ipv4) + GAP) * 8;
    f64::from(speed_mbit) * 1e6 / bits as f64
}

/// Refuses sizes that the interfaces of the generator would have to fragment.
pub(super) fn check_sizes(
    sizes: &[u16],
    destinations: &[Destination],
    own: &Host,
) -> Result<(), Failure> {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    for to in destinations {
        let interface = to.interface.as_ref();
        let link_mtu = interface.and_then(|name| own.interfaces.get(name)?.mtu);
        let Some(mtu) = link_mtu else { continue };
        let most = (mtu as usize).saturating_sub(ip(to.address.is_ipv4()) + UDP);
        if usize::from(largest) > most {
            let message = format!(
                "--sizes {largest}: {to}: more than the MTU of {mtu} takes in one packet, which is \
                 {most} bytes of payload"
            );
            return Err(usage(message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gigabit_carries_as_many_frames_as_rfc_2544_says() {
        // RFC 2544, appendix B and RFC 5180: 64 bytes, 1,488,095 frames at 1 Gbit/s.
        assert_eq!(line_rate(0, true, 1000).floor(), 1_488_095.0);
        assert_eq!(frame_bytes(1472, true), 1518);
        assert_eq!(line_rate(1472, true, 1000).floor(), 81_274.0);
    }
}
