//! The OpenAPI document, generated from the router, and the least role that it states for each route.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{self, IntoResponse};
use config::Role;
use rules::rule::NAME;
use utoipa::PartialSchema;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Response, ResponseBuilder, Schema,
};
use utoipa_axum::router::OpenApiRouter;

use super::api_error::{ApiError, Code};
use super::remote::admission::Roles;
use super::service::Service;

/// Routes with their descriptions in the document.
pub(super) type Routes = OpenApiRouter<Arc<Service>>;

/// The document's extension with a route's least role.
const ROLE: &str = "x-mcr-role";

/// Restricts these routes to that role and above; with `None` anybody may use them.
pub(super) fn least(role: Option<Role>, mut router: Routes) -> Routes {
    for (_, operation) in operations(router.get_openapi_mut()) {
        operation.extensions = Some(
            [(ROLE, role.map_or("none", Role::as_str))]
                .into_iter()
                .collect(),
        );
        operation.security = Some(match role {
            None => Vec::new(),
            // TLS requires one of them; the control socket and `--listen` none.
            Some(_) => {
                let required = |scheme| SecurityRequirement::new(scheme, [""; 0]);
                let none = SecurityRequirement::default();
                vec![required("token"), required("certificate"), none]
            }
        });
    }
    router
}

/// The least role of each route, as stated in the document.
pub(super) fn least_roles(document: &OpenApi) -> Roles {
    let mut document = document.clone();
    let mut roles = Roles::new();
    for ((path, method), operation) in operations(&mut document) {
        let extensions = operation.extensions.as_ref();
        let stated = extensions.and_then(|extensions| extensions.get(ROLE)?.as_str());
        let role = Role::ALL.iter().find(|role| Some(role.as_str()) == stated);
        if role.is_some() || stated == Some("none") {
            let methods: &mut Vec<_> = roles.entry(path).or_default();
            methods.push((method, role.copied()));
        }
    }
    let methods = vec![(Method::GET, Some(Role::View))];
    roles.insert("/openapi.json".to_owned(), methods);
    roles
}

/// The names of the query's parameters, of each method of each path.
pub(super) type Queries = HashMap<(String, Method), Vec<String>>;

/// What each route below `/v1` takes in its query, as stated in the document.
pub(super) fn queries(document: &OpenApi) -> Queries {
    let mut document = document.clone();
    let versioned = operations(&mut document).filter(|((path, _), _)| path.starts_with("/v1/"));
    let names = versioned.map(|(route, operation)| {
        let parameters = operation.parameters.iter().flatten();
        let queried = parameters.filter_map(|one| match one {
            RefOr::T(one) if one.parameter_in == ParameterIn::Query => Some(one.name.clone()),
            _ => None,
        });
        (route, queried.collect())
    });
    names.collect()
}

fn operations(document: &mut OpenApi) -> impl Iterator<Item = ((String, Method), &mut Operation)> {
    document.paths.paths.iter_mut().flat_map(|(path, item)| {
        let operations = [
            (Method::GET, &mut item.get),
            (Method::PUT, &mut item.put),
            (Method::POST, &mut item.post),
            (Method::DELETE, &mut item.delete),
        ];
        operations
            .into_iter()
            .filter_map(|(method, operation)| Some(((path.clone(), method), operation.as_mut()?)))
    })
}

pub(super) fn described(router: Routes) -> (Router<Arc<Service>>, OpenApi) {
    let about = InfoBuilder::new()
        .title("MCR control API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "The multicast relay's daemon, over its Unix socket, and by TLS, with credentials, where [api] says so.",
        ))
        .build();
    let (router, routes) = router.split_for_parts();
    let mut document = OpenApiBuilder::new().info(about).build();
    document.merge(routes);
    let token = Http::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "Of `mcr token create`; the control socket takes none.",
        ));
    let certificate = SecurityScheme::MutualTls {
        description: Some("One that client_ca of [api] signed.".to_owned()),
        deprecated: None,
        extensions: None,
    };
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token.build()));
    components.add_security_scheme("certificate", certificate);
    describe_responses(&mut document);
    bound_names(&mut document);
    (router, document)
}

/// Adds the pattern of rule names to each path parameter.
fn bound_names(document: &mut OpenApi) {
    for (_, operation) in operations(document) {
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(parameter) = parameter
                && parameter.name == "name"
                && let Some(RefOr::T(Schema::Object(name))) = &mut parameter.schema
            {
                name.pattern = Some(format!("^({})$", NAME.pattern));
            }
        }
    }
}

/// Describes each response: a success by the route's summary, a refusal by its cause. Refusals that any
/// route may return are added here only.
fn describe_responses(document: &mut OpenApi) {
    for (_, operation) in operations(document) {
        let summary = operation.summary.clone().unwrap_or_default();
        let is_anybodys = operation.security == Some(Vec::new());
        let has_body = operation.request_body.is_some();
        for (status, may_be) in [
            ("400", true),
            ("401", !is_anybodys),
            ("403", !is_anybodys),
            ("408", true),
            ("413", has_body),
            ("421", true),
            ("500", true),
            ("503", true),
        ] {
            let responses = &mut operation.responses.responses;
            if may_be && !responses.contains_key(status) {
                let is_one_word = is_anybodys && status.starts_with('5');
                responses.insert(status.to_owned(), refusal(is_one_word).into());
            }
        }
        for (status, response) in &mut operation.responses.responses {
            if let RefOr::T(response) = response {
                response.description = description(status, &summary).to_owned();
            }
        }
    }
}

/// A refusal; over TLS, a client without credentials may get a single word instead.
fn refusal(is_one_word: bool) -> Response {
    let reply = Content::new(Some(Ref::from_schema_name("ErrorReply")));
    let mut response = ResponseBuilder::new().content("application/json", reply);
    if is_one_word {
        response = response.content("text/plain", Content::new(Some(String::schema())));
    }
    response.build()
}

fn description<'a>(status: &str, summary: &'a str) -> &'a str {
    match status {
        "400" => "Not a request that is known here.",
        "401" => "By TLS, neither a token nor a certificate of a client was shown.",
        "403" => {
            "By TLS, the client's role does not allow it, or not from there; or it is somebody else's to do."
        }
        "408" => "It took too long; the message tells whether something may have been changed.",
        "404" => "There is no such rule, or the daemon is in no fleet.",
        "409" => {
            "A rule of that name is there, the rules are of another generation, or a change waits to be confirmed."
        }
        "413" => "The body is too large.",
        "421" => "The listener is not known by the name that it was asked by.",
        "422" => "The rules make no sense.",
        "500" => "The daemon's own fault.",
        "503" => "An interface, a path or room is missing.",
        _ => summary,
    }
}

/// Refuses parameters that a route does not take: one that is mistyped may have been meant to keep a
/// change from being made, or from lasting.
pub(super) async fn refuse_unknown(
    State(queries): State<Arc<Queries>>,
    request: Request,
    next: Next,
) -> response::Response {
    let path = request.extensions().get().map(MatchedPath::as_str);
    let method = match request.method() {
        &Method::HEAD => &Method::GET,
        method => method,
    };
    let known = path.and_then(|path| queries.get(&(path.to_owned(), method.clone())));
    let query = Query::<Vec<(String, String)>>::try_from_uri(request.uri());
    if let (Some(known), Ok(Query(pairs))) = (known, query)
        && let Some((name, _)) = pairs.iter().find(|(name, _)| !known.contains(name))
    {
        let message = match known.join(", ") {
            none if none.is_empty() => format!("no parameter {name:?}; there are none here"),
            known => format!("no parameter {name:?}; there are {known}"),
        };
        return ApiError::new(Code::Usage, message).into_response();
    }
    next.run(request).await
}
