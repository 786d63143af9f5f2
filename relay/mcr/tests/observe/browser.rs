//! Headless Chromium, driven over WebDriver (<https://www.w3.org/TR/webdriver2/>) inside a namespace.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::namespace::Namespace;
use lab::process::Process;
use lab::wait;
use serde_json::{Value, json};

const ADDRESS: &str = "127.0.0.1:9515";

/// axe-core 4.14.1 from npm, under the MPL-2.0: for tests only, not distributed.
const AXE: &str = include_str!("../vendor/axe.min.js");

/// A browser with one page. Dropping it ends it.
pub(crate) struct Browser {
    namespace: Namespace,
    session: String,
    _profile: tempfile::TempDir,
    _driver: Process,
}

impl Browser {
    pub(crate) fn start(namespace: &Namespace) -> Self {
        let mut command = namespace.command("chromedriver");
        command.args(["--port=9515", "--silent"]);
        let driver = Process::start(command).unwrap();
        let profile = tempfile::tempdir().unwrap();
        let data = format!("--user-data-dir={}", profile.path().display());
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1200,900",
            &data,
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "acceptInsecureCerts": true,
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": flags},
        }}});
        let mut browser = Self {
            namespace: namespace.clone(),
            session: String::new(),
            _profile: profile,
            _driver: driver,
        };
        wait::until("chromedriver answers", || {
            browser.ask("GET", "/status", &Value::Null).is_ok()
        })
        .unwrap();
        let made = browser.ask("POST", "/session", &capabilities).unwrap();
        browser.session = made["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    pub(crate) fn open(&self, address: &str) {
        self.command("POST", "url", &json!({"url": address}));
    }

    /// Opens a further tab and switches to it; returns its handle.
    pub(crate) fn tab(&self) -> String {
        let made = self.command("POST", "window/new", &json!({"type": "tab"}));
        let handle = made["handle"].as_str().unwrap().to_owned();
        self.turn_to(&handle);
        handle
    }

    /// Switches to another tab.
    pub(crate) fn turn_to(&self, handle: &str) {
        self.command("POST", "window", &json!({"handle": handle}));
    }

    /// Evaluates a function body in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command(
            "POST",
            "execute/sync",
            &json!({"script": script, "args": []}),
        )
    }

    /// Types keys, one after the other; `\u{e004}` is the tabulator, as WebDriver numbers them.
    pub(crate) fn keys(&self, text: &str) {
        let typed = text.chars().flat_map(|key| {
            let key = key.to_string();
            ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key}))
        });
        let strokes: Vec<Value> = typed.collect();
        self.act(&json!({"type": "key", "id": "keyboard", "actions": strokes}));
    }

    /// Types a key while another is held.
    pub(crate) fn chord(&self, held: char, key: char) {
        let of = |kind: &str, key: char| json!({"type": kind, "value": key.to_string()});
        let strokes = [
            of("keyDown", held),
            of("keyDown", key),
            of("keyUp", key),
            of("keyUp", held),
        ];
        self.act(&json!({"type": "key", "id": "keyboard", "actions": strokes}));
    }

    /// Clicks on the element that `find` names `one`, wherever the page has moved it meanwhile.
    pub(crate) fn click(&self, find: &str) {
        let find = format!(
            "{find} one?.addEventListener('click', () => {{ window.hit = true; }}, {{ once: true, capture: true }}); \
             one?.scrollIntoView({{ block: 'center', behavior: 'instant' }}); return one"
        );
        self.run("window.hit = false");
        wait::until("the mouse hits", || {
            // A busy page handles the click late, and the element may have disappeared by then.
            let is_hit = || self.run("return window.hit") == true;
            if is_hit() {
                return true;
            }
            let one = self.run(&find);
            if one.is_null() {
                return is_hit();
            }
            let actions = json!([
                {"type": "pointerMove", "x": 0, "y": 0, "origin": one},
                {"type": "pointerDown", "button": 0},
                {"type": "pointerUp", "button": 0},
            ]);
            let body = json!({"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]});
            let path = format!("/session/{}/actions", self.session);
            self.ask("POST", &path, &body).is_ok() && is_hit()
        })
        .unwrap();
    }

    fn act(&self, source: &Value) {
        self.command("POST", "actions", &json!({"actions": [source]}));
    }

    /// Makes the page believe that its user prefers a colour scheme.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let command =
            json!({"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}});
        self.command("POST", "goog/cdp/execute", &command);
    }

    /// Resizes the page.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics});
        self.command("POST", "goog/cdp/execute", &command);
    }

    /// Sets the directory of downloads.
    pub(crate) fn download_to(&self, directory: &Path) {
        let params = json!({"behavior": "allow", "downloadPath": directory});
        let command = json!({"cmd": "Browser.setDownloadBehavior", "params": params});
        self.command("POST", "goog/cdp/execute", &command);
    }

    /// Chooses a file for the field that the expression `find` yields.
    pub(crate) fn attach(&self, find: &str, file: &Path) {
        let element = self.run(&format!("return {find}"));
        let reference = element.as_object().unwrap().values().next().unwrap();
        let field = reference.as_str().unwrap();
        self.command(
            "POST",
            &format!("element/{field}/value"),
            &json!({"text": file}),
        );
    }

    /// The serious and critical violations that axe finds in what `of` selects, in the page's current state.
    pub(crate) fn axe(&self, of: &str) -> Vec<String> {
        if self.run("return window.axe === undefined") == true {
            self.run(AXE);
        }
        self.run(&format!(
            "window.looked = null; axe.run('{of}', {{ resultTypes: ['violations'] }}).then(({{ violations, passes }}) => {{ \
             window.looked = [passes.length, violations \
               .filter(({{ impact }}) => ['serious', 'critical'].includes(impact)) \
               .flatMap(({{ id, nodes }}) => nodes.map(({{ html, failureSummary }}) => \
                 `${{id}}: ${{html.slice(0, 200)}}: ${{failureSummary}}`))]; }})"
        ));
        let result = || self.run("return window.looked");
        wait::until("axe has looked", || !result().is_null()).unwrap();
        let (passed, violations): (usize, Vec<String>) = serde_json::from_value(result()).unwrap();
        assert!(passed > 10, "axe saw nothing that is right: {passed}");
        violations
    }

    /// The nodes of the page's accessibility tree, which screen readers get.
    pub(crate) fn accessibility_tree(&self) -> Vec<Value> {
        let command = json!({"cmd": "Accessibility.getFullAXTree", "params": {}});
        let tree = self.command("POST", "goog/cdp/execute", &command);
        tree["nodes"].as_array().cloned().unwrap_or_default()
    }

    /// A screenshot of the visible part of the page, a PNG in base64.
    pub(crate) fn picture(&self) -> String {
        let picture = self.command("GET", "screenshot", &Value::Null);
        picture.as_str().unwrap().to_owned()
    }

    /// The warnings and errors that the page wrote to the console since the last call.
    pub(crate) fn complaints(&self) -> Vec<Value> {
        let log = self.command("POST", "se/log", &json!({"type": "browser"}));
        let lines = log.as_array().cloned().unwrap_or_default();
        let serious = |line: &Value| line["level"] == "SEVERE" || line["level"] == "WARNING";
        lines.into_iter().filter(serious).collect()
    }

    fn command(&self, method: &str, what: &str, body: &Value) -> Value {
        let path = format!("/session/{}/{what}", self.session);
        self.ask(method, &path, body).unwrap()
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        self.namespace.run(|| {
            let mut stream = TcpStream::connect(ADDRESS)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            let body = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )?;
            // chromedriver keeps the connection open despite the header.
            let mut reply = BufReader::new(stream);
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                anyhow::ensure!(reply.read_line(&mut head)? > 0, "no answer");
                let line = head[start..].to_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse()?;
                }
            }
            let mut body = vec![0; length];
            reply.read_exact(&mut body)?;
            let reply: Value = serde_json::from_slice(&body).context("not JSON")?;
            anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "{path}: {reply}");
            Ok(reply["value"].clone())
        })
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let path = format!("/session/{}", self.session);
        let _ = self.ask("DELETE", &path, &Value::Null);
    }
}
