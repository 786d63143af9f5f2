//! The web page: files embedded in the binary, which ask only this daemon. It reads `/v1/stats` and
//! `/v1/events`, as every other client does, so its numbers are those of `mcr stats`; their words come
//! from where they are declared. It changes what its reader may who is signed in, by the same API.

use std::sync::LazyLock;

use api::counter::Counter;
use api::reply::{InputStats, LineStats, MergeStats, OutputStats, RtpStats, RuleStats, TsStats};
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use observe::events::kind;
use serde_json::{Value, json};

/// The page may load from here and nowhere else; uPlot sets styles on its elements.
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

/// Where the page finds what texts say, and which events are trouble.
static COUNTERS: LazyLock<String> = LazyLock::new(|| {
    let counters = json!({
        "rule": said(RuleStats::COUNTERS),
        "input": said(InputStats::COUNTERS),
        "line": said(LineStats::COUNTERS),
        "merge": said(MergeStats::COUNTERS),
        "output": said(OutputStats::COUNTERS),
        "rtp": said(RtpStats::COUNTERS),
        "ts": said(TsStats::COUNTERS),
    });
    let troubles: Vec<&str> = kind::troubles().collect();
    let troubles = json!(troubles);
    format!("export const COUNTERS = {counters};\nexport const TROUBLE_EVENTS = {troubles};\n")
});

fn said<T>(counters: &[Counter<T>]) -> Vec<Value> {
    let said = counters.iter().filter_map(|counter| {
        Some(json!({ "at": counter.json, "unit": counter.unit(), "text": counter.text? }))
    });
    said.collect()
}

/// Where the page's files are.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.0).chain([COUNTERS_PATH])
}

/// Routes of the page.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let counters = get(|| async { reply(SCRIPT, &COUNTERS) });
    let counters = Router::new().route(COUNTERS_PATH, counters);
    FILES.iter().fold(counters, |router, file| {
        router.route(file.0, get(move || async move { reply(file.1, file.2) }))
    })
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
        let named = page.split('"').filter(|text| text.starts_with('/'));
        let named: Vec<&str> = named.collect();
        assert!(named.len() >= 4, "{named:?}");
        for name in named {
            assert!(FILES.iter().any(|file| file.0 == name), "{name}");
        }
        // It shows whichever kind the daemon tells: a list of its own would leave some out.
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
