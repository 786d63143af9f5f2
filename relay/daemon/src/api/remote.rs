//! Clients of other hosts: the listener of `[api]`, which speaks TLS alone. Who connects shows a
//! certificate or, in each request, a token; what it may do its role says. The listener has a runtime
//! of its own, so that whatever happens there delays no change and no sign of life.

pub(super) mod admission;
mod door;
mod failures;
mod peer;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use api::reply::{ApiClientStatus, ApiStatus, State};
use axum::Router;
use config::ApiSettings;
use observe::events::{Events, event, kind};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::connections::{self, Connection, Connections};
use super::routes;
use super::server::{self, pause, serve_connection};
use super::service::Service;
use crate::abort_on_panic::{self, AbortOnPanic};
use door::Door;
use failures::Failures;
pub(super) use peer::Peer;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often files are looked at.
const TURN: Duration = Duration::from_secs(1);
/// How often a connection sees whether its client still is one: an end comes within a second.
const DOUBT: Duration = Duration::from_millis(400);
/// How long before its end a certificate or a token is told of.
const SOON: u64 = 14 * 86_400;

/// What is known of clients of other hosts, by whoever asks.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    settings: watch::Sender<Arc<ApiSettings>>,
    known: Mutex<Known>,
    failures: Failures,
    /// Requests and handshakes that were refused.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether the listener has done what the settings say, or failed to.
    has_begun: bool,
    /// Why the listener does not do what it should.
    trouble: Option<String>,
    /// When the listener's certificate ends.
    expires: Option<u64>,
    /// What ends soon and was told of, and when it ends.
    expiring: BTreeMap<String, u64>,
    /// When a client was last served, and where it was.
    used: BTreeMap<String, (u64, IpAddr)>,
}

impl Remote {
    /// Goes by other settings from now on.
    pub(crate) fn set(&self, settings: ApiSettings) {
        self.settings.send_replace(Arc::new(settings));
    }

    fn settings(&self) -> Arc<ApiSettings> {
        Arc::clone(&self.settings.borrow())
    }

    /// How the listener does, where there is to be one.
    pub(super) fn status(&self) -> Option<ApiStatus> {
        let settings = self.settings();
        let known = self.known();
        let beginning = || "it begins to listen".to_owned();
        let reason = known.trouble.clone();
        let reason = reason.or_else(|| (!known.has_begun).then(beginning));
        Some(ApiStatus {
            listen: settings.listen?.to_string(),
            state: match reason {
                None => State::Up,
                Some(_) => State::Degraded,
            },
            reason,
            clients: settings.client.len(),
            certificate_expires: known.expires,
            expiring: known.expiring.keys().cloned().collect(),
            refused: self.refused.load(Ordering::Relaxed),
        })
    }

    /// The clients, without what they show.
    pub(super) fn clients(&self) -> Vec<ApiClientStatus> {
        let settings = self.settings();
        let known = self.known();
        let clients = settings.client.iter().map(|client| {
            let used = known.used.get(&client.name);
            ApiClientStatus {
                name: client.name.clone(),
                role: client.role.to_string(),
                by: match client.token {
                    Some(_) => "token",
                    None => "certificate",
                }
                .to_owned(),
                from: client.from.clone(),
                expires: client.expires(),
                last_used: used.map(|used| used.0),
                last_from: used.map(|used| used.1.to_string()),
            }
        });
        clients.collect()
    }

    /// Says of the listener that all is well, or what is not; told where it is news.
    fn tell(&self, trouble: Option<String>, events: &Events) {
        let is_wanted = self.settings().listen.is_some();
        let mut known = self.known();
        let had_begun = std::mem::replace(&mut known.has_begun, is_wanted);
        let before = std::mem::replace(&mut known.trouble, trouble.clone());
        drop(known);
        if !is_wanted || had_begun && before == trouble {
            return;
        }
        events.publish(match trouble {
            Some(why) => event(kind::API_DEGRADED, "api", why),
            None => event(
                kind::API_UP,
                "api",
                "clients of other hosts are served".to_owned(),
            ),
        });
    }

    /// Tells of certificates and tokens that end soon, once each.
    fn tell_expiring(&self, certificate: Option<u64>, events: &Events) {
        let settings = self.settings();
        let own = certificate.map(|ends| ("the certificate of [api]".to_owned(), ends));
        let clients = settings
            .client
            .iter()
            .filter_map(|client| Some((format!("client {}", client.name), client.expires()?)));
        let now = now();
        let soon = { own.into_iter().chain(clients) }.filter(|(_, ends)| *ends < now + SOON);
        let soon: BTreeMap<String, u64> = soon.collect();
        let mut known = self.known();
        known.expires = certificate;
        let before = std::mem::replace(&mut known.expiring, soon.clone());
        drop(known);
        for (what, ends) in soon
            .iter()
            .filter(|(what, ends)| before.get(*what) != Some(ends))
        {
            let message = match ends.checked_sub(now) {
                Some(left) => format!("{what} ends in {} days; renew it", left / 86_400),
                None => format!("{what} has ended; renew it, or take it out"),
            };
            events.publish(event(kind::EXPIRES_SOON, "api", message));
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves clients of other hosts from when the settings first say where, for as long as the process
/// lives.
pub(crate) fn serve(service: &Service) {
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
        // Keys are in this memory from now on. An ordinary user's daemon needs its own /proc.
        if nix::unistd::geteuid().is_root() {
            let _ = nix::sys::prctl::set_dumpable(false);
        }
        let events = service.events.clone();
        if let Err(error) = begin(service) {
            remote.tell(Some(format!("cannot begin to serve: {error}")), &events);
        }
    });
}

fn begin(service: Arc<Service>) -> io::Result<()> {
    let runtime = server::apart()?;
    thread::Builder::new()
        .name("api".to_owned())
        .spawn(move || {
            let _guard = AbortOnPanic;
            sys::capability::stand_back();
            runtime.block_on(run(service));
        })?;
    Ok(())
}

async fn run(service: Arc<Service>) {
    let remote = Arc::clone(&service.remote);
    let events = service.events.clone();
    let router = routes::remote(service);
    let mut settings = remote.settings.subscribe();
    let mut connections = Connections::new(server::connections_max());
    let mut door = Door::default();
    let mut turn = interval(TURN);
    loop {
        tokio::select! {
            changed = settings.changed() => match changed {
                Ok(()) => follow(&mut door, &remote, &events).await,
                Err(_) => return,
            },
            _ = turn.tick() => follow(&mut door, &remote, &events).await,
            accepted = door.accept() => match accepted {
                Ok((stream, from)) => {
                    let visit = Visit {
                        from,
                        door: door.subscribe(),
                        remote: Arc::clone(&remote),
                        events: events.clone(),
                    };
                    let whose = connections::Peer {
                        network: Some(failures::whose(from.ip())),
                        ..Default::default()
                    };
                    let serve = |connection| visit.converse(stream, router.clone(), connection);
                    connections.add(whose, serve).await;
                }
                Err(error) => pause(&error).await,
            },
        }
    }
}

async fn follow(door: &mut Door, remote: &Remote, events: &Events) {
    let trouble = door.follow(&remote.settings()).await;
    remote.tell(trouble, events);
    remote.tell_expiring(door.expires(), events);
}

/// Somebody who has connected.
struct Visit {
    from: SocketAddr,
    door: door::Current,
    remote: Arc<Remote>,
    events: Events,
}

impl Visit {
    async fn converse(self, stream: TcpStream, router: Router, connection: Connection) {
        let Some(serving) = self.door.borrow().clone() else {
            return;
        };
        let handshake = TlsAcceptor::from(Arc::clone(&serving.config)).accept(stream);
        let stream = match timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.note(&error.to_string()),
            Err(_) => return self.note("no handshake within 5 s"),
        };
        let chain = stream.get_ref().1.peer_certificates();
        let chain = chain
            .unwrap_or_default()
            .iter()
            .map(|part| part.clone().into_owned());
        let peer = Arc::new(Peer::new(self.from.ip(), chain.collect()));
        connection.meet(Arc::clone(&peer));
        let judged = serving.verifier.clone();
        drop(serving);
        tokio::select! {
            () = serve_connection(stream, router, connection) => {}
            () = self.ends(&peer, judged) => {}
        }
    }

    /// Waits until the client is none any more.
    async fn ends(&self, peer: &Peer, mut judged: Option<door::Verifier>) {
        let listen = self.remote.settings().listen;
        loop {
            sleep(DOUBT).await;
            let settings = self.remote.settings();
            let verifier = self
                .door
                .borrow()
                .as_ref()
                .and_then(|now| now.verifier.clone());
            let is_judged = match (&judged, &verifier) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            if settings.listen != listen
                || !peer.is_served_by(&settings)
                || !is_judged && !peer.is_believed_by(verifier.as_ref())
            {
                return;
            }
            judged = verifier;
        }
    }

    /// A handshake that failed: a certificate that is not believed, or no TLS at all.
    fn note(&self, why: &str) {
        self.remote.note_refusal(self.from.ip(), why, &self.events);
    }
}

impl Remote {
    /// Counts a refusal; tells of the first of an address, the tenth, the hundredth. Says how long the
    /// answer is to wait.
    fn note_refusal(&self, from: IpAddr, why: &str, events: &Events) -> Duration {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let (times, delay) = self.failures.note(from);
        if 10_u64.checked_pow(times.ilog10()) == Some(times) {
            let message = format!("{from} was refused ({times} times of late): {why}");
            events.publish(event(kind::API_REFUSED, "api", message));
        }
        delay
    }
}

fn now() -> u64 {
    sys::clock::realtime_ns() / 1_000_000_000
}
