//! Stream URLs of players, `udp://@239.1.1.1:1234`, `rtp://10.0.0.5@[ff3e::1%eth0]:5004`, and of proxies
//! such as udpxy, `http://proxy:4022/udp/239.1.1.1:1234`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use rules::endpoint::is_wildcard;
use rules::net::{Ports, Prefix};

use crate::address::{address, group, interface, port, sources};
use crate::parsed::{Leg, Parsed, Stream};
use crate::remark::{Position, Why, excerpt};

/// The port that VLC listens on if `udp://` names none.
const UDP_PORT: u16 = 1234;
/// The same for `rtp://`.
const RTP_PORT: u16 = 5004;

/// Options that concern the player and not the stream: buffers, timeouts and its own socket.
const PLAYER_OPTIONS: [&str; 17] = [
    "bitrate",
    "broadcast",
    "buffer_size",
    "burst_bits",
    "connect",
    "dscp",
    "fifo_size",
    "localport",
    "overrun_nonfatal",
    "pkt_size",
    "read_buffer_size",
    "reorder_queue_size",
    "reuse",
    "rw_timeout",
    "timeout",
    "ttl",
    "udplite_coverage",
];

/// Adds the stream of a URL, with VLC's options for it, and reports what is not taken over.
pub(crate) fn stream(
    url: &str,
    position: &Position,
    (name, options): (Option<String>, &[String]),
    parsed: &mut Parsed,
) -> Result<(), Why> {
    let url = with_options(url, options);
    let (leg, rejected) = leg(&url)?;
    for why in rejected {
        parsed.skip(position.clone(), &url, why);
    }
    parsed.add(Stream::single(position.clone(), name, leg));
    Ok(())
}

/// The URL with VLC's options for the interface appended.
fn with_options(url: &str, options: &[String]) -> String {
    let mut whole = url.to_owned();
    let of_interface = options.iter().filter(|option| option.starts_with("miface"));
    for option in of_interface {
        let sign = if whole.contains('?') { '&' } else { '?' };
        let end = whole.find(['#', '|']).unwrap_or(whole.len());
        whole.insert_str(end, &format!("{sign}{option}"));
    }
    whole
}

/// Parses the stream of a URL, and what of the URL is not taken over.
fn leg(url: &str) -> Result<(Leg, Vec<Why>), Why> {
    let Some((scheme, rest)) = split_scheme(url) else {
        return direct(url, UDP_PORT).map_err(|_| Why::File);
    };
    let lower = scheme.to_ascii_lowercase();
    // The payload: udp+mpegts, VLC's udp/ts.
    let (kind, payload) = lower.split_once(['+', '/']).unwrap_or((&lower, ""));
    match kind {
        "udp" | "udp4" | "udp6" | "igmp" if !payload.contains("rtp") => direct(rest, UDP_PORT),
        "udp" | "udp4" | "udp6" | "igmp" | "rtp" | "rtp4" | "rtp6" => direct(rest, RTP_PORT),
        "http" | "https" => match proxied(rest) {
            Some((stream, port)) => direct(stream, port),
            None => Err(Why::Scheme(excerpt(scheme))),
        },
        _ => Err(Why::Scheme(excerpt(scheme))),
    }
}

/// The scheme and what follows `://`; old players wrote `udp:@239.1.1.1`.
fn split_scheme(url: &str) -> Option<(&str, &str)> {
    if let Some((scheme, rest)) = url.split_once("://") {
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '/');
        let is_word = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
        return (is_word && scheme.chars().all(is_scheme)).then_some((scheme, rest));
    }
    let (scheme, rest) = url.split_once(":@")?;
    matches!(scheme, "udp" | "rtp").then_some((scheme, &url[url.len() - rest.len() - 1..]))
}

/// The stream that a proxy URL names: a path that begins with `/udp/` or `/rtp/` and a group.
fn proxied(rest: &str) -> Option<(&str, u16)> {
    let (_, path) = rest.split_once('/')?;
    let (kind, stream) = path.split_once('/')?;
    match kind {
        "udp" => Some((stream, UDP_PORT)),
        "rtp" => Some((stream, RTP_PORT)),
        _ => None,
    }
}

/// Parses `[SOURCE|INTERFACE@]GROUP[:PORT]`, or the reverse order that proxies use, and the options
/// after it.
fn direct(rest: &str, default: u16) -> Result<(Leg, Vec<Why>), Why> {
    let end = rest.find(['/', '?', '#', '|']).unwrap_or(rest.len());
    let (authority, more) = rest.split_at(end);
    let authority: Cow<str> = percent_decode_str(authority).decode_utf8_lossy();
    let (from, destination) = match authority.rsplit_once('@') {
        Some((group, from)) if is_group(group) && !is_group(from) => (without_port(from), group),
        Some((from, destination)) => (from, destination),
        None => ("", authority.as_ref()),
    };
    let (address, port) = split_port(destination, default)?;
    let (address, zone) = match address.split_once('%') {
        Some((address, name)) => (address, Some(interface(name)?)),
        None => (address, None),
    };
    if address.is_empty() {
        return Err(Why::NoGroup);
    }
    let group = group(address)?;
    let options = Options::of(more)?;
    let from_interface = Some(from).filter(|from| is_interface(from));
    let source = if from_interface.is_some() { "" } else { from };
    let named = options
        .sources
        .iter()
        .flat_map(|sources| sources.split(','))
        .chain([source])
        .map(|source| source.trim_start_matches('[').trim_end_matches(']'))
        .filter(|text| !text.is_empty());
    let leg = Leg {
        sources: sources(named, group)?,
        group: Prefix::host(group),
        ports: Some(port),
        interface: zone
            .or(from_interface.map(str::to_owned))
            .or(options.interface),
        number: 0,
    };
    Ok((leg, options.rejected))
}

/// A sender in rtp2httpd's form, `10.0.0.5:5004`, without its port, which rules ignore.
fn without_port(sender: &str) -> &str {
    let host = match sender.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => sender.split_once(':').map(|(host, _)| host),
    };
    host.filter(|host| address(host).is_ok()).unwrap_or(sender)
}

fn is_group(text: &str) -> bool {
    split_port(text, UDP_PORT).is_ok_and(|(address, _)| {
        let without_zone = address.split('%').next().unwrap_or(address);
        group(without_zone).is_ok()
    })
}

/// Whether a text can be an interface, and neither an address nor a host name: the last part of a host
/// name is no number, unlike that of eth0.100.
fn is_interface(text: &str) -> bool {
    let is_name = interface(text).is_ok() && !is_wildcard(text) && address(text).is_err();
    let last = text.rsplit_once('.').map(|(_, last)| last);
    is_name && last.is_none_or(|last| last.parse::<u16>().is_ok())
}

fn split_port(destination: &str, default: u16) -> Result<(&str, Ports), Why> {
    let (address, port) = match destination.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .ok_or(Why::Form("an address in brackets"))?,
        None => match destination.find(':') {
            Some(colon) => destination.split_at(colon),
            None => (destination, ""),
        },
    };
    let ports = match port.strip_prefix(':') {
        Some(text) => self::port(text)?,
        None if port.is_empty() => Ports::single(default),
        None => return Err(Why::Port(excerpt(port))),
    };
    Ok((address, ports))
}

/// The options after `?`.
#[derive(Default)]
struct Options {
    sources: Vec<String>,
    interface: Option<String>,
    rejected: Vec<Why>,
}

impl Options {
    fn of(more: &str) -> Result<Self, Why> {
        let mut options = Self::default();
        let rest = more.split_once('?').map_or("", |(_, rest)| rest);
        let query = rest.split(['#', '|']).next().unwrap_or(rest);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            match key {
                "source" | "sources" => options.sources.push(value.into_owned()),
                "block" => return Err(Why::Excludes),
                "interface" | "iface" | "multicast-iface" | "localaddr" | "miface"
                | "miface-addr" => {
                    if is_interface(&value) {
                        options.interface = Some(value.into_owned())
                    } else {
                        options.rejected.push(Why::HostAddress(excerpt(&value)))
                    }
                }
                "fec" => options.rejected.push(Why::Fec),
                key if PLAYER_OPTIONS.contains(&key) => {}
                key => options.rejected.push(Why::Option(excerpt(key))),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use rules::endpoint::Endpoint;

    use super::*;

    fn parse(url: &str) -> Result<String, String> {
        let (leg, _) = leg(url).map_err(|why| why.to_string())?;
        let endpoint = Endpoint {
            sources: leg.senders(),
            destination: leg.group,
            interface: leg.interface,
            ports: leg.ports.unwrap(),
            rejoin: None,
        };
        Ok(endpoint.to_string())
    }

    #[test]
    fn reads_what_players_write() {
        for (url, endpoint) in [
            ("udp://@239.1.1.1:1234", "239.1.1.1:1234"),
            ("udp://239.1.1.1:1234", "239.1.1.1:1234"),
            ("UDP://@239.1.1.1:1234/", "239.1.1.1:1234"),
            ("udp:@239.1.1.1:1234", "239.1.1.1:1234"),
            ("udp://@239.1.1.1", "239.1.1.1:1234"),
            ("rtp://@239.1.1.1", "239.1.1.1:5004"),
            ("rtp://10.0.0.5@232.1.1.1:5004", "10.0.0.5@232.1.1.1:5004"),
            ("rtp://@[ff3e::1]:5004", "[ff3e::1]:5004"),
            (
                "rtp://[2001:db8::5]@[ff3e::1]:5004",
                "[2001:db8::5@ff3e::1]:5004",
            ),
            ("udp://@[ff05::1%25eth0]:5004", "[ff05::1%eth0]:5004"),
            ("udp://%40239.1.1.1:1234", "239.1.1.1:1234"),
            (
                "udp://239.1.1.1:1234?fifo_size=1000000&sources=10.0.0.5,10.0.0.6&overrun_nonfatal=1",
                "10.0.0.5,10.0.0.6@239.1.1.1:1234",
            ),
            ("udp://@239.1.1.1:1234|x=y", "239.1.1.1:1234"),
            ("http://10.0.0.1:4022/udp/239.1.1.1:1234", "239.1.1.1:1234"),
            ("http://proxy/rtp/239.1.1.1:5004/", "239.1.1.1:5004"),
            (
                "udp://232.1.1.1:5000?source=10.0.0.1",
                "10.0.0.1@232.1.1.1:5000",
            ),
            (
                "udp://[ff3e::1]:5000?source=2001:db8::1&sources=2001:db8::2%2C2001:db8::3",
                "[2001:db8::1,2001:db8::2,2001:db8::3@ff3e::1]:5000",
            ),
            (
                "http://proxy:5140/rtp/232.1.1.19:1234@10.0.0.7:0",
                "10.0.0.7@232.1.1.19:1234",
            ),
            (
                "udp://[ff3e::2]:5000?source=[2001:db8::1]",
                "[2001:db8::1@ff3e::2]:5000",
            ),
            ("udp://eth0@239.255.1.1:1234", "239.255.1.1%eth0:1234"),
            ("udp://eth0.100@239.255.1.1", "239.255.1.1%eth0.100:1234"),
            ("rtp://eth0@[ff3e::1]:5000", "[ff3e::1%eth0]:5000"),
            ("igmp://239.11.0.10:5140", "239.11.0.10:5140"),
            ("udp+mpegts://239.1.1.1:1234", "239.1.1.1:1234"),
            ("udp+rtp://239.1.1.1", "239.1.1.1:5004"),
            ("udp/ts://@239.1.1.3:1234", "239.1.1.3:1234"),
            ("rtp/ts://@239.1.1.3", "239.1.1.3:5004"),
            ("239.1.1.3:1234@vlan777", "239.1.1.3%vlan777:1234"),
            ("@239.1.1.3:1234", "239.1.1.3:1234"),
            (
                "http://proxy/udp/239.1.1.3:1234@vlan777",
                "239.1.1.3%vlan777:1234",
            ),
            (
                "http://proxy/rtp/232.1.1.3:1234@10.0.0.5",
                "10.0.0.5@232.1.1.3:1234",
            ),
            ("udp://[ff3e::1]:1234@eth1", "[ff3e::1%eth1]:1234"),
            ("udp://239.1.1.3:1234?interface=eth1", "239.1.1.3%eth1:1234"),
        ] {
            assert_eq!(parse(url), Ok(endpoint.to_owned()), "{url}");
        }
    }

    #[test]
    fn reports_which_options_are_not_taken_over() {
        let rejected = |url| leg(url).unwrap().1;
        let url =
            "udp://239.1.1.1:1?fec=4055&fcc=10.0.0.1:2&interface=10.0.0.7&reuse=1&pkt_size=1316";
        assert_eq!(
            rejected(url),
            [
                Why::Fec,
                Why::Option("fcc".into()),
                Why::HostAddress("10.0.0.7".into())
            ]
        );
        assert_eq!(rejected("udp://239.1.1.1:1?&#x"), []);
    }

    #[test]
    fn reports_why_a_url_cannot_be_a_rule() {
        for (url, why) in [
            (
                "http://example.org/tv.m3u8",
                "http is not multicast over UDP",
            ),
            ("rtsp://10.0.0.1/cam", "rtsp is not multicast over UDP"),
            ("movie.ts", "names a file, not a stream"),
            ("/srv/a b://x", "names a file, not a stream"),
            ("udp://@:1234", "names no group"),
            ("udp://10.0.0.1:1234", "10.0.0.1 is not a multicast group"),
            ("udp://@tv.example:1234", "tv.example is not an address"),
            (
                "udp://me.example@239.1.1.1:1",
                "me.example is not an address",
            ),
            ("udp://@239.1.1.1:0", "0 is not a port"),
            ("udp://@239.1.1.1:99999", "99999 is not a port"),
            ("udp://@[ff3e::1:5004", "is not an address in brackets"),
            ("udp://@[ff3e::1]5004", "5004 is not a port"),
            ("udp://@[ff05::1%25a:b]:5004", "interface: "),
            ("udp://@239.1.1.1:1?block=10.0.0.5", "exclude none"),
            ("udp://[2001:db8::5]@239.1.1.1:1", "cannot be its sender"),
            ("http://proxy/udp/tv:1", "tv is not an address"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
