//! Where the other relays reach this one: as the configuration says, or at the address from which this
//! host reaches etcd. A name of etcd's may have no address yet, as while a host boots; then the relay
//! takes no part until it has one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use config::FleetSettings;
use etcd::Endpoint;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::received::{Received, Taken};
use crate::error::Error;
use crate::peers::Peers;

/// The UDP port where relays are asked, unless the configuration says another.
const PORT: u16 = 9470;
/// How long to wait before names are asked for again.
const PAUSE: Duration = Duration::from_millis(500);
/// So often a name is waited for that may tell an address which others reach.
const ATTEMPTS: u32 = 20;

/// What the configuration tells and nobody has to be asked for.
///
/// # Errors
///
/// The port cannot be had.
pub(super) fn told(
    settings: &FleetSettings,
    endpoints: &[Endpoint],
) -> Result<Option<Taken>, Error> {
    let numbers: Vec<SocketAddr> = endpoints
        .iter()
        .filter_map(|at| Some((at.host().parse::<IpAddr>().ok()?, at.port()).into()))
        .collect();
    let found = numbers.iter().filter_map(|at| towards(*at).ok());
    let own = settings.peer.or_else(|| best(found));
    // A name may tell better.
    let is_settled = |own: &SocketAddr| {
        settings.peer.is_some() || reaches_others(own) || numbers.len() == endpoints.len()
    };
    let own = own.filter(is_settled);
    own.map(take).transpose().map_err(Error::invalid)
}

/// Asks for names until there is an address, and takes the port.
pub(super) async fn look(endpoints: Vec<Endpoint>, engine: mpsc::UnboundedSender<Received>) {
    // Whoever is asked for names may take long to be given up.
    let hosts: Vec<&str> = endpoints.iter().map(Endpoint::host).collect();
    let reason = format!("looking for the address of {}", hosts.join(", "));
    let _ = engine.send(Received::Away(etcd::Error::Unavailable { reason }));
    for attempt in 0_u32.. {
        let found = look_once(&endpoints, attempt >= ATTEMPTS).await;
        let received = match found.and_then(take) {
            Ok(taken) => {
                let _ = engine.send(Received::Own(taken));
                return;
            }
            Err(reason) => Received::Away(etcd::Error::Unavailable { reason }),
        };
        if engine.send(received).is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

/// An address that others reach, or where there is none, and none is to be hoped for, one of this
/// host's own.
async fn look_once(endpoints: &[Endpoint], takes_any: bool) -> Result<SocketAddr, String> {
    let (mut all, mut reasons) = (Vec::new(), Vec::new());
    for at in endpoints {
        let found = lookup_host((at.host(), at.port())).await;
        let reason = match found {
            Err(error) => format!("cannot find the address of {}: {error}", at.host()),
            Ok(found) => match found.map(towards).reduce(Result::or) {
                Some(Ok(own)) if reaches_others(&own) => return Ok(own),
                Some(Ok(own)) => {
                    all.push(own);
                    continue;
                }
                Some(Err(error)) => error.to_string(),
                None => "its name has no address".to_owned(),
            },
        };
        reasons.push(format!("{at}: {reason}"));
    }
    let own = best(all.into_iter()).filter(|_| takes_any || reasons.is_empty());
    own.ok_or_else(|| reasons.join("; "))
}

/// The first that others reach, or else the first.
fn best(found: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let found: Vec<SocketAddr> = found.collect();
    let outside = found.iter().find(|own| reaches_others(own));
    outside.or(found.first()).copied()
}

fn reaches_others(own: &SocketAddr) -> bool {
    !own.ip().is_loopback()
}

/// The address of this host that an endpoint is reached from.
fn towards(endpoint: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: SocketAddr = match endpoint {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(endpoint)?;
    Ok((socket.local_addr()?.ip(), PORT).into())
}

fn take(at: SocketAddr) -> Result<Taken, String> {
    let socket = Peers::bind(at);
    let socket =
        socket.map_err(|error| format!("[fleet] peer: cannot listen on UDP {at}: {error}"))?;
    Ok((at, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_that_others_reach_comes_before_the_own() {
        let (own, outside) = (at("127.0.0.1:9470"), at("10.0.0.1:9470"));
        assert_eq!(best([own, outside].into_iter()), Some(outside));
        assert_eq!(best([own].into_iter()), Some(own));
        assert_eq!(best(std::iter::empty()), None);
    }

    #[tokio::test]
    async fn a_name_that_has_no_address_is_waited_for_and_not_for_ever() {
        let endpoints = ["http://127.0.0.1:2379", "http://etcd.mcr.invalid:2379"];
        let endpoints = endpoints.map(|at| at.parse().unwrap());
        let waits = look_once(&endpoints, false).await.unwrap_err();
        assert!(waits.contains("etcd.mcr.invalid"), "{waits}");
        assert_eq!(look_once(&endpoints, true).await, Ok(at("127.0.0.1:9470")));
    }
}
