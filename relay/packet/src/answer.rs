//! Recognises questions, among the packets that a rule reflects, that are answered by unicast to the source of
//! their copies: all but mDNS from its own port, which is answered to the group (RFC 6762 section 6).

use std::net::IpAddr;

use crate::datagram::{Datagram, Part};

/// How long a requester is recorded, in nanoseconds. SSDP devices answer within 5 s at most (UPnP Device
/// Architecture 1.1 section 1.3.2).
pub const LIFETIME_NS: u64 = 10_000_000_000;

/// The port of mDNS.
pub const MDNS_PORT: u16 = 5353;

/// Returns whether a datagram is such a question; `mac` is its link-layer sender, where there is one.
pub fn is_question(datagram: &Datagram, mac: [u8; 6]) -> bool {
    let (from, to) = (datagram.source_port, datagram.destination_port);
    let is_group_mac = mac[0] & 1 != 0;
    let is_mdns = from == to && to == MDNS_PORT;
    if datagram.part == Part::Later || from == 0 || is_mdns || is_group_mac {
        return false;
    }
    match datagram.source {
        IpAddr::V4(source) => {
            let first = source.octets()[0];
            first != 0 && first != 127 && first < 224
        }
        IpAddr::V6(source) => !source.is_multicast() && source.to_bits() >> 32 != 0,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::craft::Craft;
    use crate::parse::{Meta, Parsed, parse};

    fn is_question_from(source: &str, mac: [u8; 6]) -> bool {
        let group = if source.starts_with('[') {
            "[ff02::c]:1900"
        } else {
            "239.255.255.250:1900"
        };
        is_question_to(group, source, mac)
    }

    fn is_question_to(group: &str, source: &str, mac: [u8; 6]) -> bool {
        let source: SocketAddr = source.parse().unwrap();
        let craft = Craft::new(source, group.parse().unwrap(), vec![1]);
        let frame = craft.frame();
        let Parsed::Udp(datagram) = parse(&frame, craft.link, Meta::default()) else {
            panic!("{source} sends UDP");
        };
        is_question(&datagram, mac)
    }

    #[test]
    fn a_host_asks_from_any_port_but_that_of_mdns() {
        const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
        assert!(is_question_from("10.0.0.5:4000", MAC));
        assert!(is_question_from("[fe80::5]:4000", MAC));
        assert!(is_question_from("10.0.0.5:1900", MAC));
        assert!(is_question_from("[fe80::5]:1900", MAC));
        assert!(is_question_to("224.0.0.251:5353", "10.0.0.5:4000", MAC));
        assert!(!is_question_to("224.0.0.251:5353", "10.0.0.5:5353", MAC));
        assert!(!is_question_to("[ff02::fb]:5353", "[fe80::5]:5353", MAC));
        assert!(!is_question_from("10.0.0.5:0", MAC));
        assert!(!is_question_from("10.0.0.5:4000", [1, 0, 0x5e, 0, 0, 1]));
        for nobody in ["0.0.0.0:4000", "127.0.0.1:4000", "239.1.1.1:4000"] {
            assert!(!is_question_from(nobody, MAC), "{nobody}");
        }
        for nobody in [
            "255.255.255.255:4000",
            "[::]:4000",
            "[::1]:4000",
            "[ff02::1]:4000",
        ] {
            assert!(!is_question_from(nobody, MAC), "{nobody}");
        }
    }
}
