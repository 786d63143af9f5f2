//! Remote control of a relay: the `[api]` table of a configuration. It is read only from files on the
//! host and never disclosed: it is in no export, no reply and no generation.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;

use rules::net::Prefix;
use rules::rule::NAME;
use rules::setting::{ANY, Form, TextForm, nested, settings, words};
use serde::{Deserialize, Serialize};
use time::format_description::well_known::{Iso8601, Rfc3339};
use time::{Date, OffsetDateTime};

const HASH: TextForm = TextForm {
    name: "sha256:HASH",
    fits: is_hash,
    pattern: "sha256:[0-9a-f]{64}",
    remedy: "the line that `mcr token create` prints",
    ..ANY
};

const NETWORK: TextForm = TextForm {
    name: "NETWORK",
    fits: |text| Prefix::parse(text).is_some(),
    pattern: r"[0-9A-Fa-f:.]+(/[0-9]{1,3})?",
    remedy: "an address or a network, as in 10.0.0.0/8",
    ..ANY
};

const MOMENT: TextForm = TextForm {
    name: "TIME",
    fits: |text| moment(text).is_some(),
    pattern: r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9:.]+([Zz]|[+-][0-9]{2}:[0-9]{2}))?",
    remedy: "a day or a time, as in 2027-02-24 or 2027-02-24T12:00:00Z",
    ..ANY
};

const NAME_OF_CERTIFICATE: TextForm = TextForm {
    name: "NAME",
    fits: |text| !text.is_empty(),
    pattern: ".+",
    remedy: "an alternative name of the client's certificate, as in noc.example",
    ..ANY
};

settings! {
    /// Who may steer the relay from elsewhere, by TLS.
    pub struct ApiSettings {
        /// Address and port, as in `0.0.0.0:9471`, where clients of other hosts are served by TLS.
        optional listen: SocketAddr, otherwise: "none";
        /// The relay's certificate and what signed it, PEM. It is read anew when it changes, as all
        /// these files are.
        optional certificate: PathBuf;
        /// The certificate's key, PEM, which the daemon's user can read without further privilege.
        optional key: PathBuf;
        /// What certificates of clients are signed by, PEM; without it clients have tokens alone.
        optional client_ca: PathBuf, otherwise: "none";
        /// Lists of that CA's revoked certificates, PEM.
        optional client_crl: PathBuf, otherwise: "none";
        /// The oldest version of TLS that is spoken.
        optional tls: TlsVersion, default: "1.3";
        /// The clients, as `[[api.client]]` each.
        several client: ApiClients, form: Form::Tables("ApiClient");
    }
}

settings! {
    /// A client of the API at another host.
    pub struct ApiClient {
        /// What it is called where it is told who did something.
        required name: String, form: Form::Text(&NAME);
        /// What it may do.
        required role: Role;
        /// A name that its certificate has: an alternative name, or the common name of one without any.
        optional certificate: String, form: Form::Text(&NAME_OF_CERTIFICATE), otherwise: "it has a token";
        /// The hash of its token, as `mcr token create` prints it.
        optional token: String, form: Form::Text(&HASH), otherwise: "it has a certificate";
        /// Networks that it comes from, as in `["10.0.0.0/8"]`.
        several from: Vec<String>, form: Form::List(&NETWORK), otherwise: "anywhere";
        /// When it is one no more, as in `2027-02-24`, at 0:00 UTC, or `2027-02-24T12:00:00Z`.
        optional expires: String, form: Form::Text(&MOMENT), otherwise: "never";
    }
}

words! {
    /// What a client may do; each includes those before it.
    pub enum Role = View {
        /// It reads.
        View = "view",
        /// It also enables, disables, switches, drains, confirms its own changes, taps and discovers.
        Operate = "operate",
        /// It also changes rules, joins and the fleet, reloads and rolls back.
        Change = "change",
    }
}

words! {
    /// A version of TLS.
    pub enum TlsVersion = V13 {
        /// TLS 1.3 alone.
        V13 = "1.3",
        /// TLS 1.2 too.
        V12 = "1.2",
    }
}

/// Clients at other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ApiClients(pub Vec<ApiClient>);

impl Deref for ApiClients {
    type Target = Vec<ApiClient>;

    fn deref(&self) -> &Vec<ApiClient> {
        &self.0
    }
}

nested! {
    ApiClients as ApiClient, Form::Tables("ApiClient"), |clients| {
        let names = clients.iter().map(|client| client.name.as_str());
        names.collect::<Vec<&str>>().join(", ")
    };
}

impl ApiSettings {
    /// Checks the keys together.
    ///
    /// # Errors
    /// The first problem and what to do, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        for (index, client) in self.client.iter().enumerate() {
            let name = &client.name;
            let before = || self.client[..index].iter();
            if before().any(|other| other.name == *name) {
                return Err(format!(
                    "client {name:?}: is there twice; give each its own name"
                ));
            }
            if let Some(text) = client
                .from
                .iter()
                .find(|text| Prefix::parse(text).is_none())
            {
                let remedy = NETWORK.remedy;
                return Err(format!("client {name:?}: from {text:?}: give {remedy}"));
            }
            match (&client.certificate, &client.token) {
                (Some(_), Some(_)) | (None, None) => {
                    return Err(format!(
                        "client {name:?}: give it either certificate, a name that its certificate \
                         has, or token, from `mcr token create`"
                    ));
                }
                (Some(_), None) if self.client_ca.is_none() => {
                    return Err(format!(
                        "client {name:?}: its certificate is to be judged by client_ca: give the \
                         file of the CA that signs clients'"
                    ));
                }
                (certificate, token) => {
                    let is_same = |other: &&ApiClient| {
                        (&other.certificate, &other.token) == (certificate, token)
                    };
                    if let Some(other) = before().find(is_same) {
                        return Err(format!(
                            "client {name:?}: shows the same as client {:?}; nobody could tell \
                             them apart",
                            other.name
                        ));
                    }
                }
            }
        }
        match (&self.client_ca, &self.client_crl) {
            (None, Some(_)) => Err("client_crl: needs the client_ca that signed it".to_owned()),
            _ => Ok(()),
        }
    }

    /// Why no client can be served although there is an address to listen at.
    #[must_use]
    pub fn lacks(&self) -> Option<&'static str> {
        if self.certificate.is_none() || self.key.is_none() {
            return Some("[api] has no certificate and key; give the files of both");
        }
        let lacks = "[api] names no client; give [[api.client]] for each, see `mcr token create`";
        self.client.is_empty().then_some(lacks)
    }
}

impl ApiClient {
    /// Whether it may come from an address.
    #[must_use]
    pub fn may_come_from(&self, address: IpAddr) -> bool {
        let mut networks = self.from.iter().filter_map(|text| Prefix::parse(text));
        self.from.is_empty() || networks.any(|network| network.contains(address.to_canonical()))
    }

    /// When its access expires, in seconds since the epoch.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        self.expires.as_deref().and_then(moment)
    }
}

fn is_hash(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let hash = text.strip_prefix("sha256:");
    hash.is_some_and(|hash| hash.len() == 64 && hash.bytes().all(is_digit))
}

fn moment(text: &str) -> Option<u64> {
    let day = || {
        Some(
            Date::parse(text, &Iso8601::DATE)
                .ok()?
                .midnight()
                .assume_utc(),
        )
    };
    let time = OffsetDateTime::parse(text, &Rfc3339).ok().or_else(day)?;
    time.unix_timestamp().try_into().ok()
}

/// Writes a time, in seconds since the epoch, as `expires` has it.
#[must_use]
pub fn moment_text(seconds: u64) -> String {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|time| OffsetDateTime::from_unix_timestamp(time).ok());
    time.and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ConfigFile};

    fn read(text: &str) -> Result<ApiSettings, String> {
        let file = ConfigFile {
            name: "mcr.toml".to_owned(),
            text: format!("version = 1\n{text}"),
        };
        let config = Config::load(&[file], Default::default());
        config
            .map(|config| config.api)
            .map_err(|error| error.to_string())
    }

    const TOKEN: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn clients_are_read_and_never_exported() {
        let text = format!(
            "[api]\nlisten = \"0.0.0.0:9471\"\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"\n\
             tls = \"1.2\"\n[[api.client]]\nname = \"noc\"\nrole = \"operate\"\ntoken = \"{TOKEN}\"\n\
             from = [\"10.0.0.0/8\", \"fd00::7\"]\nexpires = \"1970-01-02\"\n\
             [[api.client]]\nname = \"ci\"\nrole = \"change\"\ncertificate = \"ci.example\"\n"
        );
        let api = read(&text).unwrap();
        assert_eq!(api.lacks(), None);
        assert_eq!((api.client.len(), api.tls), (2, Some(TlsVersion::V12)));
        let noc = &api.client[0];
        assert_eq!(noc.expires(), Some(86_400));
        assert!(noc.role > Role::View && noc.role < Role::Change);
        for (address, may) in [
            ("10.9.9.9", true),
            ("::ffff:10.1.1.1", true),
            ("11.0.0.1", false),
            ("fd00::7", true),
            ("fd00::8", false),
        ] {
            assert_eq!(
                noc.may_come_from(address.parse().unwrap()),
                may,
                "{address}"
            );
        }
        let file = ConfigFile {
            name: "mcr.toml".to_owned(),
            text: format!("version = 1\n{text}"),
        };
        let config = Config::load(&[file], Default::default()).unwrap();
        let exported = [
            config.export(),
            serde_json::to_string(&config.settings).unwrap(),
        ]
        .concat();
        for secret in ["sha256", "9471", "noc"] {
            assert!(!exported.contains(secret), "{exported}");
        }
        let errors = crate::schema::tests::errors(&format!("version = 1\n{text}"));
        assert_eq!(errors, [""; 0]);
    }

    #[test]
    fn invalid_combinations_are_refused_by_name() {
        let client =
            |keys: &str| format!("[[api.client]]\nname = \"a\"\nrole = \"view\"\n{keys}\n");
        let token = client(&format!("token = \"{TOKEN}\""));
        for (text, why) in [
            (client(""), "either certificate"),
            (client("certificate = \"a\""), "client_ca"),
            (client("token = \"secret\""), "mcr token create"),
            (format!("{token}{token}"), "is there twice"),
            (
                format!("{token}{}", token.replace("\"a\"", "\"b\"")),
                "shows the same",
            ),
            (
                client(&format!("token = \"{TOKEN}\"\nfrom = [\"10.0.0.0/33\"]")),
                "network",
            ),
            (
                client(&format!("token = \"{TOKEN}\"\nexpires = \"soon\"")),
                "a day or a time",
            ),
            (client("role = \"root\""), "stands there twice"),
            ("[api]\nclient_crl = \"/x\"\n".to_owned(), "client_ca"),
            ("[api]\ntls = \"1.1\"\n".to_owned(), "1.2"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        assert!(
            read("[api]\nlisten = \":9471\"")
                .unwrap()
                .lacks()
                .unwrap()
                .contains("certificate")
        );
    }
}
