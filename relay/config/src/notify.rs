//! Where events are posted: `[notify]`. Targets of `[[notify.target]]` are read only from files on the host
//! and never disclosed, like `[api]`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;

use rules::named::by_text;
use rules::setting::{ANY, Form, TextForm, nested, settings, words};
use serde::{Deserialize, Serialize};

use super::event_kind::{self, Weight};

/// The most targets: each has a task and a queue of events.
const TARGETS_MAX: usize = 16;

settings! {
    /// Where events are posted.
    pub struct Notify {
        /// Where each event is posted as JSON, as in `http://10.0.0.9:8080/mcr`; http only.
        optional webhook: Webhook, otherwise: "none";
    }
}

settings! {
    /// Who is told of events, as a file has it.
    pub struct NotifyTable {
        /// Where each event is posted as JSON, as in `http://10.0.0.9:8080/mcr`; http only.
        optional webhook: Webhook, otherwise: "none";
        /// Others who are told, as `[[notify.target]]` each.
        several target: NotifyTargets, form: Form::Tables("NotifyTarget");
    }
}

settings! {
    /// Somebody who is told of events.
    pub struct NotifyTarget {
        /// Where events are posted, as in `https://alerts.example/mcr`; of an Alertmanager its own, as in
        /// `https://alertmanager.example:9093`.
        required url: Url;
        /// What the certificate there is signed by, PEM.
        optional ca: PathBuf, otherwise: "those whom the host trusts";
        /// File of further headers, `NAME: VALUE` on each line, as for `Authorization`.
        optional headers_file: PathBuf, otherwise: "none";
        /// File with a secret: what is posted is signed by it, in `X-MCR-Signature`, by HMAC-SHA256 over
        /// `X-MCR-Time`, a point and the body.
        optional secret_file: PathBuf, otherwise: "none";
        /// Form of what is posted.
        optional format: NotifyFormat, default: "mcr";
        /// Kinds of events that are told, as in `["rule_down", "stream_down"]`.
        several kinds: Vec<String> => known_kinds, otherwise: "all";
        /// How much an event has to matter.
        optional severity: Weight, default: "info";
        /// What is said with each event, as in `{ site = "ber" }`.
        optional labels: BTreeMap<String, String>, otherwise: "nothing";
    }
}

words! {
    /// In which form events are posted.
    pub enum NotifyFormat = Mcr {
        /// As `mcr events --json` has them, with instance, host and labels.
        Mcr = "mcr",
        /// CloudEvents 1.0, JSON.
        Cloudevents = "cloudevents",
        /// Alerts of an Alertmanager's API v2: again each minute, and when they end.
        Alertmanager = "alertmanager",
    }
}

/// The targets that events are posted to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NotifyTargets(pub Vec<NotifyTarget>);

impl Deref for NotifyTargets {
    type Target = Vec<NotifyTarget>;

    fn deref(&self) -> &Vec<NotifyTarget> {
        &self.0
    }
}

/// A URL of http or https.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Url {
    /// Whether it is https.
    pub is_secure: bool,
    /// Name or address of the host, an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Path and query, from the first slash on; it may be a secret.
    pub path: String,
    text: String,
}

/// A URL of http that events are posted to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Webhook(pub Url);

const HTTP: TextForm = TextForm {
    name: "URL",
    pattern: r"http://([^@/?#:\[\]]+|\[[^@/?#\[\]]+\])(:0*[1-9][0-9]{0,4})?([/?#].*)?",
    ..ANY
};

const HTTPS: TextForm = TextForm {
    pattern: r"https?://([^@/?#:\[\]]+|\[[^@/?#\[\]]+\])(:0*[1-9][0-9]{0,4})?([/?#].*)?",
    ..HTTP
};

nested! {
    Webhook, Form::Text(&HTTP), ToString::to_string;
    Url, Form::Text(&HTTPS), ToString::to_string;
    NotifyTargets as NotifyTarget, Form::Tables("NotifyTarget"), |targets| {
        let origins = targets.iter().map(|target| target.url.origin());
        origins.collect::<Vec<String>>().join(", ")
    };
}

impl NotifyTable {
    /// Checks the keys together; returns what is wrong and what to do.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.target.len() > TARGETS_MAX {
            return Err(format!("target: give {TARGETS_MAX} at most"));
        }
        for target in self.target.iter() {
            let origin = target.url.origin();
            let is_name = |name: &str| {
                let mut letters = name.bytes();
                let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                letters.all(is_allowed) && !name.starts_with(|first: char| first.is_ascii_digit())
            };
            let mut names = target.labels.iter().flat_map(BTreeMap::keys);
            if let Some(name) = names.find(|name| name.is_empty() || !is_name(name)) {
                return Err(format!(
                    "target {origin}: label {name:?}: a name has letters, digits and _, and begins \
                     with none of the digits"
                ));
            }
            if target.ca.is_some() && !target.url.is_secure {
                return Err(format!(
                    "target {origin}: ca: is given, and http is not encrypted; write https:// there, or \
                     take ca out"
                ));
            }
        }
        Ok(())
    }
}

impl Url {
    /// Scheme, host and port, without the path, which may be a secret.
    pub fn origin(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }

    /// Host and port, as a request names them.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn read(key: &str, schemes: &[&str], text: &str) -> Result<Self, String> {
        let refused = |why: &str| {
            // Credentials and path may be secret and are not repeated.
            let public = text.rsplit_once('@').map_or(text, |(_, host)| host);
            let begin = public.find("://").map_or(0, |at| at + 3);
            let end = public[begin..].find(['/', '?', '#']);
            let shown = &public[..end.map_or(public.len(), |end| begin + end)];
            let scheme = schemes[0];
            format!("{key} = {shown:?}: {why}; give {scheme}://HOST[:PORT]/PATH")
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        if scheme == "https" && !schemes.contains(&scheme) {
            return Err(refused("https is spoken to a [[notify.target]]"));
        }
        if !schemes.contains(&scheme) {
            return Err(refused(&format!("is no {} address", schemes.join(" or "))));
        }
        let default_port = if scheme == "https" { "443" } else { "80" };
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
                rest.strip_prefix(':')
                    .or(rest.is_empty().then_some(default_port)),
            ),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, Some(default_port)),
            },
        };
        let port = port
            .and_then(|port| port.parse().ok().filter(|port| *port > 0))
            .ok_or_else(|| refused("has no port from 1 to 65535"))?;
        if host.is_empty() || host.contains(['@', '[', ']']) {
            return Err(refused("names no host"));
        }
        Ok(Self {
            is_secure: scheme == "https",
            host: host.to_owned(),
            port,
            path: if path.starts_with('/') {
                path.to_owned()
            } else {
                format!("/{path}")
            },
            text: text.to_owned(),
        })
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read("url", &["https", "http"], text)
    }
}

impl FromStr for Webhook {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Url::read("webhook", &["http"], text).map(Self)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

by_text!(Url, String);
by_text!(Webhook, String);

fn known_kinds(kinds: Vec<String>) -> Result<Vec<String>, String> {
    let is_unknown = |kind: &&String| event_kind::names().all(|name| name != *kind);
    match kinds.iter().find(is_unknown) {
        None => Ok(kinds),
        Some(unknown) => {
            let hint = rules::near::hint(unknown, event_kind::names());
            Err(format!(
                "kinds: {unknown:?} is no kind of events, which `mcr events --json` shows{hint}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ConfigFile};

    #[test]
    fn an_address_is_read_and_written_alike_or_refused_by_name() {
        for (text, host, port, path) in [
            ("http://10.0.0.9:8080/mcr", "10.0.0.9", 8080, "/mcr"),
            ("http://alerts.example", "alerts.example", 80, "/"),
            ("http://[fd00::1]/a?b=c", "fd00::1", 80, "/a?b=c"),
            ("http://[fd00::1]:81?b", "fd00::1", 81, "/?b"),
        ] {
            let webhook: Webhook = text.parse().unwrap();
            let url = &webhook.0;
            let read = (url.host.as_str(), url.port, url.path.as_str());
            assert_eq!(read, (host, port, path), "{text}");
            assert_eq!(webhook.to_string(), text);
        }
        for (text, why) in [
            ("https://a/", "https is spoken to a [[notify.target]]"),
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
    const TARGET: &str =
        "version = 1\n[[notify.target]]\nurl = \"https://a.example/hook?t=SECRET\"\n";

    fn load(text: &str) -> Result<Config, String> {
        let file = ConfigFile {
            name: "mcr.toml".to_owned(),
            text: text.to_owned(),
        };
        Config::load(&[file], Default::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn targets_are_read_from_files_and_never_exported() {
        let text = format!(
            "{TARGET}ca = \"/ca.pem\"\nsecret_file = \"/secret\"\nheaders_file = \"/headers\"\n\
             format = \"alertmanager\"\nkinds = [\"rule_down\"]\nseverity = \"warning\"\n\
             labels = {{ site = \"ber\" }}\n[notify]\nwebhook = \"http://10.0.0.9/\"\n"
        );
        let config = load(&text).unwrap();
        let target = &config.targets[0];
        let url = &target.url;
        assert_eq!(
            (url.is_secure, url.port, url.path.as_str()),
            (true, 443, "/hook?t=SECRET")
        );
        assert_eq!(url.origin(), "https://a.example:443");
        assert_eq!(target.format, Some(NotifyFormat::Alertmanager));
        assert_eq!(target.severity, Some(Weight::Trouble));
        assert!(config.settings.notify.webhook.is_some());
        let exported = config.export() + &serde_json::to_string(&config.settings).unwrap();
        assert!(
            !exported.contains("example") && exported.contains("10.0.0.9"),
            "{exported}"
        );
        assert_eq!(crate::schema::tests::errors(&text), [""; 0]);
    }

    #[test]
    fn an_invalid_target_is_refused_by_name_without_its_secrets() {
        let many = "[[notify.target]]\nurl = \"http://a\"\n".repeat(TARGETS_MAX);
        for (more, why) in [
            ("kinds = [\"rule_dwon\"]", "did you mean rule_down?"),
            ("severity = \"loud\"", "severity"),
            ("format = \"xml\"", "cloudevents"),
            ("labels = { \"a-b\" = \"c\" }", "label \"a-b\""),
            ("labels = { \"\" = \"c\" }", "label"),
            ("ca = \"ca.pem\"", "whole path"),
            ("secret = \"x\"", "secret"),
            (many.as_str(), "16 at most"),
            ("[[notify.target]]\nformat = \"mcr\"", "url"),
            (
                "[[notify.target]]\nurl = \"http://a\"\nca = \"/a\"",
                "not encrypted",
            ),
            (
                "[[notify.target]]\nurl = \"https://eve:SECRET@a:0/SECRET\"",
                "https://HOST",
            ),
            (
                "[[notify.target]]\nurl = \"ftp://a/SECRET\"",
                "https or http",
            ),
        ] {
            let refused = load(&format!("{TARGET}{more}\n")).unwrap_err();
            assert!(refused.contains(why), "{more}: {refused}");
            assert!(!refused.contains("SECRET"), "{more}: {refused}");
        }
    }
}
