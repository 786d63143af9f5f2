//! What is known of clients of other hosts and of their listener, by whoever asks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::reply::{ApiClientStatus, ApiStatus, Event, State};
use axum::http::HeaderMap;
use config::{ApiSettings, moment_text};
use observe::events::{Events, event, kind};
use parking_lot::{Mutex, MutexGuard};
use tls::Identity;
use tokio::sync::watch;

use super::failures::Failures;
use super::now;
use super::peer::Peer;
use super::session::{Session, Sessions};

/// How long before its end a certificate or a token is told of.
const SOON: u64 = 14 * 86_400;

/// The settings, and what has become of them.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    pub(super) settings: watch::Sender<Arc<ApiSettings>>,
    known: Mutex<Known>,
    failures: Failures,
    pub(super) sessions: Sessions,
    /// Requests and handshakes that were refused.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Known {
    /// Whether the listener has done what the settings say, or failed to.
    has_begun: bool,
    /// Why the listener does not do what it should.
    trouble: Option<String>,
    /// When the listener's certificate ends.
    expires: Option<u64>,
    /// What it is for.
    pub(super) names: Arc<[String]>,
    /// What ends soon and was told of, and when it ends.
    expiring: BTreeMap<String, u64>,
    /// When a client was last served, and where it was.
    pub(super) used: BTreeMap<String, (u64, IpAddr)>,
}

impl Remote {
    /// Goes by other settings from now on.
    pub(crate) fn set(&self, settings: ApiSettings) {
        self.settings.send_replace(Arc::new(settings));
    }

    pub(super) fn settings(&self) -> Arc<ApiSettings> {
        Arc::clone(&self.settings.borrow())
    }

    /// The session that a request is of, if its client still shows what it has to.
    pub(super) fn session(&self, peer: &Peer, headers: &HeaderMap, uses: bool) -> Option<Session> {
        let at = (Instant::now(), uses);
        let session = self
            .sessions
            .of((headers, peer.address), &self.settings(), at);
        let session = session.filter(|session| {
            let ends = session.client.expires();
            ends.is_none_or(|ends| ends > now()) && peer.still_shows(&session.client)
        })?;
        peer.serve_as(&session.client);
        Some(session)
    }

    /// How the listener does, where there is to be one.
    pub(in crate::api) fn status(&self) -> Option<ApiStatus> {
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
    pub(in crate::api) fn clients(&self) -> Vec<ApiClientStatus> {
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
    pub(super) fn tell(&self, trouble: Option<String>, events: &Events) {
        let is_wanted = self.settings().listen.is_some();
        let mut known = self.known();
        let had_begun = std::mem::replace(&mut known.has_begun, is_wanted);
        let before = std::mem::replace(&mut known.trouble, trouble.clone());
        drop(known);
        let is_news = if is_wanted {
            !had_begun || before != trouble
        } else {
            before.is_some()
        };
        if !is_news {
            return;
        }
        let (kind, message) = match (trouble, is_wanted) {
            (Some(why), _) => (kind::API_DEGRADED, why),
            (None, true) => (kind::API_UP, "clients of other hosts are served".to_owned()),
            (None, false) => (
                kind::API_UP,
                "clients of other hosts are not to be served".to_owned(),
            ),
        };
        events.publish(event(kind, "api", message));
    }

    /// Tells of certificates and tokens that end soon, once each, and when they do no more.
    pub(super) fn tell_expiring(&self, identity: Option<Identity>, events: &Events) {
        let settings = self.settings();
        let certificate = identity.as_ref().map(|identity| identity.expires);
        let own = certificate.map(|ends| ("the certificate of [api]".to_owned(), ends));
        let clients = settings
            .client
            .iter()
            .filter_map(|client| Some((format!("client {}", client.name), client.expires()?)));
        let now = now();
        let soon = own
            .into_iter()
            .chain(clients)
            .filter(|(_, ends)| *ends < now + SOON);
        let soon: BTreeMap<String, u64> = soon.collect();
        let mut known = self.known();
        known.expires = certificate;
        known.names = identity
            .map(|identity| identity.names.into())
            .unwrap_or_default();
        let before = std::mem::replace(&mut known.expiring, soon.clone());
        drop(known);
        let tell = |kind: &str, what: &str, message: String| {
            let part = Some(what.to_owned());
            events.publish(Event {
                part,
                ..event(kind, "api", message)
            });
        };
        for (what, ends) in soon
            .iter()
            .filter(|(what, ends)| before.get(*what) != Some(ends))
        {
            let when = moment_text(*ends);
            let message = if *ends > now {
                format!("{what} ends at {when}; renew it")
            } else {
                format!("{what} has ended at {when}; renew it, or take it out")
            };
            tell(kind::EXPIRES_SOON, what, message);
        }
        for what in before.keys().filter(|what| !soon.contains_key(*what)) {
            tell(kind::RENEWED, what, format!("{what} ends soon no more"));
        }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Counts a refusal; tells of the first of an address, the tenth, the hundredth. Says how long the
    /// answer is to wait.
    pub(super) fn note_refusal(&self, from: IpAddr, why: &str, events: &Events) -> Duration {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let (times, delay) = self.failures.note(from);
        if 10_u64.checked_pow(times.ilog10()) == Some(times) {
            let message = format!("{from} was refused ({times} times of late): {why}");
            events.publish(event(kind::API_REFUSED, "api", message));
        }
        delay
    }
}
