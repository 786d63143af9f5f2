//! The address at which the other relays reach this one: from the configuration, or else the address from
//! which this host reaches etcd. A host name of etcd may not resolve yet, as while a host boots; then the
//! relay takes no part until it does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use config::FleetSettings;
use etcd::Endpoint;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::received::{OwnSocket, Received};
use crate::error::Error;
use crate::peers::Peers;

/// The UDP port for questions of other relays, unless the configuration gives another.
const PORT: u16 = 9470;
/// Pause before names are resolved again.
const PAUSE: Duration = Duration::from_millis(500);
/// Attempts to resolve names to an address that other hosts reach.
const ATTEMPTS: u32 = 20;

/// The address that follows from the configuration without resolving a name, and its port, bound.
///
/// # Errors
///
/// The port cannot be bound.
pub(super) fn configured(
    settings: &FleetSettings,
    endpoints: &[Endpoint],
) -> Result<Option<OwnSocket>, Error> {
    let addresses: Vec<SocketAddr> = endpoints
        .iter()
        .filter_map(|at| Some((at.host().parse::<IpAddr>().ok()?, at.port()).into()))
        .collect();
    let sources = addresses.iter().filter_map(|at| towards(*at).ok());
    // Otherwise the address of a name may be better.
    let is_settled = |own: &SocketAddr| {
        settings.peer.is_some() || reaches_others(own) || addresses.len() == endpoints.len()
    };
    let own = settings.peer.or_else(|| best(sources)).filter(is_settled);
    own.map(bind).transpose().map_err(Error::invalid)
}

/// Resolves names until there is an address, and binds the port.
pub(super) async fn resolve(endpoints: Vec<Endpoint>, engine: mpsc::UnboundedSender<Received>) {
    // A name server that does not answer may take long to time out.
    let hosts: Vec<&str> = endpoints.iter().map(Endpoint::host).collect();
    let reason = format!("looking for the address of {}", hosts.join(", "));
    let _ = engine.send(Received::Away(etcd::Error::Unavailable { reason }));
    for attempt in 0_u32.. {
        let own = resolve_once(&endpoints, attempt >= ATTEMPTS).await;
        let received = match own.and_then(bind) {
            Ok(own) => {
                let _ = engine.send(Received::Own(own));
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

/// An address that others reach; failing that, with `takes_any` or if every name has resolved, a loopback
/// address.
async fn resolve_once(endpoints: &[Endpoint], takes_any: bool) -> Result<SocketAddr, String> {
    let (mut loopback, mut reasons) = (Vec::new(), Vec::new());
    for at in endpoints {
        let reason = match lookup_host((at.host(), at.port())).await {
            Err(error) => format!("cannot find the address of {}: {error}", at.host()),
            Ok(addresses) => match addresses.map(towards).reduce(Result::or) {
                Some(Ok(own)) if reaches_others(&own) => return Ok(own),
                Some(Ok(own)) => {
                    loopback.push(own);
                    continue;
                }
                Some(Err(error)) => error.to_string(),
                None => "its name has no address".to_owned(),
            },
        };
        reasons.push(format!("{at}: {reason}"));
    }
    let own = best(loopback.into_iter()).filter(|_| takes_any || reasons.is_empty());
    own.ok_or_else(|| reasons.join("; "))
}

/// The first that others reach, or else the first.
fn best(candidates: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let candidates: Vec<SocketAddr> = candidates.collect();
    let outside = candidates.iter().find(|own| reaches_others(own));
    outside.or(candidates.first()).copied()
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

fn bind(at: SocketAddr) -> Result<OwnSocket, String> {
    match Peers::bind(at) {
        Ok(socket) => Ok((at, socket)),
        Err(error) => Err(format!("[fleet] peer: cannot listen on UDP {at}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_that_others_reach_comes_before_loopback() {
        let (own, outside) = (at("127.0.0.1:9470"), at("10.0.0.1:9470"));
        assert_eq!(best([own, outside].into_iter()), Some(outside));
        assert_eq!(best([own].into_iter()), Some(own));
        assert_eq!(best(std::iter::empty()), None);
    }

    #[tokio::test]
    async fn a_name_that_has_no_address_is_waited_for_and_not_for_ever() {
        let endpoints =
            ["http://127.0.0.1:2379", "http://etcd.mcr.invalid:2379"].map(|at| at.parse().unwrap());
        let reason = resolve_once(&endpoints, false).await.unwrap_err();
        assert!(reason.contains("etcd.mcr.invalid"), "{reason}");
        let own = resolve_once(&endpoints, true).await;
        assert_eq!(own, Ok(at("127.0.0.1:9470")));
    }
}
