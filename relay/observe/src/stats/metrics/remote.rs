//! Metrics of other hosts' use of the relay: receivers of notifications, and clients.

use std::sync::atomic::Ordering;

use api::reply::{ApiStatus, NotifyStatus, State};

use super::{Page, of};
use crate::notify::Posted;

/// Writes the delivery counters of the webhook and of each receiver.
pub(super) fn notifications<'a>(page: &mut Page, webhook: &Posted, receivers: &'a [NotifyStatus]) {
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
    if receivers.is_empty() {
        return;
    }
    let labels = |receiver: &'a NotifyStatus| {
        let (name, to) = (receiver.name.as_str(), receiver.to.as_str());
        [("target", name.into()), ("to", to.into())]
    };
    let labelled: Vec<_> = receivers.iter().map(|one| (labels(one), one)).collect();
    let name = "mcr_notify_up";
    page.family(name, "1 if who is to be told of events takes them.");
    for (labels, receiver) in &labelled {
        page.sample(name, &of(labels), u8::from(receiver.state == State::Up));
    }
    page.counters(NotifyStatus::COUNTERS, &labelled);
}

/// Writes how clients of other hosts are served, if they are.
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
