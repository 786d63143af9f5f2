//! The fleet that a relay belongs to: the `[fleet]` table of a configuration. A daemon keeps the settings
//! that it was started with.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rules::duration;
use rules::rule::NAME;
use rules::setting::{
    ANY, Difference, Form, Refusal, Setting, Table, TextForm, differences, nested, settings, words,
};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::settings::check_one_interface;

/// The most endpoints: etcd has three to seven members.
const ENDPOINTS_MAX: usize = 16;

/// Default of how long a heartbeat counts.
pub const HOLD: Duration = Duration::from_millis(1200);
/// Default of how long an input that another relay receives may be silent.
const INPUT_SILENCE: Duration = Duration::from_secs(2);
/// Default of how long an output may be down.
const OUTPUT_DOWN: Duration = Duration::from_millis(500);
/// Shortest silence: inputs are sampled twice a second.
const INPUT_SILENCE_MIN: Duration = Duration::from_millis(1500);
const OUTPUT_DOWN_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// Default of a relay's weight, its part of the rules relative to the others' weights.
pub const WEIGHT: u16 = 100;

const ENDPOINT: TextForm = TextForm {
    name: "URL",
    pattern: r"https?://([0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\]):0*[1-9][0-9]{0,4}/?",
    remedy: "https://HOST:PORT or http://HOST:PORT",
    ..ANY
};

const PEER: TextForm = TextForm {
    name: "ADDRESS:PORT",
    fits: is_peer,
    pattern: r"([1-9][0-9]{0,2}([.][0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+(%[0-9]+)?\]):0*[1-9][0-9]{0,4}",
    remedy: "an address that the other relays reach and a port, as in 10.0.0.1:9470",
    is_quoted: false,
    ..ANY
};

const ROLE: TextForm = TextForm {
    name: "IFACE",
    pattern: r"[^ /%,@:*?]{1,15}",
    ..ANY
};

settings! {
    /// A relay's place in a fleet.
    pub struct FleetSettings {
        /// Name of the fleet: all relays of this name at one etcd are one fleet.
        required name: String, form: Form::Text(&NAME);
        /// Where etcd is, as in `["https://etcd1:2379", "https://etcd2:2379"]`; each is a member of
        /// one cluster.
        required endpoints: Vec<String> => checked_endpoints, form: Form::List(&ENDPOINT);
        /// What the others know this relay by, unique in the fleet.
        optional relay: String, form: Form::Text(&NAME), otherwise: "the host's name";
        /// Interfaces of this host by their roles, as rules of the fleet name them:
        /// `{ red = "eth0", out = "eth2" }`.
        required interfaces: BTreeMap<String, String> => checked_roles, form: Form::Map(&ROLE);
        /// What a relay does that etcd does not answer.
        optional on_isolation: OnIsolation, default: "peers";
        /// How long a beat counts, and so about how long a takeover takes.
        optional hold: Hold, default: "1200ms";
        /// How long nothing may come by an input that another relay hears, before its share goes there;
        /// a stream that has longer pauses gets more.
        optional input_silence: Duration, form: Form::time(INPUT_SILENCE_MIN, PATIENCE_MAX), default: "2s";
        /// How long an output may be down, or an input not joined, before its share goes to a relay
        /// that is better off.
        optional output_down: Duration, form: Form::time(OUTPUT_DOWN_MIN, PATIENCE_MAX), default: "500ms";
        /// How much of the rules this relay takes, against the others' weights.
        optional weight: u16, form: Form::number(1, 1000), default: "100";
        /// Address and UDP port, as in `10.0.0.1:9470`, where the other relays reach this one; by
        /// default the address that it reaches etcd from, and port 9470.
        optional peer: SocketAddr, form: Form::Text(&PEER), otherwise: "by what reaches etcd";
        /// Files of certificates and key, for `https` endpoints.
        optional tls: FleetTls, otherwise: "none";
        /// User of etcd, for a cluster that authenticates by password.
        optional user: String, otherwise: "none";
        /// File that holds the user's password alone, read by nobody else.
        optional password_file: PathBuf, otherwise: "none";
    }
}

settings! {
    /// Files of certificates and key, PEM.
    pub struct FleetTls {
        /// Certificates that etcd's is signed by.
        required ca: PathBuf;
        /// This relay's own certificate; its common name is the user of etcd.
        optional cert: PathBuf;
        /// The certificate's key.
        optional key: PathBuf;
    }
}

words! {
    /// What a relay does that etcd does not answer.
    pub enum OnIsolation = Peers {
        /// Forwards no more than a hold longer.
        Stop = "stop",
        /// Goes on while those of its peers that could fence it promise not to.
        Peers = "peers",
        /// Goes on whatever happens; receivers may get packets twice.
        Hold = "hold",
    }
}

/// How long a heartbeat counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Hold(pub Duration);

impl Setting for Hold {
    const FORM: Form = Form::time(Duration::from_millis(300), Duration::from_secs(5));

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        duration::parse(text).map(Self).ok_or(Refusal::Form)
    }

    fn text(&self, _: &Form) -> String {
        duration::text(self.0)
    }
}

impl FleetSettings {
    /// How long a heartbeat of this relay counts.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.hold.map_or(HOLD, |Hold(hold)| hold)
    }

    /// How long an input that another relay receives may be silent.
    #[must_use]
    pub fn input_silence(&self) -> Duration {
        self.input_silence.unwrap_or(INPUT_SILENCE)
    }

    /// How long an output may be down.
    #[must_use]
    pub fn output_down(&self) -> Duration {
        self.output_down.unwrap_or(OUTPUT_DOWN)
    }

    /// How much of the rules it takes, relative to the others' weights.
    #[must_use]
    pub fn weight(&self) -> u16 {
        self.weight.unwrap_or(WEIGHT)
    }

    /// Checks the keys together.
    ///
    /// # Errors
    ///
    /// The first problem and what to do, as a sentence.
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

    /// Lists what a daemon that runs with `running` would do differently if it were started with
    /// `configured`, each in a few words with what it does now.
    #[must_use]
    pub fn awaiting_restart(configured: Option<&Self>, running: Option<&Self>) -> Vec<String> {
        let differences = Self::differences(configured, running).into_iter();
        differences
            .map(|difference| difference.awaiting_restart("fleet"))
            .collect()
    }

    /// The keys that differ; if one of the two is in no fleet, the fleet as a whole, under an empty key.
    pub(super) fn differences(configured: Option<&Self>, other: Option<&Self>) -> Vec<Difference> {
        match (configured, other) {
            (Some(configured), Some(other)) => differences(configured, other),
            (None, None) => Vec::new(),
            (configured, other) => {
                let of = |fleet: Option<&Self>| match fleet {
                    Some(fleet) => format!("fleet {:?}", fleet.name),
                    None => "no fleet".to_owned(),
                };
                vec![Difference {
                    key: "",
                    configured: of(configured),
                    other: of(other),
                }]
            }
        }
    }
}

impl From<Hold> for String {
    fn from(Hold(hold): Hold) -> Self {
        duration::text(hold)
    }
}

/// Deserialises the table and checks its keys together.
pub(super) fn some_fleet<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<FleetSettings>, D::Error> {
    let fleet = Option::<FleetSettings>::deserialize(deserializer)?;
    match fleet.as_ref().map_or(Ok(()), FleetSettings::check) {
        Ok(()) => Ok(fleet),
        Err(problem) => Err(D::Error::custom(format!("fleet: {problem}"))),
    }
}

fn checked_endpoints(mut endpoints: Vec<String>) -> Result<Vec<String>, String> {
    if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
        return Err(format!(
            "endpoints: give 1 to {ENDPOINTS_MAX}, as in [\"https://etcd1:2379\"]"
        ));
    }
    for at in &mut endpoints {
        if let Some(bare) = at.strip_suffix('/') {
            *at = bare.to_owned();
        }
        check_endpoint(at).map_err(|why| {
            // A password does not belong here and is not repeated.
            let shown = at.rsplit_once('@').map_or(at.as_str(), |(_, host)| host);
            format!("endpoint {shown:?}: {why}; give {}", ENDPOINT.remedy)
        })?;
    }
    Ok(endpoints)
}

fn check_endpoint(at: &str) -> Result<(), &'static str> {
    let rest = at
        .strip_prefix("https://")
        .or(at.strip_prefix("http://"))
        .ok_or("is no http or https address")?;
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

fn checked_roles(interfaces: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    if interfaces.is_empty() {
        return Err("interfaces: give at least one role, as in { red = \"eth0\" }".to_owned());
    }
    for (role, name) in &interfaces {
        for (what, name) in [("role", role), ("interface", name)] {
            check_one_interface(name).map_err(|problem| format!("{what} {name:?}: {problem}"))?;
        }
    }
    Ok(interfaces)
}

fn is_peer(text: &str) -> bool {
    text.parse().is_ok_and(|at: SocketAddr| {
        let address = at.ip();
        at.port() > 0 && !address.is_unspecified() && !address.is_multicast()
    })
}

nested! {
    FleetTls as FleetTls, Form::Table("FleetTls"), |tls| {
        let values = tls.values().into_iter();
        let given = values.filter_map(|(row, text)| Some(format!("{} {}", row.key, text?)));
        given.collect::<Vec<String>>().join(", ")
    };
}

#[cfg(test)]
mod tests;
