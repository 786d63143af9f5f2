//! The configuration of a client. A `Config` that `Client::new` accepts is valid.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hyper::Uri;

/// etcd's own port for clients.
const PORT: u16 = 2379;

/// How a [`Client`](crate::Client) reaches etcd.
#[derive(Clone)]
pub struct Config {
    /// The members; the first is asked first.
    pub endpoints: Vec<Endpoint>,
    /// Certificates; needed by endpoints with `https`.
    pub tls: Option<Tls>,
    /// Name and password, if etcd does not identify the client by its certificate.
    pub user: Option<(String, Secret)>,
    /// How long to wait for an endpoint's connection before the next is tried.
    pub connect_timeout: Duration,
    /// How long a watch may receive nothing at all before it counts as broken.
    pub silence: Duration,
    /// Longest reply that is accepted, in bytes.
    pub reply_max: usize,
}

impl Config {
    /// The default limits: 250 ms to connect, 1 s of silence, replies of 16 MiB.
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            tls: None,
            user: None,
            connect_timeout: Duration::from_millis(250),
            silence: Duration::from_secs(1),
            reply_max: 16 << 20,
        }
    }
}

/// Files in PEM. They are read again for each connection, so certificates may be renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The CA of the members' certificates.
    pub ca: PathBuf,
    /// The client's certificate and its chain, if etcd asks for one; with `key`.
    pub certificate: Option<PathBuf>,
    /// The key of the certificate.
    pub key: Option<PathBuf>,
}

/// A secret that must not be logged: it has no `Debug` and no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

/// One member, as `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub(crate) secure: bool,
    /// A name or an address, IPv6 without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    /// A name or an address, IPv6 without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Endpoint {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |reason| ConfigError::Endpoint {
            // The part before an @ may be a password.
            endpoint: match text.rsplit_once('@') {
                Some((_, host)) => format!("...@{host}"),
                None => text.to_owned(),
            },
            reason,
        };
        let uri: Uri = text.parse().map_err(|_| wrong("it is not a URL"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("user and password do not belong there"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("nothing may follow the port"));
        }
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            None | Some("") => PORT,
            Some(port) => match port.trim_start_matches(':').parse() {
                Ok(0) | Err(_) => return Err(wrong("its port is not one of 1 to 65535")),
                Ok(port) => port,
            },
        };
        Ok(Self {
            secure,
            host: host.to_owned(),
            port,
        })
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A text that is not an endpoint.
    #[error("endpoint {endpoint:?}: {reason}: write http://HOST:PORT or https://HOST:PORT")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No endpoint is given.
    #[error("no endpoint of etcd is given: name at least one, as http://HOST:PORT")]
    NoEndpoints,
    /// TLS without a CA to trust.
    #[error("endpoint {0} needs TLS: give the file of the CA that signed etcd's certificates")]
    NoTls(Endpoint),
    /// Half of a client certificate.
    #[error("a client certificate needs both files, certificate and key: the {0} is missing")]
    HalfCertificate(&'static str),
    /// A file that cannot be used.
    #[error("{}: {reason}: {remedy}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A host name that TLS cannot verify.
    #[error("endpoint {0}: its host cannot be in a certificate: give a DNS name or an IP address")]
    ServerName(Endpoint),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_endpoints() {
        let cases = [
            ("http://a.example:2379", "http://a.example:2379"),
            ("https://a/", "https://a:2379"),
            ("https://10.0.0.1:1", "https://10.0.0.1:1"),
            ("http://[::1]:2379", "http://[::1]:2379"),
            ("http://[::1]", "http://[::1]:2379"),
        ];
        for (text, expected) in cases {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), expected);
        }
    }

    #[test]
    fn explains_invalid_endpoints() {
        let cases = [
            ("", "not a URL"),
            ("a.example:2379", "neither http:// nor https://"),
            ("ftp://a", "neither http:// nor https://"),
            ("http://user:secret@a:1", "user and password"),
            ("http://a:1/path", "nothing may follow"),
            ("http://a:1?x", "nothing may follow"),
            ("http://a:0", "port"),
            ("http://a:70000", "port"),
        ];
        for (text, reason) in cases {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(
                error.contains("write http") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn refuses_half_a_configuration() {
        let refused = |config| match crate::Client::new(config) {
            Ok(_) => panic!("it was taken"),
            Err(error) => error.to_string(),
        };
        assert!(refused(Config::new(Vec::new())).contains("no endpoint"));
        let secure = || Config::new(vec!["https://a".parse().unwrap()]);
        assert!(refused(secure()).contains("give the file of the CA"));
        let mut config = secure();
        config.tls = Some(Tls {
            ca: PathBuf::from("/no/such/ca.pem"),
            certificate: None,
            key: None,
        });
        let text = refused(config);
        assert!(text.contains("/no/such/ca.pem") && text.contains("give a readable file"));
    }
}
