//! The headers of a captured UDP packet, as far as they were captured.

use std::net::IpAddr;

use packet::{ipv4, ipv6, udp};

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Source and destination port; none in a fragment that is not the first.
    pub(crate) ports: Option<(u16, u16)>,
}

impl Headers {
    /// Bytes of a packet that contain them: a link header, the longest IPv4 header or that of IPv6 with
    /// some extensions, ports.
    pub(crate) const LONGEST: u32 = 128;

    /// Parses them from the beginning of the IP header; `None` if the packet is not UDP.
    pub(crate) fn read(ip: &[u8]) -> Option<Self> {
        let (source, destination, udp) = match ip.first()? >> 4 {
            6 => {
                let header = ipv6::Header::parse(ip).ok()?;
                let upper = ipv6::upper(ip, header.next_header()).ok()?;
                let is_first = upper.fragment.is_none_or(|fragment| fragment.offset == 0);
                let udp = is_first.then_some(upper.offset);
                (header.source().into(), header.destination().into(), udp)
            }
            _ => {
                let header = ipv4::Header::parse(ip).ok()?;
                let udp = (header.fragment_offset() == 0).then_some(header.length());
                (header.source().into(), header.destination().into(), udp)
            }
        };
        let udp = udp.and_then(|at| udp::Header::parse(ip, at));
        Some(Self {
            source,
            destination,
            ports: udp.map(|udp| (udp.source_port, udp.destination_port)),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An IPv4 packet from 10.0.0.5:4000 to 239.1.1.7:5001.
    pub(crate) fn packet(fragment: u16) -> Vec<u8> {
        let mut ip = vec![0x46, 0, 0, 0, 0, 0, 0, 0, 16, 17, 0, 0];
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip.extend([10, 0, 0, 5, 239, 1, 1, 7, 1, 1, 1, 1]);
        ip.extend([0x0f, 0xa0, 0x13, 0x89, 0, 8, 0, 0]);
        ip
    }

    #[test]
    fn ports_stand_behind_the_options_of_the_first_fragment() {
        let headers = Headers::read(&packet(0x2000)).unwrap();
        assert_eq!(headers.source.to_string(), "10.0.0.5");
        assert_eq!(headers.destination.to_string(), "239.1.1.7");
        assert_eq!(headers.ports, Some((4000, 5001)));
        assert_eq!(Headers::read(&packet(0x2005)).unwrap().ports, None);
        assert_eq!(Headers::read(&packet(0)[..26]).unwrap().ports, None);
        assert_eq!(Headers::read(&packet(0)[..18]), None);
    }

    #[test]
    fn a_packet_of_ipv6_has_its_ports_behind_its_extensions() {
        let mut ip = vec![0; 64];
        (ip[0], ip[6], ip[23], ip[24], ip[39], ip[43]) = (0x60, 17, 5, 0xff, 1, 9);
        let headers = Headers::read(&ip).unwrap();
        assert_eq!(headers.source.to_string(), "::5");
        assert_eq!(headers.destination.to_string(), "ff00::1");
        assert_eq!(headers.ports, Some((0, 9)));
        // Hop-by-hop options, and a fragment: the first, then another.
        (ip[6], ip[40], ip[48], ip[59]) = (0, 44, 17, 9);
        assert_eq!(Headers::read(&ip).unwrap().ports, Some((0, 9)));
        ip[50] = 1;
        assert_eq!(Headers::read(&ip).unwrap().ports, None);
        // A report of MLD to the group is no packet of a rule.
        ip[40] = 58;
        assert_eq!(Headers::read(&ip), None);
    }
}
