//! Browser sessions: a cookie that no script can read, stored here by its hash, in memory only. A session
//! belongs to a client at one address, and ends with the client.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, Method, header};
use config::{ApiClient, ApiSettings};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tls::token;

/// The prefix makes browsers accept it only from this host, over TLS, for every path.
const COOKIE: &str = "__Host-mcr";
/// The header in which the page returns a token that only it received.
const CSRF: &str = "x-mcr-csrf";
const SESSIONS_MAX: usize = 256;
/// How long an unused session lasts, and any at most.
const IDLE: Duration = Duration::from_secs(30 * 60);
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

/// A signed-in client.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) client: ApiClient,
    /// The token that each change has to carry besides the cookie.
    pub(super) csrf: String,
    from: IpAddr,
    began: Instant,
    used: Instant,
}

/// All sessions, by the hash of their cookie.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<String, Session>>);

impl Session {
    fn is_valid(&self, now: Instant) -> bool {
        now.duration_since(self.used) < IDLE && now.duration_since(self.began) < LONGEST
    }

    /// Refuses a change that was not requested by this listener's page.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let shown = headers.get(CSRF).map_or(&b""[..], HeaderValue::as_bytes);
        let matches = bool::from(shown.ct_eq(self.csrf.as_bytes()));
        match own_origin(headers) {
            Some(true) if matches => Ok(()),
            Some(true) => Err("X-MCR-CSRF is not what GET /v1/session tells; reload the page"),
            _ => Err(FOREIGN),
        }
    }
}

impl Sessions {
    /// Begins a session; returns its cookie. The longest unused one makes room.
    pub(super) fn begin(&self, client: ApiClient, from: IpAddr, now: Instant) -> Option<String> {
        let (cookie, csrf) = (token::create()?, token::create()?);
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.is_valid(now));
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.used);
            if let Some(hash) = oldest.map(|(hash, _)| hash.clone()) {
                sessions.remove(&hash);
            }
        }
        let session = Session {
            client,
            csrf,
            from,
            began: now,
            used: now,
        };
        sessions.insert(token::hash(&cookie), session);
        Some(cookie)
    }

    /// The session of a request, if its client still exists; `uses`: a person's request, not a timer's.
    pub(super) fn of(
        &self,
        (headers, from): (&HeaderMap, IpAddr),
        settings: &ApiSettings,
        (now, uses): (Instant, bool),
    ) -> Option<Session> {
        let hash = token::hash(cookie(headers)?);
        let mut sessions = self.0.lock();
        let session = sessions.get_mut(&hash)?;
        if !session.is_valid(now) || !settings.client.contains(&session.client) {
            sessions.remove(&hash);
            return None;
        }
        if session.from != from {
            return None;
        }
        if uses {
            session.used = now;
        }
        Some(session.clone())
    }

    /// Ends the session of a request.
    pub(super) fn end(&self, headers: &HeaderMap) {
        cookie(headers).and_then(|cookie| self.0.lock().remove(&token::hash(cookie)));
    }
}

pub(super) const FOREIGN: &str = "another site's page asked for this; nothing was changed";

/// The header that sets a browser's cookie; `None` removes it.
pub(super) fn set_cookie(cookie: Option<&str>) -> String {
    let (value, age) = (
        cookie.unwrap_or_default(),
        cookie.map_or("; Max-Age=0", |_| ""),
    );
    format!("{COOKIE}={value}; Path=/; Secure; HttpOnly; SameSite=Strict{age}")
}

/// Returns whether a browser sent it: one shows certificates and cookies on requests of any site's page.
pub(super) fn is_browsers(headers: &HeaderMap) -> bool {
    let marks = ["origin", "sec-fetch-site", "cookie"];
    marks.iter().any(|mark| headers.contains_key(*mark))
}

/// Returns whether the requesting page is this listener's own, if the browser tells.
pub(super) fn own_origin(headers: &HeaderMap) -> Option<bool> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        // Browsers send no origin when a page only reads from its own site.
        let site = headers.get("sec-fetch-site")?.as_bytes();
        return (site != b"none").then_some(site == b"same-origin");
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let own = host.map(|host| format!("https://{host}"));
    let origin = origin.to_str().ok();
    Some(
        origin
            .zip(own)
            .is_some_and(|(origin, own)| origin.eq_ignore_ascii_case(&own)),
    )
}

/// Returns whether a method changes nothing.
pub(super) fn only_reads(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let values = headers.get_all(header::COOKIE).iter();
    let texts = values.filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use config::ApiClients;

    use super::*;

    fn client(name: &str) -> ApiClient {
        ApiClient {
            name: name.to_owned(),
            ..ApiClient::default()
        }
    }

    fn settings(names: &[&str]) -> ApiSettings {
        ApiSettings {
            client: ApiClients(names.iter().map(|name| client(name)).collect()),
            ..ApiSettings::default()
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    const HOME: &str = "10.0.0.1";

    #[test]
    fn a_session_ends_when_it_is_idle_or_old_or_its_client_is_removed() {
        let sessions = Sessions::default();
        let (began, minute) = (Instant::now(), Duration::from_secs(60));
        let from = HOME.parse().unwrap();
        let all = settings(&["noc"]);
        let cookie = sessions.begin(client("noc"), from, began).unwrap();
        let shown = headers(&[("cookie", &format!("a=b; {COOKIE}={cookie}; c=d"))]);
        let find = |at: Instant, uses, settings: &ApiSettings| {
            sessions.of((&shown, from), settings, (at, uses)).is_some()
        };
        assert!(find(began + 29 * minute, false, &all));
        assert!(find(began + 29 * minute, true, &all));
        assert!(find(began + 58 * minute, false, &all), "it was used");
        let elsewhere = (&shown, "10.0.0.2".parse().unwrap());
        assert!(
            sessions.of(elsewhere, &all, (began, false)).is_none(),
            "it was stolen"
        );
        let mut at = began + 58 * minute;
        while at < began + LONGEST {
            assert!(find(at, true, &all));
            at += 20 * minute;
        }
        assert!(!find(began + LONGEST, true, &all), "it is old");
        let cookie = sessions.begin(client("noc"), from, began).unwrap();
        let shown = headers(&[("cookie", &format!("{COOKIE}={cookie}"))]);
        let find = |at: Instant, settings: &ApiSettings| {
            sessions.of((&shown, from), settings, (at, true)).is_some()
        };
        assert!(find(began, &all) && !find(began, &settings(&["other"])));
        assert!(!find(began, &all), "it does not come back with its client");
        let cookie = sessions.begin(client("noc"), from, began).unwrap();
        let shown = headers(&[("cookie", &format!("{COOKIE}={cookie}"))]);
        assert!(
            sessions
                .of((&shown, from), &all, (began + IDLE, true))
                .is_none()
        );
        let cookie = sessions.begin(client("noc"), from, began).unwrap();
        let shown = headers(&[("cookie", &format!("{COOKIE}={cookie}"))]);
        sessions.end(&shown);
        assert!(
            sessions.of((&shown, from), &all, (began, true)).is_none(),
            "it was replayed"
        );
    }

    #[test]
    fn the_longest_unused_session_makes_room() {
        let sessions = Sessions::default();
        let (began, from, all) = (Instant::now(), HOME.parse().unwrap(), settings(&["noc"]));
        let begin = |n: u64| sessions.begin(client("noc"), from, began + Duration::from_secs(n));
        let cookies: Vec<String> = (0..SESSIONS_MAX as u64 + 1).filter_map(begin).collect();
        assert_eq!(sessions.0.lock().len(), SESSIONS_MAX);
        let exists = |cookie: &str| {
            let shown = headers(&[("cookie", &format!("{COOKIE}={cookie}"))]);
            sessions.of((&shown, from), &all, (began, false)).is_some()
        };
        assert!(!exists(&cookies[0]) && exists(&cookies[1]));
    }

    #[test]
    fn a_change_requires_the_own_origin_and_the_page_s_token() {
        let sessions = Sessions::default();
        let (now, from) = (Instant::now(), HOME.parse().unwrap());
        let cookie = sessions.begin(client("noc"), from, now).unwrap();
        let shown = headers(&[("cookie", &format!("{COOKIE}={cookie}"))]);
        let session = sessions
            .of((&shown, from), &settings(&["noc"]), (now, true))
            .unwrap();
        let check = |origin: Option<&'static str>, csrf: &str| {
            let mut pairs = vec![("host", "relay1:9471"), (CSRF, csrf)];
            pairs.extend(origin.map(|origin| ("origin", origin)));
            session.check(&headers(&pairs)).is_ok()
        };
        assert!(check(Some("https://relay1:9471"), &session.csrf));
        for origin in [
            None,
            Some("null"),
            Some("http://relay1:9471"),
            Some("https://relay1"),
            Some("https://relay1:9471.evil.example"),
            Some("https://evil.example"),
        ] {
            assert!(!check(origin, &session.csrf), "{origin:?}");
        }
        for csrf in ["", "mcr_guessed"] {
            assert!(!check(Some("https://relay1:9471"), csrf), "{csrf}");
        }
    }
}
