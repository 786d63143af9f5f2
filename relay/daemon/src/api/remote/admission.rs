//! Who may ask for what: each request of another host is a client's, and each route says the least
//! role of those it answers. A route that says none answers nobody.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use config::{ApiClient, Role};
use observe::events::Events;
use tokio::time::sleep;

use super::super::connections::Connection;
use super::super::host_name::{self, Names};
use super::super::refusal::{Code, Refusal};
use super::now;
use super::peer::Peer;
use super::session::{FOREIGN, is_browsers, only_reads, own_origin};
use super::state::Remote;

/// Where browsers sign in.
const SESSION: &str = "/v1/session";

/// The least role of each route; of those that anybody may ask for none.
pub(in crate::api) type Roles = HashMap<(String, Method), Option<Role>>;

/// The client at another host that a request is from; those of the control socket have none.
#[derive(Clone, Debug)]
pub(in crate::api) struct Caller(pub(in crate::api) String, pub(in crate::api) Role);

/// What it takes to let somebody in.
#[derive(Clone, Debug)]
pub(in crate::api) struct Gate {
    pub(in crate::api) roles: Arc<Roles>,
    pub(in crate::api) remote: Arc<Remote>,
    pub(in crate::api) events: Events,
    pub(in crate::api) names: Names,
}

/// Passes on what a client may ask for.
pub(in crate::api) async fn admit(
    State(gate): State<Gate>,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let path = path.map(|path| path.as_str().to_owned());
    let method = match request.method() {
        &Method::HEAD => Method::GET,
        method => method.clone(),
    };
    let least = path
        .clone()
        .map(|path| gate.roles.get(&(path, method)).copied());
    // What captures is as much as a change, whatever its method.
    let acts = !only_reads(request.method())
        || matches!(least, Some(Some(Some(Role::Operate | Role::Change))));
    if let Some(refused) = gate.refused_site(&request, acts) {
        return refused;
    }
    if let Some(Some(None)) = least {
        return one_word(next.run(request).await);
    }
    let Some(peer) = connection.visitor() else {
        return Refusal::new(Code::Unauthorized, "nobody is known here").into_response();
    };
    let client = match gate.client(peer, &request, acts) {
        Ok(client) => client,
        Err(Denied::At(refusal)) => return refusal.into_response(),
        Err(Denied::Unknown(why)) => {
            let delay = gate.remote.note_refusal(peer.address, &why, &gate.events);
            // Not before: who guesses is to wait, and does so in nobody's way.
            sleep(delay).await;
            let mut response = Refusal::new(Code::Unauthorized, why).into_response();
            let how = HeaderValue::from_static("Bearer realm=\"mcr\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
            return response;
        }
    };
    if let Err(why) = check(&client, peer.address, least) {
        return Refusal::new(Code::Forbidden, why).into_response();
    }
    let used = (now(), peer.address);
    gate.remote.known().used.insert(client.name.clone(), used);
    let caller = Caller(client.name, client.role);
    request.extensions_mut().insert(caller);
    guarded(next.run(request).await)
}

/// Has no other site's page show or embed an answer.
fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let same = HeaderValue::from_static("same-origin");
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        same,
    );
    let exact = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, exact);
    response
}

impl Gate {
    /// What a browser is answered whom another site's page has ask: under a name that is not this host's,
    /// or to change something.
    fn refused_site(&self, request: &Request, acts: bool) -> Option<Response> {
        let headers = request.headers();
        let path = request.uri().path();
        let is_page = path == "/" || path == SESSION || path.starts_with("/web/");
        if (is_page || is_browsers(headers)) && !self.knows_host(headers) {
            return Some(host_name::misdirected());
        }
        match own_origin(headers) {
            Some(false) if acts => Some(Refusal::new(Code::Forbidden, FOREIGN).into_response()),
            _ => None,
        }
    }

    /// Whether a request comes under a name of this host or of its certificate.
    fn knows_host(&self, headers: &HeaderMap) -> bool {
        let own = self.remote.known().names.clone();
        let mut hosts = headers.get_all(header::HOST).iter();
        hosts.all(|host| {
            let is_known = |host| {
                host_name::is_known(host, &self.names) || host_name::is_certified(host, &own)
            };
            host.to_str().is_ok_and(is_known)
        })
    }

    /// Which client it is, by its session, token or certificate.
    fn client(&self, peer: &Peer, request: &Request, acts: bool) -> Result<ApiClient, Denied> {
        let (headers, method) = (request.headers(), request.method());
        let refused = |code, why: &str| Err(Denied::At(Refusal::new(code, why)));
        let begins = method == Method::POST && request.uri().path() == SESSION;
        let shows_token = headers.contains_key(header::AUTHORIZATION);
        if is_browsers(headers) && !shows_token && !begins {
            if let Some(session) = self.remote.session(peer, headers, acts) {
                return match session.check(headers) {
                    Err(why) if acts => refused(Code::Forbidden, why),
                    _ => Ok(session.client),
                };
            }
            // A browser shows a certificate whoever's page has it ask.
            if acts || !peer.has_certificate() {
                let why = "nobody is signed in here; sign in, and try again";
                return refused(Code::Unauthorized, why);
            }
        }
        let is_homeless = is_browsers(headers) && own_origin(headers).is_none();
        if begins && is_homeless && !shows_token {
            return refused(Code::Forbidden, FOREIGN);
        }
        { peer.client(&self.remote.settings(), headers) }.map_err(Denied::Unknown)
    }
}

/// Why a request is nobody's, or not to be answered.
enum Denied {
    /// Whoever asked is told at once.
    At(Refusal),
    /// What was shown is not known, which may be a guess.
    Unknown(String),
}

/// Whether a client may ask for a route, by its least role; what is no route at all says so itself.
fn check(
    client: &ApiClient,
    address: std::net::IpAddr,
    least: Option<Option<Option<Role>>>,
) -> Result<(), String> {
    let ApiClient { name, role, .. } = client;
    if !client.may_come_from(address) {
        return Err(format!(
            "client {name} does not come from {address}: see its `from`"
        ));
    }
    match least {
        None => Ok(()),
        Some(Some(Some(least))) if *role >= least => Ok(()),
        Some(Some(Some(least))) => Err(format!(
            "client {name} has the role {role}, and this takes {least}"
        )),
        Some(_) => Err("this is not for clients of other hosts".to_owned()),
    }
}

/// Who shows nothing is told no more than whether all is well.
fn one_word(response: Response) -> Response {
    match response.status() {
        StatusCode::OK => response,
        status => (status, "unready\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_without_a_role_answers_nobody() {
        let client = ApiClient {
            name: "ci".to_owned(),
            role: Role::Change,
            from: vec!["10.0.0.0/8".to_owned()],
            ..ApiClient::default()
        };
        let check = |address: &str, least| check(&client, address.parse().unwrap(), least);
        assert!(
            check("10.1.1.1", None).is_ok(),
            "no route: it says so itself"
        );
        assert!(check("10.1.1.1", Some(Some(Some(Role::Change)))).is_ok());
        assert!(check("10.1.1.1", Some(None)).is_err());
        assert!(check("11.1.1.1", Some(Some(Some(Role::View)))).is_err());
        let client = ApiClient {
            role: Role::View,
            ..client
        };
        assert!(
            super::check(
                &client,
                "10.1.1.1".parse().unwrap(),
                Some(Some(Some(Role::Operate)))
            )
            .is_err()
        );
    }
}
