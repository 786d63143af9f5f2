//! The capture filter: the part of pcap-filter(7) that applies to UDP datagrams. An unknown word is an error,
//! never a filter that accepts everything.

use rules::net::{Ports, Prefix};

use super::headers::Headers;

/// Nesting of parentheses and "not" at most.
const DEPTH_MAX: usize = 32;
/// Words at most: each packet may be tested against all of them, recursively.
const WORDS_MAX: usize = 1000;

/// The supported filters, for error messages.
const SYNTAX: &str = "have: [src|dst] host ADDRESS, [src|dst] net PREFIX, [src|dst] port N, \
                     [src|dst] portrange N-M, less BYTES, greater BYTES, inbound, outbound, \
                     ip, ip6, udp, and, or, not, ( )";

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Not(Box<Self>),
    Host(Side, Prefix),
    Port(Side, Ports),
    /// At most so many bytes, link header included.
    Less(usize),
    /// At least so many.
    Greater(usize),
    Inbound,
    Outbound,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Always true: all packets of a rule are UDP.
    Udp,
}

/// Whether the source or the destination is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
    Either,
}

/// What a filter tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) headers: Headers,
    pub(crate) length: usize,
    pub(crate) outbound: bool,
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// What is wrong with it, for the user.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let spaced = text
            .replace('(', " ( ")
            .replace(')', " ) ")
            .replace('!', " not ")
            .replace("&&", " and ")
            .replace("||", " or ");
        let mut words = Words {
            remaining: spaced.split_whitespace().rev().collect(),
            depth: 0,
        };
        if words.remaining.len() > WORDS_MAX {
            return Err(format!("more than {WORDS_MAX} words"));
        }
        let filter = words.joined()?;
        match words.remaining.pop() {
            None => Ok(filter),
            Some(word) => Err(format!("{word:?}: expected \"and\" or \"or\"")),
        }
    }

    /// Whether it accepts a packet.
    pub(crate) fn wants(&self, packet: &Packet) -> bool {
        match self {
            Self::And(a, b) => a.wants(packet) && b.wants(packet),
            Self::Or(a, b) => a.wants(packet) || b.wants(packet),
            Self::Not(a) => !a.wants(packet),
            Self::Host(side, hosts) => {
                let headers = &packet.headers;
                side.any(headers.source, headers.destination, |address| {
                    hosts.contains(address)
                })
            }
            Self::Port(side, ports) => packet.headers.ports.is_some_and(|(source, destination)| {
                side.any(source, destination, |port| ports.contains(port))
            }),
            Self::Less(most) => packet.length <= *most,
            Self::Greater(least) => packet.length >= *least,
            Self::Inbound => !packet.outbound,
            Self::Outbound => packet.outbound,
            Self::Ip => packet.headers.source.is_ipv4(),
            Self::Ip6 => packet.headers.source.is_ipv6(),
            Self::Udp => true,
        }
    }
}

impl Side {
    fn any<T>(self, source: T, destination: T, test: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => test(source),
            Self::Destination => test(destination),
            Self::Either => test(source) || test(destination),
        }
    }
}

/// The remaining words, the next one last.
struct Words<'a> {
    remaining: Vec<&'a str>,
    depth: usize,
}

impl<'a> Words<'a> {
    /// Neither "and" nor "or" binds closer, as pcap-filter(7) has it: from left to right.
    fn joined(&mut self) -> Result<Filter, String> {
        let mut filter = self.one()?;
        loop {
            let join = if self.takes("and") {
                Filter::And
            } else if self.takes("or") {
                Filter::Or
            } else {
                return Ok(filter);
            };
            filter = join(Box::new(filter), Box::new(self.one()?));
        }
    }

    fn one(&mut self) -> Result<Filter, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} parentheses and \"not\""));
        }
        let filter = match self.next("a filter")? {
            "not" => Filter::Not(Box::new(self.one()?)),
            "(" => {
                let inner = self.joined()?;
                match self.next("\")\"")? {
                    ")" => inner,
                    word => return Err(format!("{word:?}: expected \")\"")),
                }
            }
            "less" => Filter::Less(self.number()?),
            "greater" => Filter::Greater(self.number()?),
            "inbound" => Filter::Inbound,
            "outbound" => Filter::Outbound,
            "ip" => self.narrowed(Filter::Ip)?,
            "ip6" => self.narrowed(Filter::Ip6)?,
            "udp" => self.narrowed(Filter::Udp)?,
            "src" => self.of(Side::Source)?,
            "dst" => self.of(Side::Destination)?,
            word => {
                self.remaining.push(word);
                self.of(Side::Either)?
            }
        };
        self.depth -= 1;
        Ok(filter)
    }

    /// A protocol by itself, or in front of what it narrows: `udp port 5001`.
    fn narrowed(&mut self, protocol: Filter) -> Result<Filter, String> {
        match self.remaining.last() {
            None | Some(&("and" | "or" | ")")) => Ok(protocol),
            Some(_) => Ok(Filter::And(Box::new(protocol), Box::new(self.one()?))),
        }
    }

    fn of(&mut self, side: Side) -> Result<Filter, String> {
        let kind = self.next("host, net, port or portrange")?;
        match kind {
            "host" | "net" => {
                let hosts = prefix(self.next(kind)?)?;
                Ok(Filter::Host(side, hosts))
            }
            "port" | "portrange" => {
                let ports = ports(self.next(kind)?)?;
                Ok(Filter::Port(side, ports))
            }
            // `src 10.0.0.5`, as tcpdump has it.
            word if side != Side::Either && prefix(word).is_ok() => {
                Ok(Filter::Host(side, prefix(word)?))
            }
            word => Err(format!("{word:?}: no such filter ({SYNTAX})")),
        }
    }

    fn number(&mut self) -> Result<usize, String> {
        let word = self.next("a number of bytes")?;
        let number = word.parse();
        number.map_err(|_| format!("{word:?}: not a number of bytes"))
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.remaining.last() == Some(&word);
        if is_next {
            self.remaining.pop();
        }
        is_next
    }

    fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        let next = self.remaining.pop();
        next.ok_or_else(|| format!("it ends where {expected} is expected"))
    }
}

fn prefix(word: &str) -> Result<Prefix, String> {
    Prefix::parse(word).ok_or_else(|| format!("{word:?}: not an address or a prefix"))
}

fn ports(word: &str) -> Result<Ports, String> {
    let wrong = || format!("{word:?}: not a port or a range of ports");
    let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let (first, last) = (port(first)?, port(last)?);
    if first <= last {
        Ok(Ports { first, last })
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::tests::packet;
    use super::*;

    fn wants(text: &str) -> bool {
        let packet = Packet {
            headers: Headers::read(&packet(0)).unwrap(),
            length: 1066,
            outbound: false,
        };
        Filter::parse(text).unwrap().wants(&packet)
    }

    #[test]
    fn filters_accept_the_packets_that_tcpdump_accepts() {
        for text in [
            "host 10.0.0.5",
            "src host 10.0.0.5",
            "src 10.0.0.5",
            "dst net 239.1.0.0/16",
            "dst port 5001",
            "portrange 4000-4010",
            "less 1066",
            "greater 1066",
            "inbound",
            "not outbound and src 10.0.0.5",
            "port 1 or port 2 or port 4000",
            "port 1 and port 2 or port 4000",
            "!(port 1||(port 2)) && dst 239.1.1.7",
            "udp",
            "udp port 5001",
            "ip src host 10.0.0.5 and (udp)",
            "ip6 or udp dst port 5001",
        ] {
            assert!(wants(text), "{text}");
        }
        for text in [
            "host 10.0.0.6",
            "dst host 10.0.0.5",
            "src net 239.1.0.0/16",
            "src port 5001",
            "less 1065",
            "greater 1067",
            "outbound",
            "port 4000 and (port 1 or port 2)",
            // From left to right, as tcpdump has it.
            "port 4000 or port 1 and port 2",
            "src ::5",
            "ip6",
            "not udp port 5001",
            "udp port 1 or ip6 port 5001",
        ] {
            assert!(!wants(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_word() {
        for (text, message) in [
            ("tcp", "\"tcp\": no such filter (have: [src|dst] host"),
            (
                "port 5001 port 5002",
                "\"port\": expected \"and\" or \"or\"",
            ),
            ("port http", "\"http\": not a port"),
            ("src port 9-3", "\"9-3\": not a port"),
            ("host 10.0.0", "\"10.0.0\": not an address"),
            ("net 10.0.0.0/33", "\"10.0.0.0/33\": not an address"),
            ("port 5001 and", "it ends where a filter is expected"),
            ("(port 5001", "it ends where \")\" is expected"),
            ("", "it ends where a filter is expected"),
            ("udp 5001", "\"5001\": no such filter"),
            ("less much", "\"much\": not a number of bytes"),
        ] {
            let refused = Filter::parse(text).unwrap_err();
            assert!(refused.starts_with(message), "{text}: {refused}");
        }
        let deep = format!("{}port 1", "( ".repeat(1000));
        assert!(Filter::parse(&deep).unwrap_err().contains("more than 1000"));
        let deep = format!("{}port 1", "( ".repeat(100));
        assert!(Filter::parse(&deep).unwrap_err().contains("more than 32"));
        let long = format!("udp{}", " or udp".repeat(1_000_000));
        assert!(Filter::parse(&long).unwrap_err().contains("more than 1000"));
    }
}
