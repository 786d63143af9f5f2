//! The web page: files embedded in the binary, which contact only this daemon. It reads `/v1/stats` and
//! `/v1/events` like every other client, so its numbers are those of `mcr stats`; their texts come from
//! the declarations of the counters. A signed-in reader makes changes through the same API.

use std::sync::LazyLock;

use api::counter::Counter;
use api::reply::{InputStats, LineStats, MergeStats, OutputStats, RtpStats, RuleStats, TsStats};
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use observe::events::kind;
use serde_json::{Value, json};

/// The page may load only from this listener; uPlot sets styles on its elements.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

const COUNTERS_PATH: &str = "/web/counters.js";

/// A script of the page: path, content type and content.
macro_rules! script {
    ($name:literal) => {
        (
            concat!("/web/", $name),
            SCRIPT,
            include_str!(concat!("web/", $name)),
        )
    };
}

/// Path, content type and content of each file.
const FILES: [(&str, &str, &str); 25] = [
    ("/", HTML, include_str!("web/index.html")),
    script!("main.js"),
    script!("actions.js"),
    script!("ask.js"),
    script!("capture.js"),
    script!("complete.js"),
    script!("dialog.js"),
    script!("earlier.js"),
    script!("editor.js"),
    script!("events.js"),
    script!("fleet.js"),
    script!("form.js"),
    script!("history.js"),
    script!("import.js"),
    script!("log.js"),
    script!("picture.js"),
    script!("review.js"),
    script!("session.js"),
    script!("sign_in.js"),
    script!("state.js"),
    script!("table.js"),
    script!("words.js"),
    ("/web/style.css", STYLE, include_str!("web/style.css")),
    ("/web/uplot.js", SCRIPT, include_str!("web/vendor/uplot.js")),
    (
        "/web/uplot.css",
        STYLE,
        include_str!("web/vendor/uplot.css"),
    ),
];

/// A script with the texts of the counters, and the events that are trouble.
static COUNTERS: LazyLock<String> = LazyLock::new(|| {
    let counters = json!({
        "rule": texts(RuleStats::COUNTERS),
        "input": texts(InputStats::COUNTERS),
        "line": texts(LineStats::COUNTERS),
        "merge": texts(MergeStats::COUNTERS),
        "output": texts(OutputStats::COUNTERS),
        "rtp": texts(RtpStats::COUNTERS),
        "ts": texts(TsStats::COUNTERS),
    });
    let troubles = json!(kind::troubles().collect::<Vec<_>>());
    format!("export const COUNTERS = {counters};\nexport const TROUBLE_EVENTS = {troubles};\n")
});

fn texts<T>(counters: &[Counter<T>]) -> Vec<Value> {
    let texts = counters.iter().filter_map(|counter| {
        Some(json!({ "at": counter.json, "unit": counter.unit(), "text": counter.text? }))
    });
    texts.collect()
}

/// The paths of the page's files.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.0).chain([COUNTERS_PATH])
}

/// Routes of the page.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let counters = get(|| async { reply(SCRIPT, &COUNTERS) });
    let mut router = Router::new().route(COUNTERS_PATH, counters);
    for (path, kind, content) in FILES {
        router = router.route(path, get(move || async move { reply(kind, content) }));
    }
    router
}

fn reply(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_are_served() {
        let (_, _, page) = FILES[0];
        let texts = page.split('"');
        let named: Vec<&str> = texts.filter(|text| text.starts_with('/')).collect();
        assert!(named.len() >= 4, "{named:?}");
        for name in named {
            assert!(FILES.iter().any(|file| file.0 == name), "{name}");
        }
        // It shows whichever kind the daemon sends: a list of its own would omit some.
        for kind in kind::troubles() {
            let names = |file: &&(&str, &str, &str)| file.2.contains(&format!("\"{kind}\""));
            assert_eq!(FILES.iter().find(names).map(|file| file.0), None, "{kind}");
        }
        let own = FILES.iter().filter(|file| !file.0.contains("uplot"));
        let mut lines = 0;
        for (name, kind, content) in own {
            assert!(!content.contains("https://"), "{name}");
            lines += if *kind == SCRIPT {
                content.lines().count()
            } else {
                0
            };
        }
        assert!(lines < 2500, "more takes a library: {lines}");
    }
}
