//! The OpenAPI document, made of the router itself, and the least role that it says of each route.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use config::Role;
use rules::rule::NAME;
use utoipa::PartialSchema;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Response, ResponseBuilder, Schema,
};
use utoipa_axum::router::OpenApiRouter;

use super::remote::admission::Roles;
use super::service::Service;

/// Routes and what the document says of them.
pub(super) type Routes = OpenApiRouter<Arc<Service>>;

/// Under which name the document has a route's least role.
const ROLE: &str = "x-mcr-role";

/// Has these routes answer those of that role and above alone; all where there is none.
pub(super) fn least(role: Option<Role>, mut router: Routes) -> Routes {
    for (_, operation) in operations(router.get_openapi_mut()) {
        operation.extensions = Some(
            [(ROLE, role.map_or("none", Role::as_str))]
                .into_iter()
                .collect(),
        );
        operation.security = Some(match role {
            None => Vec::new(),
            // By TLS one of them; the control socket and `--listen` ask for none.
            Some(_) => {
                let asked =
                    ["token", "certificate"].map(|by| SecurityRequirement::new(by, [""; 0]));
                let none = SecurityRequirement::default();
                asked.into_iter().chain([none]).collect()
            }
        });
    }
    router
}

/// The least role of each route, as the document has it.
pub(super) fn least_roles(document: &OpenApi) -> Roles {
    let mut document = document.clone();
    let mut roles = Roles::new();
    for ((path, method), operation) in operations(&mut document) {
        let said = operation
            .extensions
            .as_ref()
            .and_then(|said| said.get(ROLE)?.as_str());
        let role = Role::ALL.iter().find(|role| Some(role.as_str()) == said);
        if role.is_some() || said == Some("none") {
            let methods: &mut Vec<_> = roles.entry(path).or_default();
            methods.push((method, role.copied()));
        }
    }
    let document = vec![(Method::GET, Some(Role::View))];
    roles.insert("/openapi.json".to_owned(), document);
    roles
}

fn operations(document: &mut OpenApi) -> impl Iterator<Item = ((String, Method), &mut Operation)> {
    document.paths.paths.iter_mut().flat_map(|(path, item)| {
        let operations = [
            (Method::GET, &mut item.get),
            (Method::PUT, &mut item.put),
            (Method::POST, &mut item.post),
            (Method::DELETE, &mut item.delete),
        ];
        let there = operations
            .into_iter()
            .filter_map(|(method, it)| Some((method, it.as_mut()?)));
        there.map(|(method, operation)| ((path.clone(), method), operation))
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
    let token = Http::builder().scheme(HttpAuthScheme::Bearer);
    let token = token.description(Some(
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

/// Says of each path what names there are.
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

/// Says of each answer what it is: one that is good what was asked for, another what is wrong. What any
/// route may be refused for is said here alone.
fn describe_responses(document: &mut OpenApi) {
    for (_, operation) in operations(document) {
        let asked = operation.summary.clone().unwrap_or_default();
        let is_anybodys = operation.security == Some(Vec::new());
        let has_body = operation.request_body.is_some();
        let may_be_wrong = has_body || operation.parameters.is_some();
        for (status, may_be) in [
            ("400", may_be_wrong),
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
                response.description = description(status, &asked).to_owned();
            }
        }
    }
}

/// What is said where something is wrong; one word, by TLS, to who shows nothing.
fn refusal(is_one_word: bool) -> Response {
    let reply = Content::new(Some(Ref::from_schema_name("ErrorReply")));
    let response = ResponseBuilder::new().content("application/json", reply);
    match is_one_word {
        true => response.content("text/plain", Content::new(Some(String::schema()))),
        false => response,
    }
    .build()
}

fn description<'a>(status: &str, asked: &'a str) -> &'a str {
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
        _ => asked,
    }
}
