//! The API server: HTTP/1.1 on the control socket, a read-only part of it on TCP if asked for.
//!
//! It decides nothing: changes go to the supervisor, everything else is read from the view and
//! the engine.

mod connection;
mod error;
mod events;
mod metrics;
mod read;
mod routes;
mod rules;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use dataplane::counters::Counters;
use model::placement::Support;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};

use crate::engine::Engine;
use crate::error::DaemonError;
use crate::events::Events;
use crate::socket::Listener;
use crate::statistics::Identity;
use crate::supervisor::Asked;
use crate::view::View;

pub(crate) use error::Failure;

/// What the server needs of the rest of the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) identity: Identity,
    pub(crate) asks: mpsc::Sender<Asked>,
    pub(crate) engine: Engine,
    pub(crate) events: Events,
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) support: Arc<Support>,
    pub(crate) socket: PathBuf,
}

impl Api {
    fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    async fn counters(&self) -> Result<Counters, Failure> {
        let counters = self.engine.counters().await;
        counters.map_err(|error| Failure::new("unavailable", error))
    }
}

/// Serves until the runtime ends.
pub(crate) async fn serve(
    api: Api,
    control: &Listener,
    listen: Option<SocketAddr>,
) -> Result<(), DaemonError> {
    let listener = control.listener().and_then(UnixListener::from_std);
    let listener = listener.map_err(DaemonError::Runtime)?;
    tokio::spawn(connection::accept(
        connection::Control(listener),
        routes::control(api.clone()),
    ));
    if let Some(address) = listen {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| DaemonError::Listen { address, source })?;
        let router = routes::read_only(api);
        tokio::spawn(connection::accept(connection::Public(listener), router));
    }
    Ok(())
}
