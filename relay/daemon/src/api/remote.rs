//! Clients of other hosts: the listener of `[api]`, which speaks only TLS. A client shows a certificate
//! or, in each request, a token; its role says what it may do. The listener has a runtime of its own, so
//! that nothing there delays a change or a sign of life.

pub(super) mod admission;
mod door;
mod failures;
mod handshake;
pub(super) mod peer;
mod session;
pub(super) mod sign_in;
pub(crate) mod state;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use observe::events::Events;
use tokio::net::TcpStream;
use tokio::time::{interval, sleep};

use super::connections::{self, Connection, Connections};
use super::host_name::Names;
use super::routes;
use super::server::{self, pause, serve_connection};
use super::service::Service;
use crate::abort_on_panic;
use door::Door;
pub(crate) use door::try_files;
use handshake::{Turn, Turns};
use peer::Peer;
use state::Remote;

/// How often files are checked for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often a connection checks that its client is still permitted: it ends within a second.
const RECHECK: Duration = Duration::from_millis(400);

/// Serves clients of other hosts once the settings first give an address, for as long as the process
/// lives.
pub(crate) fn serve(service: &Service, names: Names) {
    let service = Arc::new(service.apart());
    abort_on_panic::spawn(async move {
        let remote = Arc::clone(&service.remote);
        let mut settings = remote.settings.subscribe();
        if settings
            .wait_for(|settings| settings.listen.is_some())
            .await
            .is_err()
        {
            return;
        }
        drop(settings);
        keep_secrets();
        let events = service.events.clone();
        if let Err(error) = begin(service, names) {
            remote.report(Some(format!("cannot begin to serve: {error}")), &events);
        }
    });
}

/// Disables core dumps, which would disclose secrets: keys and tokens are in this memory from now on. Only
/// for root: an ordinary user's daemon needs its own /proc.
pub(crate) fn keep_secrets() {
    if nix::unistd::geteuid().is_root() {
        let _ = nix::sys::prctl::set_dumpable(false);
    }
}

fn begin(service: Arc<Service>, names: Names) -> io::Result<()> {
    let runtime = server::apart()?;
    abort_on_panic::thread("api", move || runtime.block_on(run(service, names)))
}

async fn run(service: Arc<Service>, names: Names) {
    let remote = Arc::clone(&service.remote);
    let events = service.events.clone();
    let router = routes::remote(service, names);
    let mut settings = remote.settings.subscribe();
    let mut connections = Connections::new(server::connections_max());
    let mut door = Door::default();
    let mut turns = Turns::default();
    let mut poll = interval(POLL_INTERVAL);
    loop {
        tokio::select! {
            changed = settings.changed() => match changed {
                Ok(()) => follow(&mut door, &remote, &events),
                Err(_) => return,
            },
            _ = poll.tick() => follow(&mut door, &remote, &events),
            accepted = door.accept() => match accepted {
                Ok((stream, from)) => {
                    let network = failures::client_id(from.ip());
                    let visit = Visit {
                        from,
                        turn: turns.of(network),
                        door: door.subscribe(),
                        remote: Arc::clone(&remote),
                        events: events.clone(),
                    };
                    let peer = connections::PeerCredentials {
                        network: Some(network),
                        ..Default::default()
                    };
                    let serve = |connection| visit.converse(stream, router.clone(), connection);
                    connections.add(peer, serve).await;
                }
                Err(error) => pause(&error).await,
            },
        }
    }
}

fn follow(door: &mut Door, remote: &Remote, events: &Events) {
    let trouble = door.follow(&remote.settings());
    remote.report(trouble, events);
    remote.report_expiring(door.identity(), events);
}

/// A client that has connected.
struct Visit {
    from: SocketAddr,
    turn: Turn,
    door: door::Current,
    remote: Arc<Remote>,
    events: Events,
}

impl Visit {
    async fn converse(self, stream: TcpStream, router: Router, connection: Connection) {
        let Some(serving) = self.door.borrow().clone() else {
            return;
        };
        let stream = match self.turn.shake_hands(stream, &serving.config).await {
            Ok(stream) => stream,
            Err(error) => return self.note(&error.to_string()),
        };
        let parts = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain = parts.iter().map(|part| part.clone().into_owned()).collect();
        let peer = Arc::new(Peer::new(self.from.ip(), chain));
        connection.set_remote(Arc::clone(&peer));
        let verifier = serving.verifier.clone();
        drop(serving);
        tokio::select! {
            () = serve_connection(stream, router, connection) => {}
            () = self.revoked(&peer, verifier) => {}
        }
    }

    /// Waits until the client is no longer permitted.
    async fn revoked(&self, peer: &Peer, mut last: Option<door::Verifier>) {
        let listen = self.remote.settings().listen;
        loop {
            sleep(RECHECK).await;
            let settings = self.remote.settings();
            let verifier = self
                .door
                .borrow()
                .as_ref()
                .and_then(|now| now.verifier.clone());
            let is_same = match (&last, &verifier) {
                (Some(last), Some(now)) => Arc::ptr_eq(last, now),
                (last, now) => last.is_none() && now.is_none(),
            };
            if settings.listen != listen
                || !peer.is_served_by(&settings)
                || !is_same && !peer.is_trusted_by(verifier.as_ref())
            {
                return;
            }
            last = verifier;
        }
    }

    /// Counts a failed handshake: a certificate that is not trusted, or no TLS at all.
    fn note(&self, why: &str) {
        self.remote.note_refusal(self.from.ip(), why, &self.events);
    }
}

/// Seconds since the epoch.
fn now() -> u64 {
    sys::clock::realtime_ns() / 1_000_000_000
}
