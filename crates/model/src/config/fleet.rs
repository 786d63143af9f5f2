//! Which fleet a relay belongs to: what the `[fleet]` table of a configuration says. A daemon keeps
//! what it was started with.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::daemon::parsed;
use crate::document::Scalar;
use crate::duration;
use crate::endpoint::check_interface_name;
use crate::rule::is_name;

/// What a hold may be.
const HOLDS: RangeInclusive<Duration> = Duration::from_millis(300)..=Duration::from_secs(5);
/// What a weight may be.
const WEIGHTS: RangeInclusive<u16> = 1..=1000;
/// The most endpoints: etcd has three to seven members.
const ENDPOINTS_MAX: usize = 16;

/// How long a beat counts where nobody says otherwise.
pub const HOLD: Duration = Duration::from_millis(1200);
/// What a relay takes of the rules, against the others' weights, where nobody says otherwise.
pub const WEIGHT: u16 = 100;

/// A relay's place in a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetSettings {
    /// Name of the fleet: all relays of this name at one etcd are one fleet.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Where etcd is, as in `["https://etcd1:2379", "https://etcd2:2379"]`; each is a member of one
    /// cluster.
    #[serde(deserialize_with = "endpoints")]
    pub endpoints: Vec<String>,
    /// What the others know this relay by, unique in the fleet; by default the host's name.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_relay"
    )]
    pub relay: Option<String>,
    /// Interfaces of this host by their roles, as rules of the fleet name them:
    /// `{ red = "eth0", out = "eth2" }`.
    #[serde(deserialize_with = "interfaces")]
    pub interfaces: BTreeMap<String, String>,
    /// What a relay does that etcd does not answer: `stop` forwarding, go on while its `peers`
    /// vouch for it (the default), or `hold` on, though receivers may then get packets twice.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_on_isolation"
    )]
    pub on_isolation: Option<OnIsolation>,
    /// How long a beat counts, and so about how long a takeover takes: `300ms` to `5s`, `1200ms` by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub hold: Option<Hold>,
    /// How much of the rules this relay takes, against the others' weights: 1 to 1000, by default
    /// 100.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_weight"
    )]
    #[schema(minimum = 1, maximum = 1000)]
    pub weight: Option<u16>,
    /// Address and UDP port, as in `10.0.0.1:9470`, where the other relays reach this one; by
    /// default the address that it reaches etcd from, and port 9470.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_peer"
    )]
    #[schema(value_type = Option<String>)]
    pub peer: Option<SocketAddr>,
    /// Files of certificates and key, for `https` endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<FleetTls>,
    /// User of etcd, for a cluster that authenticates by password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File that holds the user's password alone, read by nobody else.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_file"
    )]
    #[schema(value_type = Option<String>)]
    pub password_file: Option<PathBuf>,
}

/// Files of certificates and key, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetTls {
    /// Certificates that etcd's is signed by.
    #[serde(deserialize_with = "file")]
    #[schema(value_type = String)]
    pub ca: PathBuf,
    /// This relay's own certificate; its common name is the user of etcd.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_file"
    )]
    #[schema(value_type = Option<String>)]
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_file"
    )]
    #[schema(value_type = Option<String>)]
    pub key: Option<PathBuf>,
}

/// What a relay does that etcd does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnIsolation {
    /// Forwards no more than a hold longer.
    Stop,
    /// Goes on while those of its peers that could fence it promise not to.
    #[default]
    Peers,
    /// Goes on whatever happens; receivers may get packets twice.
    Hold,
}

/// How long a beat counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Scalar", into = "String")]
pub struct Hold(pub Duration);

impl FleetSettings {
    /// How long a beat of this relay counts.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.hold.map_or(HOLD, |Hold(hold)| hold)
    }

    /// How much of the rules it takes, against the others' weights.
    #[must_use]
    pub fn weight(&self) -> u16 {
        self.weight.unwrap_or(WEIGHT)
    }

    /// What is wrong with what it says together, and what to do.
    ///
    /// # Errors
    ///
    /// The first of it, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        let over_tls = self.endpoints.iter().find(|at| at.starts_with("https://"));
        let plain = self.endpoints.iter().find(|at| at.starts_with("http://"));
        if let (Some(over_tls), Some(plain)) = (over_tls, plain) {
            return Err(format!(
                "endpoints: {plain} is not encrypted and {over_tls} is; give https for all"
            ));
        }
        if let (Some(at), None) = (over_tls, &self.tls) {
            return Err(format!(
                "endpoints: {at} needs tls = {{ ca = \"/etc/mcr/etcd/ca.pem\" }}: what its \
                 certificate is signed by"
            ));
        }
        if let (Some(at), Some(_)) = (plain, &self.tls) {
            return Err(format!(
                "tls: is given, and {at} is not encrypted; write https:// there, or take tls out"
            ));
        }
        if let Some(tls) = &self.tls
            && tls.cert.is_some() != tls.key.is_some()
        {
            return Err("tls: cert and key belong together; give both or neither".to_owned());
        }
        if self.user.is_some() != self.password_file.is_some() {
            return Err("user and password_file belong together; give both or neither".to_owned());
        }
        Ok(())
    }

    /// Lists what a daemon that runs with `running` would do otherwise if it were started with
    /// `asked`, each in a few words that say what it does now.
    #[must_use]
    pub fn awaiting_restart(asked: Option<&Self>, running: Option<&Self>) -> Vec<String> {
        let differences = Self::differences(asked, running).into_iter();
        let awaiting = differences.map(|(name, asked, now)| {
            let key = if name.is_empty() { "" } else { " " };
            format!(
                "[fleet]{key}{name}: {asked} takes effect when the daemon is started again; until \
                 then {now}"
            )
        });
        awaiting.collect()
    }

    /// Name, what `asked` says and what `other` says, of each that is not the same; where one of
    /// them is in no fleet, of the whole, which has no name.
    pub(super) fn differences(
        asked: Option<&Self>,
        other: Option<&Self>,
    ) -> Vec<(&'static str, String, String)> {
        let (asked, other) = match (asked, other) {
            (Some(asked), Some(other)) => (asked, other),
            (None, None) => return Vec::new(),
            (asked, other) => {
                let of = |fleet: Option<&Self>| match fleet {
                    Some(fleet) => format!("fleet {:?}", fleet.name),
                    None => "no fleet".to_owned(),
                };
                return vec![("", of(asked), of(other))];
            }
        };
        let both = asked.texts().into_iter().zip(other.texts());
        both.filter(|((_, mine), (_, theirs))| mine != theirs)
            .map(|((name, mine), (_, theirs))| (name, mine, theirs))
            .collect()
    }

    /// What each comes to, defaults included.
    fn texts(&self) -> [(&'static str, String); 11] {
        let or = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        let interfaces = { self.interfaces.iter() }.map(|(role, name)| format!("{role}={name}"));
        let interfaces: Vec<String> = interfaces.collect();
        let shown = |path: &PathBuf| path.display().to_string();
        let on_isolation = format!("{:?}", self.on_isolation.unwrap_or_default());
        let tls = self.tls.as_ref().map(ToString::to_string);
        [
            ("name", self.name.clone()),
            ("endpoints", self.endpoints.join(", ")),
            ("relay", or(self.relay.clone(), "the host's name")),
            ("interfaces", interfaces.join(", ")),
            ("on_isolation", on_isolation.to_lowercase()),
            ("hold", duration::text(self.hold())),
            ("weight", self.weight().to_string()),
            (
                "peer",
                or(self.peer.map(|at| at.to_string()), "by what reaches etcd"),
            ),
            ("tls", or(tls, "none")),
            ("user", or(self.user.clone(), "none")),
            (
                "password_file",
                or(self.password_file.as_ref().map(shown), "none"),
            ),
        ]
    }
}

impl fmt::Display for FleetTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ca {}", self.ca.display())?;
        for (word, path) in [("cert", &self.cert), ("key", &self.key)] {
            if let Some(path) = path {
                write!(f, ", {word} {}", path.display())?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for OnIsolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::Peers => "peers",
            Self::Hold => "hold",
        })
    }
}

impl TryFrom<Scalar> for Hold {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        let text = value.to_string();
        let hold = duration::parse(&text).filter(|hold| HOLDS.contains(hold));
        hold.map(Self)
            .ok_or_else(|| format!("hold = {text:?}: give a time from \"300ms\" to \"5s\""))
    }
}

impl From<Hold> for String {
    fn from(Hold(hold): Hold) -> Self {
        duration::text(hold)
    }
}

/// Reads the table; what it says together is checked too.
pub(super) fn some_fleet<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<FleetSettings>, D::Error> {
    let read = Option::<FleetSettings>::deserialize(deserializer)?;
    let checked = read.as_ref().map_or(Ok(()), FleetSettings::check);
    let checked = checked.map_err(|problem| D::Error::custom(format!("fleet: {problem}")));
    checked.map(|()| read)
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    named(deserializer, "name")
}

fn some_relay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    named(deserializer, "relay").map(Some)
}

fn named<'de, D: Deserializer<'de>>(deserializer: D, key: &str) -> Result<String, D::Error> {
    let text = Scalar::deserialize(deserializer)?.to_string();
    if is_name(&text) {
        return Ok(text);
    }
    Err(D::Error::custom(format!(
        "{key} = {text:?}: give a letter or digit, then letters, digits, '.', '_', '-' and ':', at \
         most 63 of them"
    )))
}

fn endpoints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut endpoints = Vec::<String>::deserialize(deserializer)?;
    if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
        return Err(D::Error::custom(format!(
            "endpoints: give 1 to {ENDPOINTS_MAX}, as in [\"https://etcd1:2379\"]"
        )));
    }
    for at in &mut endpoints {
        if let Some(bare) = at.strip_suffix('/') {
            *at = bare.to_owned();
        }
        check_endpoint(at).map_err(|why| {
            // A password does not belong here; where one stands it is not repeated.
            let shown = at.rsplit_once('@').map_or(at.as_str(), |(_, host)| host);
            D::Error::custom(format!(
                "endpoint {shown:?}: {why}; give https://HOST:PORT or http://HOST:PORT"
            ))
        })?;
    }
    Ok(endpoints)
}

fn check_endpoint(at: &str) -> Result<(), &'static str> {
    let rest = at.strip_prefix("https://").or(at.strip_prefix("http://"));
    let rest = rest.ok_or("is no http or https address")?;
    if rest.contains('@') {
        return Err("names a user; give user and password_file");
    }
    let (host, port) = rest.rsplit_once(':').ok_or("has no port")?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_port.then(|| port.parse::<u16>().ok()).flatten();
    number
        .filter(|port| *port > 0)
        .ok_or("has no port from 1 to 65535")?;
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let fits = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            !host.is_empty() && host.bytes().all(is_host)
        }
    };
    fits.then_some(()).ok_or("names no host")
}

fn interfaces<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let interfaces = BTreeMap::<String, String>::deserialize(deserializer)?;
    if interfaces.is_empty() {
        return Err(D::Error::custom(
            "interfaces: give at least one role, as in { red = \"eth0\" }",
        ));
    }
    for (role, name) in &interfaces {
        for (what, name) in [("role", role), ("interface", name)] {
            let checked = check_interface_name(name);
            checked.map_err(|problem| D::Error::custom(format!("{what} {name:?}: {problem}")))?;
            if name.contains(['*', '?']) {
                return Err(D::Error::custom(format!(
                    "{what} {name:?}: a role stands for one interface; give it without * and ?"
                )));
            }
        }
    }
    Ok(interfaces)
}

fn some_on_isolation<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<OnIsolation>, D::Error> {
    let Some(value) = Option::<Scalar>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match value.to_string().as_str() {
        "stop" => Ok(Some(OnIsolation::Stop)),
        "peers" => Ok(Some(OnIsolation::Peers)),
        "hold" => Ok(Some(OnIsolation::Hold)),
        other => Err(D::Error::custom(format!(
            "on_isolation = {other:?}: give \"stop\", \"peers\" or \"hold\""
        ))),
    }
}

fn some_weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let fits = |weight: &u16| WEIGHTS.contains(weight);
    parsed(deserializer, "weight", "1 to 1000", fits)
}

fn some_peer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let give = "an address that the other relays reach and a port, as in 10.0.0.1:9470";
    parsed(deserializer, "peer", give, |at: &SocketAddr| {
        let address = at.ip();
        at.port() > 0 && !address.is_unspecified() && !address.is_multicast()
    })
}

fn file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::from(String::deserialize(deserializer)?);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(D::Error::custom(format!(
        "file {:?}: give the whole path, from / on",
        path
    )))
}

fn some_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    file(deserializer).map(Some)
}

#[cfg(test)]
mod tests;
