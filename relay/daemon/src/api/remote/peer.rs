//! The other end of a TLS connection: its credentials, and the clients it was served as.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use config::{ApiClient, ApiSettings};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use subtle::ConstantTimeEq;
use tls::Identity;
use tls::token::hash;

use super::door::Verifier;
use super::now;

/// The other end of a TLS connection.
#[derive(Debug)]
pub(in crate::api) struct Peer {
    pub(super) address: IpAddr,
    /// Its certificate and those that signed it.
    chain: Vec<CertificateDer<'static>>,
    identity: Option<Identity>,
    served_as: Mutex<Vec<ApiClient>>,
}

impl Peer {
    pub(super) fn new(address: IpAddr, chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            address: address.to_canonical(),
            identity: chain.first().and_then(|own| Identity::read(own)),
            chain,
            served_as: Mutex::default(),
        }
    }

    /// A peer whose certificate has that name, or without a certificate.
    #[cfg(feature = "rehearsal")]
    pub(in crate::api) fn named(name: Option<&str>) -> Self {
        let identity = name.map(|name| Identity {
            names: vec![name.to_owned()],
            expires: u64::MAX,
        });
        Self {
            identity,
            ..Self::new(std::net::Ipv4Addr::LOCALHOST.into(), Vec::new())
        }
    }

    /// The client it is, by the token of a request or by its certificate.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn client(
        &self,
        settings: &ApiSettings,
        headers: &HeaderMap,
    ) -> Result<ApiClient, String> {
        let client = match (bearer(headers)?, &self.identity) {
            (Some(token), _) => {
                let shown = hash(token);
                // Compares all of them, so that timing does not reveal which one matched.
                let mut matched = None;
                for client in settings.client.iter() {
                    let token = client.token.as_deref().unwrap_or_default();
                    if bool::from(token.as_bytes().ct_eq(shown.as_bytes())) {
                        matched = Some(client);
                    }
                }
                matched.ok_or_else(|| "the token is nobody's".to_owned())?
            }
            (None, Some(identity)) => {
                let has_name = |client: &&ApiClient| {
                    let name = client.certificate.as_ref();
                    name.is_some_and(|name| identity.names.contains(name))
                };
                settings.client.iter().find(has_name).ok_or_else(|| {
                    let names = identity.names.join(", ");
                    format!("no [[api.client]] has a name of the certificate ({names})")
                })?
            }
            (None, None) => return Err("neither a token nor a certificate was shown".to_owned()),
        };
        if client.expires().is_some_and(|ends| ends <= now()) {
            return Err(format!("client {} has ended", client.name));
        }
        self.serve_as(client);
        Ok(client.clone())
    }

    /// Ties the connection to the client: it ends when the client does.
    pub(super) fn serve_as(&self, client: &ApiClient) {
        let mut served_as = self.served_as.lock();
        if !served_as.contains(client) {
            served_as.push(client.clone());
        }
    }

    pub(super) const fn has_certificate(&self) -> bool {
        self.identity.is_some()
    }

    /// Returns whether it still shows the client's certificate, if the client has one.
    pub(super) fn still_shows(&self, client: &ApiClient) -> bool {
        let names = self.identity.as_ref().map(|identity| &identity.names);
        client
            .certificate
            .as_ref()
            .is_none_or(|name| names.is_some_and(|names| names.contains(name)))
    }

    /// Returns whether all clients it was served as still exist, and its certificate is valid.
    pub(super) fn is_served_by(&self, settings: &ApiSettings) -> bool {
        let now = now();
        let lasts = |client: &ApiClient| {
            settings.client.contains(client) && client.expires().is_none_or(|ends| ends > now)
        };
        self.served_as.lock().iter().all(lasts)
            && self
                .identity
                .as_ref()
                .is_none_or(|identity| identity.expires > now)
    }

    /// Returns whether the current CAs and revocation lists accept its certificate.
    pub(super) fn is_trusted_by(&self, verifier: Option<&Verifier>) -> bool {
        let Some((own, rest)) = self.chain.split_first() else {
            return true;
        };
        let verify = |verifier: &Verifier| verifier.verify_client_cert(own, rest, UnixTime::now());
        verifier.is_some_and(|verifier| verify(verifier).is_ok())
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, String> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(None);
    };
    match value.to_str().ok().and_then(|value| value.split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err("Authorization is to be: Bearer TOKEN".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use config::ApiClients;

    use super::*;

    #[test]
    fn a_token_matches_its_hash_until_its_client_expires() {
        let client = |name: &str, token: &str, expires: Option<&str>| ApiClient {
            name: name.to_owned(),
            token: Some(hash(token)),
            expires: expires.map(str::to_owned),
            ..ApiClient::default()
        };
        let settings = ApiSettings {
            client: ApiClients(vec![
                client("a", "one", None),
                client("b", "two", Some("2001-01-01")),
            ]),
            ..ApiSettings::default()
        };
        let peer = Peer::new("10.0.0.1".parse().unwrap(), Vec::new());
        let shown = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            peer.client(&settings, &headers).map(|client| client.name)
        };
        assert_eq!(shown("Bearer one").as_deref(), Ok("a"));
        assert_eq!(shown("bearer  one ").as_deref(), Ok("a"));
        for (text, why) in [
            ("Bearer two", "has ended"),
            ("Bearer three", "nobody's"),
            ("Bearer ", "nobody's"),
            ("Basic one", "Bearer TOKEN"),
            ("one", "Bearer TOKEN"),
        ] {
            assert!(shown(text).unwrap_err().contains(why), "{text}");
        }
        assert!(peer.is_served_by(&settings));
        assert!(
            !peer.is_served_by(&ApiSettings::default()),
            "it was taken out"
        );
        assert!(peer.client(&settings, &HeaderMap::new()).is_err());
    }
}
