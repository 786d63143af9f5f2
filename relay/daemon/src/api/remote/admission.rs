//! Authorisation: each request of another host belongs to a client, and each route states the least role
//! it requires. A route that states none answers nobody.

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

/// The path at which browsers sign in.
const SESSION: &str = "/v1/session";

/// The least role of each method of each route; `None`: anybody may ask.
pub(in crate::api) type Roles = HashMap<String, Vec<(Method, Option<Role>)>>;

/// The target of a request.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// No such path; the router's fallback answers.
    NoRoute,
    /// A route with other methods, as `Allow` lists them; also one that states no least role.
    NoMethod(String),
    /// A route that anybody may use.
    Anybodys,
    /// A route that requires that role.
    Least(Role),
}

fn target(roles: &Roles, path: Option<&str>, method: &Method) -> Target {
    let Some(path) = path else {
        return Target::NoRoute;
    };
    let methods = roles.get(path).map(Vec::as_slice).unwrap_or_default();
    let method = match method {
        &Method::HEAD => &Method::GET,
        method => method,
    };
    match methods.iter().find(|(supported, _)| supported == method) {
        Some((_, Some(least))) => Target::Least(*least),
        Some((_, None)) => Target::Anybodys,
        None => {
            let names = methods.iter().map(|(supported, _)| match supported {
                &Method::GET => "GET,HEAD",
                other => other.as_str(),
            });
            Target::NoMethod(names.collect::<Vec<_>>().join(","))
        }
    }
}

/// The client at another host that sent a request; requests on the control socket have none.
#[derive(Clone, Debug)]
pub(in crate::api) struct Caller(pub(in crate::api) String, pub(in crate::api) Role);

/// The state that decides whether a request is admitted.
#[derive(Clone, Debug)]
pub(in crate::api) struct Gate {
    pub(in crate::api) roles: Arc<Roles>,
    pub(in crate::api) remote: Arc<Remote>,
    pub(in crate::api) events: Events,
    pub(in crate::api) names: Names,
}

/// Passes on the requests that a client may make.
pub(in crate::api) async fn admit(
    State(gate): State<Gate>,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get().map(MatchedPath::as_str);
    let target = target(&gate.roles, path, request.method());
    // A capture counts as a change, whatever its method.
    let acts = !only_reads(request.method())
        || matches!(target, Target::Least(Role::Operate | Role::Change));
    if let Some(refused) = gate.refused_site(&request, acts) {
        return refused;
    }
    let least = match target {
        Target::NoRoute => None,
        Target::Least(least) => Some(least),
        Target::Anybodys => return one_word(next.run(request).await),
        Target::NoMethod(allowed) => {
            let refused = no_such_method(request.method(), request.uri().path());
            return ([(header::ALLOW, allowed)], refused).into_response();
        }
    };
    let Some(peer) = connection.remote() else {
        return ApiError::new(Code::Unauthorized, "nobody is known here").into_response();
    };
    let client = match gate.client(peer, &request, acts) {
        Ok(client) => client,
        Err(Denied::At(refusal)) => return refusal.into_response(),
        Err(Denied::Unknown(why)) => {
            let delay = gate.remote.note_refusal(peer.address, &why, &gate.events);
            // A client that guesses waits, and delays nobody else.
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
    gate.remote
        .lock_status()
        .used
        .insert(client.name.clone(), used);
    let caller = Caller(client.name, client.role);
    request.extensions_mut().insert(caller);
    guarded(next.run(request).await)
}

/// Prevents other sites' pages from reading or embedding a reply.
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
    /// The refusal of a browser's request that another site's page made: for a name that is not this
    /// host's, or to change something.
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

    /// Returns whether a request names this host, or a name of its certificate.
    fn knows_host(&self, headers: &HeaderMap) -> bool {
        let own = self.remote.lock_status().names.clone();
        let mut hosts = headers.get_all(header::HOST).iter();
        hosts.all(|host| {
            let is_served = |host| {
                host_name::is_served(host, &self.names) || host_name::is_certified(host, &own)
            };
            host.to_str().is_ok_and(is_served)
        })
    }

    /// The client of a request, by its session, token or certificate.
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
            // A browser shows its certificate on requests of any site's page.
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

/// Why a request is not attributed to a client, or refused.
enum Denied {
    /// The refusal is sent at once.
    At(ApiError),
    /// The credentials are unknown, and may be a guess.
    Unknown(String),
}

/// Checks whether a client may use a route with that least role; `None`: there is no such route, which the
/// fallback answers.
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

/// Limits the reply to a client without credentials to whether the daemon is ready.
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
        let target = |path, method| target(&roles, path, &method);
        let none = |allowed: &str| Target::NoMethod(allowed.to_owned());
        assert_eq!(target(None, Method::GET), Target::NoRoute);
        assert_eq!(target(Some("/a"), Method::HEAD), Target::Anybodys);
        assert_eq!(target(Some("/a"), Method::PUT), Target::Least(Role::Change));
        assert_eq!(target(Some("/a"), Method::TRACE), none("GET,HEAD,PUT"));
        assert_eq!(target(Some("/b"), Method::GET), none(""), "it says no role");
    }
}
