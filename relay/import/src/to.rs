//! The output of imported streams, as one option gives it for all of them: a rule's output in which
//! group and port may be omitted, and then are those of each stream.

use std::net::Ipv6Addr;
use std::str::FromStr;

use rules::endpoint::{Endpoint, EndpointProblem};
use rules::net::Prefix;
use rules::rule::{OutputProblem, OutputSpec};
use thiserror::Error;

/// An output for many streams: `%eth1`, `%eth1:6000,ttl=16`, `239.20.0.0/16%eth1`, `10.9.9.9`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    /// The output of IPv4 streams; its group and port apply unless the stream's are kept.
    ipv4: Option<OutputSpec>,
    /// The output of IPv6 streams.
    ipv6: Option<OutputSpec>,
    keeps_group: bool,
    keeps_port: bool,
}

/// A text that is not such an output.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0}; write %IFACE to keep group and port, or [GROUP[/LENGTH]]%IFACE[:PORT] or \
     ADDRESS[:PORT] or NAME[:PORT], and options as outputs have them"
)]
pub struct ToError(OutputProblem);

impl To {
    /// Whether each stream keeps its group and port.
    pub(crate) const fn keeps_both(&self) -> bool {
        self.keeps_group && self.keeps_port
    }

    /// The output of a stream that arrives at `input`; none if the families differ.
    pub fn output(&self, input: &Endpoint) -> Option<OutputSpec> {
        let template = if input.is_ipv4() {
            &self.ipv4
        } else {
            &self.ipv6
        };
        let mut output = template.clone()?;
        let range = output.to.destination;
        if self.keeps_group {
            output.to.destination = input.destination;
        } else if output.to.is_multicast() && range.length <= input.destination.length {
            let group = range.carry(input.destination.address);
            output.to.destination = Prefix::new(group, input.destination.length);
        }
        if self.keeps_port {
            output.to.ports = input.ports;
        }
        Some(output)
    }
}

impl FromStr for To {
    type Err = ToError;

    fn from_str(text: &str) -> Result<Self, ToError> {
        let options = text.find(',').unwrap_or(text.len());
        let (endpoint, options) = text.split_at(options);
        let (address, port) = split_port(endpoint);
        let keeps_port = port.is_none();
        let port = port.unwrap_or("1");
        let keeps_group = address.starts_with('%') || address.starts_with("[%");
        let parse = |address: &str| {
            let output = format!("{address}:{port}{options}").parse::<OutputSpec>();
            output.map_err(|error| ToError(error.problem))
        };
        if !keeps_group {
            let output = parse(address)?;
            let (ipv4, ipv6) = match (&output.name, output.to.is_ipv4()) {
                (Some(name), _) => {
                    // Probably an interface whose % was forgotten.
                    if !name.as_str().contains('.') {
                        let (text, family) = (name.to_string(), "IPv4");
                        let problem = EndpointProblem::DestinationInvalid { text, family };
                        return Err(ToError(problem.into()));
                    }
                    let of_ipv6 = output.resolved(Ipv6Addr::UNSPECIFIED.into());
                    (Some(output), Some(of_ipv6))
                }
                (None, true) => (Some(output), None),
                (None, false) => (None, Some(output)),
            };
            return Ok(Self {
                ipv4,
                ipv6,
                keeps_group,
                keeps_port,
            });
        }
        // An option of one family, such as source=ADDRESS, restricts the output to that family.
        let name = address.trim_start_matches('[').trim_end_matches(']');
        let ipv4 = parse(&format!("224.0.0.0/4{name}"));
        let ipv6 = parse(&format!("[ff00::/8{name}]"));
        if let (Err(error), Err(_)) = (&ipv4, &ipv6) {
            return Err(error.clone());
        }
        Ok(Self {
            ipv4: ipv4.ok().filter(|_| address.starts_with('%')),
            ipv6: ipv6.ok(),
            keeps_group,
            keeps_port,
        })
    }
}

/// Splits off the port: what follows the last colon that is not within brackets.
fn split_port(endpoint: &str) -> (&str, Option<&str>) {
    let from = endpoint.rfind(']').map_or(0, |bracket| bracket + 1);
    match endpoint[from..].rsplit_once(':') {
        Some((rest, port)) => (&endpoint[..from + rest.len()], Some(port)),
        None => (endpoint, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn output(to: &str, input: &str) -> Option<String> {
        let to: To = to.parse().unwrap();
        let output = to.output(&input.parse().unwrap())?;
        Some(output.to_string())
    }

    #[test]
    fn keeps_what_it_omits_from_the_stream() {
        let (ipv4, ipv6) = ("10.0.0.5@239.1.1.7%eth0:5004", "[ff3e::1:7%eth0]:5004");
        let range = "239.1.1.0/24%eth0:5000-5009";
        for (to, input, expected) in [
            ("%eth1", ipv4, "239.1.1.7%eth1:5004"),
            ("%eth1", ipv6, "[ff3e::1:7%eth1]:5004"),
            ("%eth1", range, "239.1.1.0/24%eth1:5000-5009"),
            ("%eth1:6000,ttl=16", ipv4, "239.1.1.7%eth1:6000,ttl=16"),
            ("239.20.0.0/16%eth1", ipv4, "239.20.1.7%eth1:5004"),
            ("239.20.0.0/16%eth1:6000", ipv4, "239.20.1.7%eth1:6000"),
            ("239.20.0.0/16%eth1", range, "239.20.1.0/24%eth1:5000-5009"),
            ("239.20.0.1%eth1", ipv4, "239.20.0.1%eth1:5004"),
            ("[ff35::/32%eth1]", ipv6, "[ff35::1:7%eth1]:5004"),
            ("[%eth1]", ipv6, "[ff3e::1:7%eth1]:5004"),
            ("10.9.9.9", ipv4, "10.9.9.9:5004"),
            (
                "10.9.9.9%eth2:7000,dscp=34",
                ipv4,
                "10.9.9.9%eth2:7000,dscp=34",
            ),
            ("[2001:db8::9]", ipv6, "[2001:db8::9]:5004"),
            ("recorder.example", ipv4, "recorder.example:5004"),
            ("recorder.example:7000", ipv6, "recorder.example:7000"),
        ] {
            assert_eq!(output(to, input).as_deref(), Some(expected), "{to}");
        }
    }

    #[test]
    fn applies_to_streams_of_its_family() {
        let (ipv4, ipv6) = ("239.1.1.7%eth0:5004", "[ff3e::7%eth0]:5004");
        for (to, input) in [
            ("10.9.9.9", ipv6),
            ("[ff35::/32%eth1]", ipv4),
            ("[%eth1]", ipv4),
            ("%eth1,source=10.0.0.1", ipv6),
            ("%eth1,source=2001:db8::1", ipv4),
        ] {
            assert_eq!(output(to, input), None, "{to}");
        }
    }

    #[test]
    fn says_what_is_wrong_and_what_to_write() {
        for (to, expected) in [
            ("", "\"\" is not an IPv4 address"),
            ("eth1", "\"eth1\" is not an IPv4 address"),
            ("%", "no interface follows the %"),
            ("%eth1,tll=3", "there is no option \"tll\""),
            ("%eth1:0", "port 0 cannot be used"),
            ("ff3e::1%eth1", "IPv6 needs brackets"),
            ("10.0.0.1@239.1.1.1%eth1", "does not choose among sources"),
        ] {
            let error = to.parse::<To>().unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
            assert!(error.contains("write %IFACE to keep"), "{to}: {error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_any_text(text in "\\PC*") {
            let _ = text.parse::<To>();
        }
    }
}
