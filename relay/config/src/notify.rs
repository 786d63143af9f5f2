//! Where events are posted: `[notify]`.

use std::fmt;
use std::str::FromStr;

use rules::named::by_text;
use rules::setting::{ANY, Form, TextForm, nested, settings};
use serde::{Deserialize, Serialize};

settings! {
    /// Where events are posted.
    pub struct Notify {
        /// Where each event is posted as JSON, as in `http://10.0.0.9:8080/mcr`; http only.
        optional webhook: Webhook, otherwise: "none";
    }
}

/// An address that events are posted to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Webhook {
    /// Name or address of the host, an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Path and query, from the first slash on.
    pub path: String,
    text: String,
}

const URL: TextForm = TextForm {
    name: "URL",
    pattern: r"http://([^@/?#:\[\]]+|\[[^@/?#\[\]]+\])(:0*[1-9][0-9]{0,4})?([/?#].*)?",
    ..ANY
};

nested! {
    Webhook, Form::Text(&URL), ToString::to_string;
}

impl FromStr for Webhook {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            |why: &str| format!("webhook = {text:?}: {why}; give http://HOST[:PORT]/PATH");
        if text.starts_with("https://") {
            return Err(refused(
                "https is not spoken here, a proxy beside the daemon can",
            ));
        }
        let rest = text.strip_prefix("http://");
        let rest = rest.ok_or_else(|| refused("is no http address"))?;
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused("has characters that have to be escaped"));
        }
        let slash = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let bracketed = authority
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, rest)) => (
                host,
                rest.strip_prefix(':').or(rest.is_empty().then_some("80")),
            ),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, Some("80")),
            },
        };
        let port = port.and_then(|port| port.parse().ok().filter(|port| *port > 0));
        let port = port.ok_or_else(|| refused("has no port from 1 to 65535"))?;
        if host.is_empty() || host.contains(['@', '[', ']']) {
            return Err(refused("names no host"));
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            path: match path.starts_with('/') {
                true => path.to_owned(),
                false => format!("/{path}"),
            },
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

by_text!(Webhook, String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written_alike_or_refused_by_name() {
        for (text, host, port, path) in [
            ("http://10.0.0.9:8080/mcr", "10.0.0.9", 8080, "/mcr"),
            ("http://alerts.example", "alerts.example", 80, "/"),
            ("http://[fd00::1]/a?b=c", "fd00::1", 80, "/a?b=c"),
            ("http://[fd00::1]:81?b", "fd00::1", 81, "/?b"),
        ] {
            let webhook: Webhook = text.parse().unwrap();
            let read = (webhook.host.as_str(), webhook.port, webhook.path.as_str());
            assert_eq!(read, (host, port, path), "{text}");
            assert_eq!(webhook.to_string(), text);
        }
        for (text, why) in [
            ("https://a/", "https is not spoken here"),
            ("10.0.0.9:80", "is no http address"),
            ("http:///mcr", "names no host"),
            ("http://eve@a/", "names no host"),
            ("http://a:0/", "has no port"),
            ("http://a:x/", "has no port"),
            ("http://a/\r\nHost: b", "have to be escaped"),
        ] {
            let refused = text.parse::<Webhook>().unwrap_err();
            assert!(refused.contains(why), "{refused}");
            let errors = crate::schema::tests::errors(&format!("[notify]\nwebhook = {text:?}"));
            assert_ne!(errors, [""; 0], "{text}");
        }
    }
}
