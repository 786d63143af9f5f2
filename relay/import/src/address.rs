//! Addresses, ports and interfaces as files write them; each error says what is wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rules::endpoint::check_interface_name;
use rules::net::{Ports, Prefix};

use crate::remark::{SOURCES_MAX, Why, excerpt};

/// Reads a group.
pub(crate) fn group(text: &str) -> Result<IpAddr, Why> {
    let address = address(text)?;
    if address.is_multicast() {
        Ok(address)
    } else {
        Err(Why::Unicast(excerpt(text)))
    }
}

/// Reads a group or a range of groups; bits beyond the prefix are ignored, as smcroute does.
pub(crate) fn groups(text: &str) -> Result<Prefix, Why> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let group = group(address)?;
    let whole = Prefix::host(group);
    let Some(length) = length else {
        return Ok(whole);
    };
    let length = length.parse().ok().filter(|length| *length <= whole.length);
    match length.ok_or(Why::Form("a range of groups, as in 225.0.0.0/24"))? {
        0 => Ok(whole),
        length => Ok(Prefix::new(group, length)),
    }
}

/// Reads the senders of a group; none is named twice.
pub(crate) fn sources<'t>(
    texts: impl IntoIterator<Item = &'t str>,
    group: IpAddr,
) -> Result<Vec<IpAddr>, Why> {
    let parsed = texts.into_iter().take(SOURCES_MAX + 1).map(address);
    hosts(parsed.collect::<Result<Vec<IpAddr>, Why>>()?, group)
}

/// Reads a sender, or a range small enough to list each one.
pub(crate) fn senders(text: &str, group: IpAddr) -> Result<Vec<IpAddr>, Why> {
    let Some((first, length)) = text.split_once('/') else {
        return sources([text], group);
    };
    let first = address(first)?;
    let whole = Prefix::host(first).length;
    let length: Option<u8> = length.parse().ok().filter(|length| *length <= whole);
    let length = length.ok_or(Why::Form("a range of senders, as in 10.0.0.0/28"))?;
    let size = 1_u32.checked_shl((whole - length).into());
    let count = size.filter(|size| *size as usize <= SOURCES_MAX);
    let first = Prefix::new(first, length).address;
    let members = (0..count.ok_or(Why::SourceRange)?).filter_map(|n| offset(first, n));
    hosts(members, group)
}

/// The senders of a group, each once.
pub(crate) fn hosts(
    addresses: impl IntoIterator<Item = IpAddr>,
    group: IpAddr,
) -> Result<Vec<IpAddr>, Why> {
    let mut hosts = Vec::new();
    for source in addresses {
        if source.is_ipv4() != group.is_ipv4() || !is_host(source) {
            return Err(Why::Source(source.to_string()));
        }
        if hosts.contains(&source) {
            continue;
        }
        if hosts.len() == SOURCES_MAX {
            return Err(Why::TooManySources);
        }
        hosts.push(source);
    }
    Ok(hosts)
}

/// Reads a port.
pub(crate) fn port(text: &str) -> Result<Ports, Why> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.map(Ports::single)
        .ok_or_else(|| Why::Port(excerpt(text)))
}

/// Reads the name of an interface.
pub(crate) fn interface(text: &str) -> Result<String, Why> {
    check_interface_name(text).map_err(Why::Interface)?;
    Ok(text.to_owned())
}

/// Reads an address.
pub(crate) fn address(text: &str) -> Result<IpAddr, Why> {
    text.parse().map_err(|_| Why::Name(excerpt(text)))
}

/// The address `n` after `first`; `None` past the end of the address space.
pub(crate) fn offset(first: IpAddr, n: u32) -> Option<IpAddr> {
    Some(match first {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().checked_add(n)?).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits().checked_add(n.into())?).into(),
    })
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !address.is_multicast() && !address.is_unspecified() && !is_broadcast
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_groups_may_have_more_bits_than_it_needs() {
        let written = |text| groups(text).map(|groups| groups.to_string());
        assert_eq!(written("225.1.2.3"), Ok("225.1.2.3".to_owned()));
        assert_eq!(written("225.1.2.3/24"), Ok("225.1.2.0/24".to_owned()));
        assert_eq!(written("225.1.2.3/0"), Ok("225.1.2.3".to_owned()));
        assert_eq!(written("ff3e::1/120"), Ok("ff3e::/120".to_owned()));
        assert!(written("225.1.2.3/33").is_err() && written("225.1.2.3/x").is_err());
        assert_eq!(written("10.1.2.3/8"), Err(Why::Unicast("10.1.2.3".into())));
    }

    #[test]
    fn senders_are_hosts_of_the_family_of_the_group_and_each_is_there_once() {
        let group = "232.1.1.1".parse().unwrap();
        let read = |texts: &[&str]| sources(texts.iter().copied(), group);
        assert_eq!(
            read(&["10.0.0.1", "10.0.0.2", "10.0.0.1"]).map(|s| s.len()),
            Ok(2)
        );
        for wrong in ["0.0.0.0", "239.1.1.1", "255.255.255.255", "2001:db8::1"] {
            assert_eq!(read(&[wrong]), Err(Why::Source(wrong.into())));
        }
        assert_eq!(read(&["cam1"]), Err(Why::Name("cam1".into())));
        let many: Vec<String> = (0..=SOURCES_MAX)
            .map(|n| format!("10.0.0.{}", n + 1))
            .collect();
        let parsed = sources(many.iter().map(String::as_str), group);
        assert_eq!(parsed, Err(Why::TooManySources));
    }
}
