//! The posted form of an event: MCR's own JSON, a CloudEvent, or, for a test, an alert.

use std::collections::BTreeMap;

use api::reply::Event;
use axum::body::Bytes;
use config::{NotifyFormat, NotifyTarget, moment_text};
use serde::Serialize;

use super::alerts;
use crate::events::Numbered;
use crate::stats::Identity;

/// An event, and where it happened.
#[derive(Serialize)]
struct LocatedEvent<'a> {
    instance: &'a str,
    host: &'a str,
    #[serde(flatten)]
    event: &'a Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a BTreeMap<String, String>>,
}

/// The same in an envelope (CloudEvents 1.0, JSON format).
#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: String,
    source: String,
    r#type: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    subject: &'a str,
    time: String,
    datacontenttype: &'static str,
    data: LocatedEvent<'a>,
}

/// Writes it in the form of a target.
pub(super) fn of(identity: &Identity, target: &NotifyTarget, numbered: &Numbered) -> Bytes {
    let event = &numbered.event;
    let located = LocatedEvent {
        instance: &identity.instance,
        host: &identity.host,
        event,
        labels: target.labels.as_ref(),
    };
    let body = match target.format.unwrap_or_default() {
        NotifyFormat::Mcr => serde_json::to_vec(&located),
        NotifyFormat::Cloudevents => serde_json::to_vec(&CloudEvent {
            specversion: "1.0",
            id: numbered.number.to_string(),
            source: format!("/mcr/{}/{}", identity.host, identity.instance),
            r#type: format!("mcr.{}", event.kind),
            subject: &event.subject,
            time: moment_text(event.at_ms / 1000),
            datacontenttype: "application/json",
            data: located,
        }),
        NotifyFormat::Alertmanager => {
            serde_json::to_vec(&[alerts::momentary(identity, target, event)])
        }
    };
    body.unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::event;
    use serde_json::{Value, json};

    #[test]
    fn each_format_has_the_event_its_host_and_the_labels() {
        let identity = Identity {
            instance: "default".to_owned(),
            host: "relay1".to_owned(),
            started: std::time::Instant::now(),
            config: "/etc/mcr/mcr.toml".into(),
            fleet: None,
        };
        let labels = [("site".to_owned(), "ber".to_owned())].into();
        let mut target = NotifyTarget {
            labels: Some(labels),
            ..NotifyTarget::default()
        };
        let numbered = Numbered {
            number: 7,
            event: event("rule_down", "cam1", "it is down".to_owned()),
        };
        let mut body = |format| {
            target.format = Some(format);
            serde_json::from_slice::<Value>(&of(&identity, &target, &numbered)).unwrap()
        };
        let own = body(NotifyFormat::Mcr);
        assert_eq!(
            (&own["kind"], &own["host"], &own["labels"]),
            (
                &json!("rule_down"),
                &json!("relay1"),
                &json!({ "site": "ber" })
            )
        );
        let cloud = body(NotifyFormat::Cloudevents);
        assert_eq!(
            (
                &cloud["specversion"],
                &cloud["id"],
                &cloud["source"],
                &cloud["type"]
            ),
            (
                &json!("1.0"),
                &json!("7"),
                &json!("/mcr/relay1/default"),
                &json!("mcr.rule_down")
            )
        );
        assert_eq!((&cloud["data"], &cloud["subject"]), (&own, &json!("cam1")));
        let alert = &body(NotifyFormat::Alertmanager)[0];
        let labels = &alert["labels"];
        assert_eq!(
            (&labels["alertname"], &labels["subject"], &labels["site"]),
            (&json!("rule_down"), &json!("cam1"), &json!("ber"))
        );
        assert_eq!(alert["annotations"]["summary"], "it is down");
    }
}
