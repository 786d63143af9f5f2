//! Where the other relays reach this one: as the configuration says, or at the address from which this
//! host reaches etcd. A name of etcd's may have no address yet, as while a host boots; then the relay
//! takes no part until it has, which is until etcd can be reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use etcd::Endpoint;
use model::config::FleetSettings;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::engine::Heard;
use crate::error::Error;
use crate::peers::Peers;

/// The UDP port where relays are asked, unless the configuration says another.
const PORT: u16 = 9470;
/// How long to wait before names are asked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// The address, and the port taken there.
pub(super) type Taken = (SocketAddr, UdpSocket);

/// What the configuration tells and nobody has to be asked for.
///
/// # Errors
///
/// The port cannot be had.
pub(super) fn told(
    settings: &FleetSettings,
    endpoints: &[Endpoint],
) -> Result<Option<Taken>, Error> {
    let numbers = endpoints.iter().filter_map(|at| {
        let host: IpAddr = at.host().parse().ok()?;
        Some(SocketAddr::from((host, at.port())))
    });
    let own = settings.peer;
    let own = own.or_else(|| numbers.filter_map(|at| towards(at).ok()).next());
    own.map(take).transpose().map_err(Error::invalid)
}

/// Asks for names until there is an address, and takes the port.
pub(super) async fn look(endpoints: Vec<Endpoint>, engine: mpsc::UnboundedSender<Heard>) {
    // Whoever is asked for names may take long to be given up.
    let hosts: Vec<&str> = endpoints.iter().map(Endpoint::host).collect();
    let reason = format!("looking for the address of {}", hosts.join(", "));
    let _ = engine.send(Heard::Away(etcd::Error::Unavailable { reason }));
    loop {
        let heard = match look_once(&endpoints).await.and_then(take) {
            Ok(taken) => {
                let _ = engine.send(Heard::Own(taken));
                return;
            }
            Err(reason) => Heard::Away(etcd::Error::Unavailable { reason }),
        };
        if engine.send(heard).is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

async fn look_once(endpoints: &[Endpoint]) -> Result<SocketAddr, String> {
    let mut reasons = Vec::new();
    for at in endpoints {
        let found = lookup_host((at.host(), at.port())).await;
        let reason = match found {
            Err(error) => format!("cannot find the address of {}: {error}", at.host()),
            Ok(found) => match found.map(towards).reduce(Result::or) {
                Some(Ok(own)) => return Ok(own),
                Some(Err(error)) => error.to_string(),
                None => "its name has no address".to_owned(),
            },
        };
        reasons.push(format!("{at}: {reason}"));
    }
    Err(reasons.join("; "))
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
