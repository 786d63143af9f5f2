//! What other hosts have of the relay: who is told of events, and clients.

use std::sync::atomic::Ordering;

use api::reply::{ApiStatus, NotifyStatus, State};

use super::Page;
use crate::notify::Posted;

/// What became of events, for the webhook and for each who is told.
pub(super) fn told(page: &mut Page, webhook: &Posted, receivers: &[NotifyStatus]) {
    type Family = (&'static str, &'static str, fn(&NotifyStatus) -> u64);
    page.single(
        "mcr_webhook_sent_events_total",
        "Events posted to the webhook.",
        webhook.sent.load(Ordering::Relaxed),
    );
    page.single(
        "mcr_webhook_dropped_events_total",
        "Events that the webhook did not take in time, or refused.",
        webhook.dropped.load(Ordering::Relaxed),
    );
    let families: [Family; 3] = [
        (
            "mcr_notify_up",
            "1 if who is to be told of events takes them.",
            |receiver| u64::from(receiver.state == State::Up),
        ),
        (
            "mcr_notify_sent_total",
            "Posts that were taken.",
            |receiver| receiver.sent,
        ),
        (
            "mcr_notify_dropped_events_total",
            "Events that were not taken in time, or refused.",
            |receiver| receiver.dropped,
        ),
    ];
    for (name, help, of) in families.into_iter().filter(|_| !receivers.is_empty()) {
        page.family(name, help);
        for receiver in receivers {
            let labels = [("target", receiver.name.as_str()), ("to", &receiver.to)];
            page.sample(name, &labels, of(receiver));
        }
    }
}

/// How clients of other hosts are served, where they are.
pub(super) fn clients(page: &mut Page, api: Option<&ApiStatus>) {
    let Some(api) = api else { return };
    page.single(
        "mcr_api_up",
        "1 if clients of other hosts are served with what the configuration says.",
        u8::from(api.state == State::Up),
    );
    page.single(
        "mcr_api_refused_total",
        "Handshakes and requests of other hosts that were refused.",
        api.refused,
    );
    page.single(
        "mcr_api_expiring",
        "Certificates and tokens of `[api]` that end within 14 days.",
        api.expiring.len() as u64,
    );
}
