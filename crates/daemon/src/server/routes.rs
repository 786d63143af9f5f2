//! The endpoints, each once, with the OpenAPI document generated from them, and the limits that
//! hold for all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use tokio::time::timeout;
use utoipa::OpenApi;

use super::{Api, Failure, events, metrics, read, rules};

/// Largest body of a request in bytes: some 50,000 rules.
const BODY: usize = 16 * 1024 * 1024;

/// How long a request may take, its body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "MCR control API",
        description = "Rules, statistics and events of one MCR daemon, over its Unix socket.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(
        read::status,
        read::stats,
        read::rule_stats,
        read::interfaces,
        read::export,
        read::openapi,
        read::healthz,
        read::readyz,
        metrics::metrics,
        events::events,
        rules::list,
        rules::show,
        rules::add,
        rules::replace,
        rules::remove,
        rules::transaction,
    )
)]
pub(super) struct Document;

type Endpoint = (Method, &'static str, MethodRouter<Api>);

/// Endpoints that change nothing.
fn reading() -> Vec<Endpoint> {
    vec![
        (Method::GET, "/v1/status", get(read::status)),
        (Method::GET, "/v1/stats", get(read::stats)),
        (Method::GET, "/v1/stats/{name}", get(read::rule_stats)),
        (Method::GET, "/v1/interfaces", get(read::interfaces)),
        (Method::GET, "/v1/rules", get(rules::list)),
        (Method::GET, "/v1/rules/{name}", get(rules::show)),
        (Method::GET, "/v1/export", get(read::export)),
        (Method::GET, "/v1/events", get(events::events)),
        (Method::GET, "/openapi.json", get(read::openapi)),
        (Method::GET, "/metrics", get(metrics::metrics)),
        (Method::GET, "/healthz", get(read::healthz)),
        (Method::GET, "/readyz", get(read::readyz)),
    ]
}

/// Endpoints that change rules.
fn changing() -> Vec<Endpoint> {
    vec![
        (Method::POST, "/v1/rules", post(rules::add)),
        (Method::PUT, "/v1/rules", put(rules::replace)),
        (Method::DELETE, "/v1/rules/{name}", delete(rules::remove)),
        (Method::POST, "/v1/transaction", post(rules::transaction)),
    ]
}

/// Every endpoint: method and path.
#[cfg(test)]
pub(super) fn endpoints() -> Vec<(Method, &'static str)> {
    let all = reading().into_iter().chain(changing());
    all.map(|(method, path, _)| (method, path)).collect()
}

/// Everything, for the control socket.
pub(super) fn control(api: Api) -> Router {
    router(reading().into_iter().chain(changing())).with_state(api)
}

/// What may be read by anybody who reaches the TCP listener: numbers, not the configuration.
pub(super) fn read_only(api: Api) -> Router {
    let open = ["/metrics", "/healthz", "/readyz", "/v1/status", "/v1/stats"];
    let open = reading()
        .into_iter()
        .filter(|(_, path, _)| open.contains(path));
    router(open).with_state(api)
}

fn router(endpoints: impl Iterator<Item = Endpoint>) -> Router<Api> {
    let mut paths: BTreeMap<&'static str, MethodRouter<Api>> = BTreeMap::new();
    for (_, path, handler) in endpoints {
        let merged = paths.remove(path).unwrap_or_default().merge(handler);
        paths.insert(path, merged);
    }
    let mut router = Router::new();
    for (path, handler) in paths {
        router = router.route(path, handler);
    }
    router
        .fallback(async || {
            Failure::new(
                "no_such_endpoint",
                "no such endpoint; /openapi.json lists them",
            )
        })
        .method_not_allowed_fallback(async || {
            Failure::new(
                "wrong_method",
                "not with this method; /openapi.json lists the endpoints",
            )
        })
        .layer(DefaultBodyLimit::max(BODY))
        .layer(middleware::from_fn(limit_time))
}

async fn limit_time(request: Request, next: Next) -> Response {
    match timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let seconds = REQUEST_TIMEOUT.as_secs();
            let message = format!(
                "the request took longer than {seconds} s; look at the rules to see what became of it"
            );
            Failure::new("timeout", message).into_response()
        }
    }
}
