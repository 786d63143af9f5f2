//! Sockets that listen.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// How many may wait to be accepted, as far as the kernel allows (net.core.somaxconn).
const WAITING_MAX: u32 = 4096;

/// A listener whose queue a crowd does not fill at once: who comes then is not answered for seconds.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(WAITING_MAX)
}
