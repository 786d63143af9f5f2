//! The host names that requests on TCP may use. Another site's page can make a browser resolve its name
//! to this host's address (DNS rebinding) and read what only this network may, so a request for an
//! unknown name is refused.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::api_error::{ApiError, Code};

/// Names that the listener serves, besides every address and `localhost`.
pub(crate) type Names = Arc<[String]>;

/// The configured names and the host's own.
pub(crate) fn served(configured: Option<&[String]>) -> Names {
    let configured = configured.unwrap_or_default().iter().cloned();
    configured.chain([own()]).collect()
}

/// The host's own name.
pub(crate) fn own() -> String {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    own.trim().to_owned()
}

/// Passes on requests for a served name; those without a name are not from a browser.
pub(super) async fn check(State(names): State<Names>, request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let is_served = |host: &HeaderValue| host.to_str().is_ok_and(|host| is_served(host, &names));
    if hosts.all(is_served) {
        return next.run(request).await;
    }
    misdirected()
}

/// The reply to a request for an unknown name.
pub(super) fn misdirected() -> Response {
    let message = "this listener is asked for by its address, localhost or this host's name; \
                   permit another by listen_names in [daemon] or mcr run --listen-name";
    ApiError::new(Code::Misdirected, message).into_response()
}

/// Returns whether a `Host:` value is one of a certificate's names, which may be like `*.example`.
pub(super) fn is_certified(host: &str, names: &[String]) -> bool {
    let name = host.split(':').next().unwrap_or_default();
    let parent = name.split_once('.').map(|(_, parent)| parent);
    names
        .iter()
        .any(|certified| match certified.strip_prefix("*.") {
            Some(domain) => parent.is_some_and(|parent| parent.eq_ignore_ascii_case(domain)),
            None => !name.is_empty() && certified.eq_ignore_ascii_case(name),
        })
}

/// Returns whether a `Host:` value, with or without a port, is served.
pub(super) fn is_served(host: &str, names: &[String]) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split_once(']').map(|(address, _)| address);
        return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.split(':').next().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut served = names.iter().map(String::as_str).chain(["localhost"]);
    name.parse::<IpAddr>().is_ok()
        || !name.is_empty() && served.any(|served| served.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_certificate_are_served() {
        let names = ["relay1.example".to_owned(), "*.plant.example".to_owned()];
        for host in [
            "relay1.example:9471",
            "RELAY1.example",
            "a.plant.example:9471",
        ] {
            assert!(is_certified(host, &names), "{host}");
        }
        for host in [
            "evil.example",
            "a.b.plant.example",
            "plant.example",
            "relay1.example.evil",
            "",
        ] {
            assert!(!is_certified(host, &names), "{host}");
        }
    }

    #[test]
    fn addresses_localhost_and_configured_names_are_served() {
        let names = ["Relay1".to_owned(), String::new()];
        for host in [
            "127.0.0.1:9469",
            "10.0.0.5",
            "[::1]:9469",
            "[fe80::1]",
            "localhost:9469",
            "LOCALHOST.",
            "relay1:9469",
            "RELAY1",
        ] {
            assert!(is_served(host, &names), "{host}");
        }
        for host in [
            "evil.example:9469",
            "relay1.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[::1",
            "[evil]",
            "",
            ":9469",
            ".",
        ] {
            assert!(!is_served(host, &names), "{host}");
        }
    }
}
