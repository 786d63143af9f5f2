//! The notation of every kind of endpoint, its errors, and the round trip.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Endpoint {
    text.parse().unwrap()
}

fn error(text: &str) -> String {
    text.parse::<Endpoint>().unwrap_err().to_string()
}

#[test]
fn prints_what_it_parsed() {
    for text in [
        "239.1.1.1%eth0:5001",
        "10.0.0.5@232.1.1.1%eth0:5001",
        "10.0.0.5,10.0.0.6@232.1.1.1%eth0:5001",
        "[ff3e::1%eth0]:5001",
        "[2001:db8::5@ff3e::1%eth0]:5001",
        "[2001:db8::5,2001:db8::6@ff3e::/120%eth0]:5001-5010",
        "239.1.1.0/24%eth0:5001",
        "239.1.1.1%eth0:5001-5150",
        "10.9.9.9:7000",
        "10.9.9.9%eth2:7000",
        "[2001:db8::9]:7000",
        "239.1.1.1%eth*:5001",
        "239.1.1.1%enp0s31f6.100:65535",
        "0.0.0.0/0:1",
        "unicast%eth0:7000",
        "[unicast%eth0]:7000-7255",
        "10.9.9.0/24@unicast%eth0:7000",
        "10.9.9.0/24,10.8.8.8@10.0.0.2%eth0:7000",
        "[2001:db8:1::/64@2001:db8::2%eth0]:7000",
        "255.255.255.255%eth0:9999",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn reads_every_part() {
    let endpoint = parse("10.0.0.5,10.0.0.6@232.1.1.0/24%eth0:5001-5150");
    let sources: Vec<String> = endpoint.sources.iter().map(ToString::to_string).collect();
    assert_eq!(sources, ["10.0.0.5", "10.0.0.6"]);
    assert_eq!(endpoint.destination.to_string(), "232.1.1.0/24");
    assert_eq!(endpoint.interface.as_deref(), Some("eth0"));
    assert_eq!((endpoint.ports.first, endpoint.ports.last), (5001, 5150));
    assert!(endpoint.is_multicast() && endpoint.is_ipv4() && !endpoint.is_single());
}

#[test]
fn every_address_of_an_interface_is_of_the_family_that_brackets_say() {
    let ipv4 = parse("10.9.9.0/24@unicast%eth0:7000");
    assert!(ipv4.is_every_address() && ipv4.is_ipv4() && !ipv4.is_multicast());
    assert!(ipv4.listens_to([10, 9, 9, 200].into()) && !ipv4.listens_to([10, 9, 8, 1].into()));
    let ipv6 = parse("[unicast%eth0]:7000");
    assert!(ipv6.is_every_address() && !ipv6.is_ipv4());
    assert!(!parse("10.0.0.2%eth0:7000").is_every_address());
}

#[test]
fn writes_single_values_of_ranges_in_their_short_form() {
    assert_eq!(
        parse("239.1.1.1/32%eth0:5001-5001").to_string(),
        "239.1.1.1%eth0:5001"
    );
}

#[test]
fn calls_a_range_beyond_the_multicast_space_not_multicast() {
    assert!(parse("224.0.0.0/4%eth0:1").is_multicast());
    assert!(!parse("224.0.0.0/3%eth0:1").is_multicast());
    assert!(parse("[ff00::/8%eth0]:1").is_multicast());
    assert!(!parse("[fe00::/7%eth0]:1").is_multicast());
}

#[test]
fn names_the_part_that_is_wrong_and_the_remedy() {
    for (text, expected) in [
        (
            "",
            "\"\": nothing there; write GROUP%IFACE:PORT, as in 239.1.1.1%eth0:5001",
        ),
        (
            "239.1.1.1%eth0",
            "239.1.1.1%eth0: has no port; write 239.1.1.1%eth0:PORT, as in 239.1.1.1%eth0:5001",
        ),
        (
            "239.1.1.1%eth0:",
            "239.1.1.1%eth0:: has no port; write 239.1.1.1%eth0:PORT, as in 239.1.1.1%eth0:5001",
        ),
        (
            "[ff3e::1%eth0]",
            "[ff3e::1%eth0]: has no port; write [ff3e::1%eth0]:PORT, as in [ff3e::1%eth0]:5001",
        ),
        (
            "239.1.1.1%eth0:0",
            "239.1.1.1%eth0:0: port 0 cannot be used; give 1 to 65535",
        ),
        (
            "239.1.1.1%eth0:70000",
            "239.1.1.1%eth0:70000: \"70000\" is not a port; give a number from 1 to 65535, or a range as in 5001-5150",
        ),
        (
            "239.1.1.1%eth0:+5",
            "239.1.1.1%eth0:+5: \"+5\" is not a port; give a number from 1 to 65535, or a range as in 5001-5150",
        ),
        (
            "239.1.1.1%eth0:9-5",
            "239.1.1.1%eth0:9-5: the port range 9-5 runs backwards; write 5-9",
        ),
        (
            "ff3e::1%eth0:5001",
            "ff3e::1%eth0:5001: IPv6 needs brackets around address and interface, as in [ff3e::1%eth0]:5001",
        ),
        (
            "[ff3e::1%eth0:5001",
            "[ff3e::1%eth0:5001: the bracket is not closed; write it as in [ff3e::1%eth0]:5001",
        ),
        (
            "[ff3e::1]%eth0:5001",
            "[ff3e::1]%eth0:5001: the interface stands inside the brackets; write [ff3e::1%eth0]:5001",
        ),
        (
            "[ff3e::1]:5001%eth0",
            "[ff3e::1]:5001%eth0: the interface stands inside the brackets; write [ff3e::1%eth0]:5001",
        ),
        (
            "[ff3e::1]eth0:5001",
            "[ff3e::1]eth0:5001: brackets go around sources, group and interface, as in [2001:db8::5@ff3e::1%eth0]:5001",
        ),
        (
            "[239.1.1.1%eth0]:5001",
            "[239.1.1.1%eth0]:5001: brackets are for IPv6; write 239.1.1.1%eth0:5001 without",
        ),
        (
            "239.1.1%eth0:5001",
            "239.1.1%eth0:5001: \"239.1.1\" is not an IPv4 address (only an output may give a name)",
        ),
        (
            "239.1.1.5/24%eth0:1",
            "239.1.1.5/24%eth0:1: host bits are set; the range that holds it is 239.1.1.0/24, or write 239.1.1.5 alone",
        ),
        (
            "239.1.1.0/33%eth0:1",
            "239.1.1.0/33%eth0:1: /33 is not a prefix length; give 0 to 32, as in 239.1.1.0/24",
        ),
        (
            "x@232.1.1.1%eth0:1",
            "x@232.1.1.1%eth0:1: source \"x\" is not an IPv4 address",
        ),
        (
            "2001:db8::5@232.1.1.1%eth0:1",
            "2001:db8::5@232.1.1.1%eth0:1: IPv6 needs brackets around address and interface, as in [ff3e::1%eth0]:5001",
        ),
        (
            "[10.0.0.5@ff3e::1%eth0]:1",
            "[10.0.0.5@ff3e::1%eth0]:1: source \"10.0.0.5\" is not an IPv6 address",
        ),
        (
            "239.0.0.1@232.1.1.1%eth0:1",
            "239.0.0.1@232.1.1.1%eth0:1: source 239.0.0.1 cannot send; give a host's unicast address",
        ),
        (
            "10.0.0.5,10.0.0.5@232.1.1.1%eth0:1",
            "10.0.0.5,10.0.0.5@232.1.1.1%eth0:1: source 10.0.0.5 is named twice; leave one out",
        ),
        (
            "10.0.0.0/24@232.1.1.1%eth0:1",
            "10.0.0.0/24@232.1.1.1%eth0:1: 10.0.0.0/24 is a range, and the sources of a group are joined one by one; name each",
        ),
        (
            "10.0.0.5/24@unicast%eth0:1",
            "10.0.0.5/24@unicast%eth0:1: host bits are set; the range that holds it is 10.0.0.0/24, or write 10.0.0.5 alone",
        ),
        (
            "0.0.0.0/0@unicast%eth0:1",
            "0.0.0.0/0@unicast%eth0:1: 0.0.0.0/0 is every sender; leave it out, with its @",
        ),
        (
            "224.0.0.0/8@unicast%eth0:1",
            "224.0.0.0/8@unicast%eth0:1: source 224.0.0.0/8 cannot send; give a host's unicast address",
        ),
        (
            "0.0.0.0%eth0:1",
            "0.0.0.0%eth0:1: 0.0.0.0 is the address of none; at an input unicast stands for every address of the interface, as in unicast%eth0:5001",
        ),
        (
            "[::%eth0]:1",
            "[::%eth0]:1: :: is the address of none; at an input unicast stands for every address of the interface, as in unicast%eth0:5001",
        ),
        (
            "239.1.1.1%:1",
            "239.1.1.1%:1: no interface follows the %; write its name, as in %eth0",
        ),
        (
            "239.1.1.1%veth1@if5:1",
            "239.1.1.1%veth1@if5:1: interface \"veth1@if5\" holds an @; `ip link` prints NAME@PEER: write only NAME (sources stand before the group: SOURCE@GROUP%IFACE:PORT)",
        ),
        (
            "239.1.1.1:5001%eth0",
            "239.1.1.1:5001%eth0: the interface stands before the port; write 239.1.1.1%eth0:5001",
        ),
        (
            "239.1.1.1%abcdefghijklmnop:1",
            "239.1.1.1%abcdefghijklmnop:1: interface name \"abcdefghijklmnop\" has 16 bytes; Linux allows 15",
        ),
        (
            "239.1.1.1%a/b:1",
            "239.1.1.1%a/b:1: interface name \"a/b\" holds '/', which is not allowed there",
        ),
        (
            "239.1.1.1 %eth0:1",
            "\"239.1.1.1 %eth0:1\": holds white space; write it without",
        ),
        (
            "udp://@239.1.1.1:5001",
            "udp://@239.1.1.1:5001: is a URL; write GROUP%IFACE:PORT, as in 239.1.1.1%eth0:5001",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
}

#[test]
fn stands_in_json_as_its_text() {
    let endpoint = parse("239.1.1.1%eth0:5001");
    let json = serde_json::to_string(&endpoint).unwrap();
    assert_eq!(json, "\"239.1.1.1%eth0:5001\"");
    assert_eq!(serde_json::from_str::<Endpoint>(&json).unwrap(), endpoint);
    let error = serde_json::from_str::<Endpoint>("\"239.1.1.1:0\"").unwrap_err();
    assert!(error.to_string().contains("port 0 cannot be used"));
}

proptest! {
    #[test]
    fn survives_printing_and_parsing(endpoint in crate::samples::endpoint()) {
        prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
    }

    #[test]
    fn never_panics_on_any_text(text in "\\PC*") {
        if let Ok(endpoint) = text.parse::<Endpoint>() {
            let printed = endpoint.to_string();
            prop_assert_eq!(printed.parse::<Endpoint>().unwrap(), endpoint);
        }
    }

    #[test]
    fn never_panics_on_nearly_right_text(text in "[0-9a-f:.@%/,\\[\\]*-]{0,40}") {
        if let Ok(endpoint) = text.parse::<Endpoint>() {
            let printed = endpoint.to_string();
            prop_assert_eq!(printed.parse::<Endpoint>().unwrap(), endpoint);
        }
    }
}
