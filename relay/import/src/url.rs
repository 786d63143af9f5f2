//! Streams as players write them: `udp://@239.1.1.1:1234`, `rtp://10.0.0.5@[ff3e::1%eth0]:5004`, and what a
//! proxy such as udpxy is asked for, `http://proxy:4022/udp/239.1.1.1:1234`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use rules::net::{Ports, Prefix};

use crate::address::{group, interface, port, sources};
use crate::found::Leg;
use crate::remark::{Why, excerpt};

/// The port that VLC listens at where `udp://` names none.
const UDP_PORT: u16 = 1234;
/// The same for `rtp://`.
const RTP_PORT: u16 = 5004;

/// Reads the stream that a URL names.
pub(crate) fn leg(url: &str) -> Result<Leg, Why> {
    let (scheme, rest) = split_scheme(url).ok_or(Why::File)?;
    match scheme.to_ascii_lowercase().as_str() {
        "udp" | "udp4" | "udp6" => direct(rest, UDP_PORT),
        "rtp" | "rtp4" | "rtp6" => direct(rest, RTP_PORT),
        "http" | "https" => match proxied(rest) {
            Some((stream, port)) => direct(stream, port),
            None => Err(Why::Scheme(excerpt(scheme))),
        },
        _ => Err(Why::Scheme(excerpt(scheme))),
    }
}

/// The scheme and what stands behind `://`; old players wrote `udp:@239.1.1.1`.
fn split_scheme(url: &str) -> Option<(&str, &str)> {
    if let Some((scheme, rest)) = url.split_once("://") {
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        return scheme.chars().all(is_scheme).then_some((scheme, rest));
    }
    let (scheme, rest) = url.split_once(":@")?;
    matches!(scheme, "udp" | "rtp").then_some((scheme, &url[url.len() - rest.len() - 1..]))
}

/// What a proxy is asked for: a path that begins with `/udp/` or `/rtp/` and a group.
fn proxied(rest: &str) -> Option<(&str, u16)> {
    let (_, path) = rest.split_once('/')?;
    let (kind, stream) = path.split_once('/')?;
    match kind {
        "udp" => Some((stream, UDP_PORT)),
        "rtp" => Some((stream, RTP_PORT)),
        _ => None,
    }
}

/// Reads `[SOURCE@]GROUP[:PORT]`, and FFmpeg's `?sources=` behind it.
fn direct(rest: &str, default: u16) -> Result<Leg, Why> {
    let end = rest.find(['/', '?', '#', '|']).unwrap_or(rest.len());
    let (authority, more) = rest.split_at(end);
    let authority: Cow<str> = percent_decode_str(authority).decode_utf8_lossy();
    let (source, destination) = match authority.rsplit_once('@') {
        Some((source, destination)) => (source, destination),
        None => ("", authority.as_ref()),
    };
    let (address, port) = split_port(destination, default)?;
    let (address, interface) = match address.split_once('%') {
        Some((address, name)) => (address, Some(interface(name)?)),
        None => (address, None),
    };
    if address.is_empty() {
        return Err(Why::NoGroup);
    }
    let group = group(address)?;
    let source = source.trim_start_matches('[').trim_end_matches(']');
    let named = option(more, "sources").unwrap_or_default();
    if option(more, "block").is_some() {
        return Err(Why::Excludes);
    }
    let named = named
        .split(',')
        .chain([source])
        .filter(|text| !text.is_empty());
    Ok(Leg {
        sources: sources(named, group)?,
        group: Prefix::host(group),
        ports: Some(port),
        interface,
    })
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

/// The value of an option behind `?`.
fn option<'t>(more: &'t str, key: &str) -> Option<&'t str> {
    let (_, query) = more.split_once('?')?;
    let query = query.split(['#', '|']).next().unwrap_or(query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(found, _)| *found == key);
    values.next().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use rules::endpoint::Endpoint;

    use super::*;

    fn read(url: &str) -> Result<String, String> {
        let leg = leg(url).map_err(|why| why.to_string())?;
        let endpoint = Endpoint {
            sources: leg.senders(),
            destination: leg.group,
            interface: leg.interface,
            ports: leg.ports.unwrap(),
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
        ] {
            assert_eq!(read(url), Ok(endpoint.to_owned()), "{url}");
        }
    }

    #[test]
    fn says_what_it_cannot_be_a_rule_of() {
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
            ("udp://me@239.1.1.1:1234", "me is not an address"),
            ("udp://@239.1.1.1:0", "0 is not a port"),
            ("udp://@239.1.1.1:99999", "99999 is not a port"),
            ("udp://@[ff3e::1:5004", "is not an address in brackets"),
            ("udp://@[ff3e::1]5004", "5004 is not a port"),
            ("udp://@[ff05::1%25a:b]:5004", "interface: "),
            ("udp://@239.1.1.1:1?block=10.0.0.5", "exclude none"),
            ("udp://[2001:db8::5]@239.1.1.1:1", "cannot be its sender"),
            ("http://proxy/udp/tv:1", "tv is not an address"),
        ] {
            let said = read(url).unwrap_err();
            assert!(said.contains(why), "{url}: {said}");
        }
    }
}
