//! Who may ask for what: each request of another host is a client's, and each route says the least
//! role of those it answers. A route that says none answers nobody.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use config::{ApiClient, Role};
use observe::events::Events;
use tokio::time::sleep;

use super::super::api_error::{ApiError, Code, no_such_method};
use super::super::connections::Connection;
use super::super::host_name::{self, Names};
use super::now;
use super::peer::Peer;
use super::session::{FOREIGN, is_browsers, only_reads, own_origin};
use super::state::Remote;

/// Where browsers sign in.
const SESSION: &str = "/v1/session";

/// The least role of each method of each route; of those that anybody may ask for none.
pub(in crate::api) type Roles = HashMap<String, Vec<(Method, Option<Role>)>>;

/// What a request is for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// Nothing that there is, which says so itself.
    NoRoute,
    /// A route that has other methods, as `Allow` lists them; also one that says no least role.
    NoMethod(String),
    /// What anybody may ask for.
    Anybodys,
    /// What takes that role.
    Least(Role),
}

fn asked(roles: &Roles, path: Option<&str>, method: &Method) -> Asked {
    let Some(path) = path else {
        return Asked::NoRoute;
    };
    let methods = roles.get(path).map(Vec::as_slice).unwrap_or_default();
    let sought = match method {
        &Method::HEAD => &Method::GET,
        method => method,
    };
    match methods.iter().find(|(known, _)| known == sought) {
        Some((_, Some(least))) => Asked::Least(*least),
        Some((_, None)) => Asked::Anybodys,
        None => {
            let names = methods.iter().map(|(known, _)| match known {
                &Method::GET => "GET,HEAD",
                known => known.as_str(),
            });
            Asked::NoMethod(names.collect::<Vec<_>>().join(","))
        }
    }
}

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
    let path = request.extensions().get().map(MatchedPath::as_str);
    let asked = asked(&gate.roles, path, request.method());
    // What captures is as much as a change, whatever its method.
    let acts = !only_reads(request.method())
        || matches!(asked, Asked::Least(Role::Operate | Role::Change));
    if let Some(refused) = gate.refused_site(&request, acts) {
        return refused;
    }
    let least = match asked {
        Asked::NoRoute => None,
        Asked::Least(least) => Some(least),
        Asked::Anybodys => return one_word(next.run(request).await),
        Asked::NoMethod(allowed) => {
            let refused = no_such_method(request.method(), request.uri().path());
            return ([(header::ALLOW, allowed)], refused).into_response();
        }
    };
    let Some(peer) = connection.visitor() else {
        return ApiError::new(Code::Unauthorized, "nobody is known here").into_response();
    };
    let client = match gate.client(peer, &request, acts) {
        Ok(client) => client,
        Err(Denied::At(refusal)) => return refusal.into_response(),
        Err(Denied::Unknown(why)) => {
            let delay = gate.remote.note_refusal(peer.address, &why, &gate.events);
            // Not before: who guesses is to wait, and does so in nobody's way.
            sleep(delay).await;
            let mut response = ApiError::new(Code::Unauthorized, why).into_response();
            let how = HeaderValue::from_static("Bearer realm=\"mcr\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
            return response;
        }
    };
    if let Err(why) = check(&client, peer.address, least) {
        return ApiError::new(Code::Forbidden, why).into_response();
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
            Some(false) if acts => Some(ApiError::new(Code::Forbidden, FOREIGN).into_response()),
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
        let refused = |code, why: &str| Err(Denied::At(ApiError::new(code, why)));
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
        peer.client(&self.remote.settings(), headers)
            .map_err(Denied::Unknown)
    }
}

/// Why a request is nobody's, or not to be answered.
enum Denied {
    /// Whoever asked is told at once.
    At(ApiError),
    /// What was shown is not known, which may be a guess.
    Unknown(String),
}

/// Whether a client may ask for a route, by its least role; what is no route at all says so itself.
fn check(client: &ApiClient, address: std::net::IpAddr, least: Option<Role>) -> Result<(), String> {
    let ApiClient { name, role, .. } = client;
    if !client.may_come_from(address) {
        return Err(format!(
            "client {name} does not come from {address}: see its `from`"
        ));
    }
    match least {
        Some(least) if *role < least => Err(format!(
            "client {name} has the role {role}, and this takes {least}"
        )),
        _ => Ok(()),
    }
}

/// Who shows nothing is told no more than whether all is well.
fn one_word(response: Response) -> Response {
    match response.status() {
        status if status.is_server_error() => (status, "unready\n").into_response(),
        _ => response,
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
        assert!(check("10.1.1.1", Some(Role::Change)).is_ok());
        assert!(check("11.1.1.1", Some(Role::View)).is_err());
        let client = ApiClient {
            role: Role::View,
            ..client
        };
        let operate = Some(Role::Operate);
        assert!(super::check(&client, "10.1.1.1".parse().unwrap(), operate).is_err());
        let methods = vec![(Method::GET, None), (Method::PUT, Some(Role::Change))];
        let roles = Roles::from([("/a".to_owned(), methods)]);
        let asked = |path, method| asked(&roles, path, &method);
        let none = |allowed: &str| Asked::NoMethod(allowed.to_owned());
        assert_eq!(asked(None, Method::GET), Asked::NoRoute);
        assert_eq!(asked(Some("/a"), Method::HEAD), Asked::Anybodys);
        assert_eq!(asked(Some("/a"), Method::PUT), Asked::Least(Role::Change));
        assert_eq!(asked(Some("/a"), Method::TRACE), none("GET,HEAD,PUT"));
        assert_eq!(asked(Some("/b"), Method::GET), none(""), "it says no role");
    }
}
