//! The status of the listener for other hosts and of its clients.

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

/// How long before its expiry a certificate or a token is reported, in seconds.
const SOON: u64 = 14 * 86_400;

/// The settings of the listener for other hosts, and its state.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    pub(super) settings: watch::Sender<Arc<ApiSettings>>,
    status: Mutex<ListenerStatus>,
    failures: Failures,
    pub(super) sessions: Sessions,
    /// Requests and handshakes that were refused.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct ListenerStatus {
    /// Whether the listener has applied the settings, or failed to.
    has_begun: bool,
    /// Why the listener does not work as configured.
    trouble: Option<String>,
    /// When the listener's certificate expires.
    expires: Option<u64>,
    /// The certificate's names.
    pub(super) names: Arc<[String]>,
    /// What was reported to expire soon, and when it expires.
    expiring: BTreeMap<String, u64>,
    /// When a client was last served, and its address.
    pub(super) used: BTreeMap<String, (u64, IpAddr)>,
}

impl Remote {
    /// Replaces the settings.
    pub(crate) fn set(&self, settings: ApiSettings) {
        self.settings.send_replace(Arc::new(settings));
    }

    pub(super) fn settings(&self) -> Arc<ApiSettings> {
        Arc::clone(&self.settings.borrow())
    }

    /// The session of a request, if its client still shows the required certificate.
    pub(super) fn session(&self, peer: &Peer, headers: &HeaderMap, uses: bool) -> Option<Session> {
        let at = (Instant::now(), uses);
        let session = self
            .sessions
            .of((headers, peer.address), &self.settings(), at)
            .filter(|session| {
                let ends = session.client.expires();
                ends.is_none_or(|ends| ends > now()) && peer.still_shows(&session.client)
            })?;
        peer.serve_as(&session.client);
        Some(session)
    }

    /// The status of the listener, if one is configured.
    pub(in crate::api) fn status(&self) -> Option<ApiStatus> {
        let settings = self.settings();
        let status = self.lock_status();
        let beginning = || "it begins to listen".to_owned();
        let trouble = status.trouble.clone();
        let reason = trouble.or_else(|| (!status.has_begun).then(beginning));
        Some(ApiStatus {
            listen: settings.listen?.to_string(),
            state: match reason {
                None => State::Up,
                Some(_) => State::Degraded,
            },
            reason,
            clients: settings.client.len(),
            certificate_expires: status.expires,
            expiring: status.expiring.keys().cloned().collect(),
            refused: self.refused.load(Ordering::Relaxed),
        })
    }

    /// The clients, without their credentials.
    pub(in crate::api) fn clients(&self) -> Vec<ApiClientStatus> {
        let settings = self.settings();
        let status = self.lock_status();
        let clients = settings.client.iter().map(|client| {
            let used = status.used.get(&client.name);
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

    /// Records the listener's trouble, or that there is none; publishes an event if that changed.
    pub(super) fn report(&self, trouble: Option<String>, events: &Events) {
        let is_wanted = self.settings().listen.is_some();
        let mut status = self.lock_status();
        let had_begun = std::mem::replace(&mut status.has_begun, is_wanted);
        let previous = std::mem::replace(&mut status.trouble, trouble.clone());
        drop(status);
        let has_changed = if is_wanted {
            !had_begun || previous != trouble
        } else {
            previous.is_some()
        };
        if !has_changed {
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

    /// Publishes an event once for each certificate and token that expires soon, and when it was renewed.
    pub(super) fn report_expiring(&self, identity: Option<Identity>, events: &Events) {
        let settings = self.settings();
        let certificate = identity.as_ref().map(|identity| identity.expires);
        let own = certificate.map(|ends| ("the certificate of [api]".to_owned(), ends));
        let clients = settings
            .client
            .iter()
            .filter_map(|client| Some((format!("client {}", client.name), client.expires()?)));
        let now = now();
        let soon: BTreeMap<String, u64> = own
            .into_iter()
            .chain(clients)
            .filter(|(_, ends)| *ends < now + SOON)
            .collect();
        let mut status = self.lock_status();
        status.expires = certificate;
        status.names = identity
            .map(|identity| identity.names.into())
            .unwrap_or_default();
        let before = std::mem::replace(&mut status.expiring, soon.clone());
        drop(status);
        let publish = |kind: &str, what: &str, message: String| {
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
            publish(kind::EXPIRES_SOON, what, message);
        }
        for what in before.keys().filter(|what| !soon.contains_key(*what)) {
            publish(kind::RENEWED, what, format!("{what} ends soon no more"));
        }
    }

    pub(super) fn lock_status(&self) -> MutexGuard<'_, ListenerStatus> {
        self.status.lock()
    }

    /// Counts a refusal; publishes the first of an address, the tenth, the hundredth. Returns the delay of
    /// the reply.
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
