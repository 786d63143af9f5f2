use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use api::client::{Client, Error};
use api::query::{RulesQuery, StatsQuery};
use api::reply::Part;
use observe::events::Events;
use observe::stats::{Identity, Sampler};
use observe::view::View;
use rules::document::RuleDocument;
use rules::ruleset::{Policy, RuleSet};
use tokio::sync::{mpsc, watch};

use super::super::api_error::{ApiError, Code};
use super::super::body::BODY_MAX;
use super::super::host_name;
use super::*;
use crate::author::Author;
use crate::dataplane_thread::{DataplaneThread, without_paths};
use crate::supervisor::command::{Command, Order};

struct Served {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

/// Serves on a new socket, with a supervisor that refuses every change.
fn serve() -> Served {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mcr.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (service, mut commands) = service();
    tokio::spawn(serve_control(listener, service));
    tokio::spawn(async move {
        while let Some(Command { reply, .. }) = commands.recv().await {
            drop(reply.send(Err(ApiError::new(Code::Invalid, "no"))));
        }
    });
    Served {
        _directory: directory,
        path,
    }
}

/// A service with one rule.
fn service() -> (Arc<Service>, mpsc::Receiver<Command>) {
    let (commands, incoming) = mpsc::channel(16);
    let (dataplane, support, features) = DataplaneThread::start(without_paths())
        .unwrap()
        .finish()
        .unwrap();
    let rule = RuleDocument {
        name: "cam1".to_owned(),
        inputs: vec!["239.1.1.1%eth0:5001".to_owned()],
        outputs: vec!["239.10.1.1%eth1:6001".into()],
        ..RuleDocument::default()
    };
    let view = View {
        generation: 1,
        rules: Arc::new(RuleSet::from_documents(&[rule], Policy::default()).unwrap()),
        ..View::default()
    };
    let service = Service {
        identity: Identity {
            instance: "test".to_owned(),
            host: String::new(),
            started: Instant::now(),
            config: "/etc/mcr/mcr.toml".into(),
            fleet: None,
        },
        commands,
        dataplane,
        view: watch::channel(Arc::new(view)).1,
        support,
        features,
        events: Events::default(),
        sampler: Sampler::default(),
        listeners: igmp::listeners::Listeners::default(),
        fleet: None,
        generations: Default::default(),
        changes: Err("".into()),
        acknowledged: Default::default(),
        log: None,
        capture: Default::default(),
        unsaved: Arc::default(),
        responses: Arc::default(),
        is_apart: false,
        remote: Arc::default(),
        notified: Arc::default(),
    };
    (Arc::new(service), incoming)
}

/// Sends bytes as they are and reads until the daemon closes.
async fn raw(path: PathBuf, request: Vec<u8>) -> String {
    let exchange = move || {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(&request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

fn request(head: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[tokio::test]
async fn answers_the_client() {
    let served = serve();
    let client = Client::new(&served.path);
    assert_eq!(client.stats().await.unwrap().instance, "test");
    assert_eq!(client.rule("cam1").await.unwrap().name, "cam1");
    let history = client.history(&["cam1"], 60).await.unwrap();
    assert_eq!((history.step_seconds, history.rules.len()), (10, 1));
    assert_eq!(history.rules[0].name, "cam1");
    assert!(client.history(&[], 3600).await.unwrap().rules.is_empty());
    let Err(Error::Refused(reply)) = client.rule("cam2").await else {
        panic!("there is no such rule");
    };
    assert_eq!(reply.code, "not_found");
    assert_eq!(reply.message, "no rule \"cam2\" (have: cam1)");
}

#[tokio::test]
async fn a_reply_about_a_part_says_which_it_is() {
    let served = serve();
    let client = Client::new(&served.path);
    assert_eq!(client.stats().await.unwrap().selection, None);
    let stats = client.selected_stats(&StatsQuery::default()).await.unwrap();
    let selection = stats.selection.unwrap();
    assert_eq!((selection.part.offset, selection.states["up"]), (0, 0));
    let whole = client.rules().await.unwrap();
    let query = RulesQuery {
        limit: Some(9),
        ..RulesQuery::default()
    };
    let rules = client.selected_rules(&query).await.unwrap();
    assert_eq!((rules.rules, rules.settings), (whole.rules, None));
    let beyond = RulesQuery { offset: 7, ..query };
    let rules = client.selected_rules(&beyond).await.unwrap();
    let part = Part {
        offset: 1,
        count: 0,
        matching: 1,
        total: 1,
    };
    assert_eq!((rules.rules.len(), rules.selection), (0, Some(part)));
}

#[tokio::test]
async fn refusals_have_a_code_and_a_message() {
    let served = serve();
    for (request, status, code) in [
        (request("GET /nothing", ""), "404", "not_found"),
        (request("PATCH /v1/rules", ""), "405", "usage"),
        (request("GET /v1/rules/%ff", ""), "400", "bad_request"),
        (request("GET /v1/rules/%ff/flows", ""), "400", "bad_request"),
        (
            request("DELETE /v1/rules/a%c3%28", ""),
            "400",
            "bad_request",
        ),
        (request("POST /v1/rules", "{"), "400", "usage"),
        (request("POST /v1/rules", "{\"ruels\":[]}"), "400", "usage"),
        (
            request("POST /v1/rules", "{\"rules\":[]}"),
            "422",
            "invalid",
        ),
        (
            request("GET /v1/history?rules=cam1,cam2", ""),
            "404",
            "not_found",
        ),
        (request("GET /v1/history?seconds=3601", ""), "400", "usage"),
        (request("GET /v1/history?second=1", ""), "400", "usage"),
        (
            request(
                &format!("GET /v1/history?rules={}", "cam1,".repeat(101)),
                "",
            ),
            "400",
            "usage",
        ),
        (request("GET /v1/stats?limits=1", ""), "400", "usage"),
        (request("GET /v1/stats?limit=-1", ""), "400", "usage"),
        (request("GET /v1/stats?offset=x", ""), "400", "usage"),
        (request("GET /v1/stats?offset=131073", ""), "400", "usage"),
        (request("GET /v1/stats?state=well", ""), "400", "usage"),
        (request("GET /v1/stats?order=worst", ""), "400", "usage"),
        (request("GET /v1/stats?label=si%20te=y", ""), "400", "usage"),
        (
            request(&format!("GET /v1/stats?{}", "label=a&".repeat(17)), ""),
            "400",
            "usage",
        ),
        (
            request(&format!("GET /v1/stats?filter={}", "x".repeat(257)), ""),
            "400",
            "usage",
        ),
        (
            request(&format!("GET /v1/stats?rules={}", "cam1,".repeat(101)), ""),
            "400",
            "usage",
        ),
        (request("GET /v1/rules?filter=cam", ""), "400", "usage"),
        (request("GET /v1/rules?limit=1.5", ""), "400", "usage"),
        (
            request("PUT /v1/rules", "{\"rules\":[],\"selection\":{}}"),
            "400",
            "usage",
        ),
        (
            request("PUT /v1/rules?dry_run=maybe", "{\"rules\":[]}"),
            "400",
            "usage",
        ),
    ] {
        let text = String::from_utf8_lossy(&request).into_owned();
        let answer = raw(served.path.clone(), request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{text}: {answer}"
        );
        assert!(
            answer.contains(&format!("\"code\":\"{code}\"")),
            "{text}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_before_it_is_read() {
    let served = serve();
    let head = format!(
        "POST /v1/rules HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        BODY_MAX + 1
    );
    let answer = raw(served.path.clone(), head.into_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_silent_clients_keeps_nobody_out() {
    let served = serve();
    let mut crowd = Vec::new();
    for number in 0..CONNECTIONS_MAX + 100 {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        if number % 2 == 0 {
            // Some have begun a request and never end it; those already evicted cannot.
            let _ = stream.write_all(b"GET /v1/st");
        }
        crowd.push(stream);
    }
    let start = Instant::now();
    let stats = Client::new(&served.path).stats().await.unwrap();
    assert_eq!(stats.instance, "test");
    assert!(
        start.elapsed() < HEAD_TIMEOUT,
        "had to wait until the crowd went"
    );
}

#[tokio::test]
async fn a_change_that_is_not_answered_in_time_says_whether_it_may_have_been_made() {
    let (service, mut commands) = service();
    let order = || Order::Reload;
    let soon = || tokio::time::Instant::now() + Duration::from_millis(20);
    let refusal = service
        .change(order(), Author::default(), soon())
        .await
        .unwrap_err();
    assert_eq!(refusal.code, Code::Timeout);
    assert!(
        refusal.message.contains("nothing was changed"),
        "{refusal:?}"
    );
    let cancelled = commands.try_recv().unwrap();
    assert!(!cancelled.turn.begin(), "and nothing will be");

    let begin = async {
        let command = commands.recv().await.unwrap();
        assert!(command.turn.begin());
        command
    };
    let (_command, refusal) =
        tokio::join!(begin, service.change(order(), Author::default(), soon()));
    let refusal = refusal.unwrap_err();
    let expected = "the change may have been made: the generation of the rules was 1";
    assert!(refusal.message.contains(expected), "{refusal:?}");
}

#[tokio::test]
async fn every_route_and_reply_is_in_the_document() {
    let document = serde_json::to_value(routes::document()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/v1/status",
        "/v1/stats",
        "/v1/rules",
        "/v1/rules/{name}",
        "/v1/transaction",
        "/v1/export",
        "/v1/discover",
        "/v1/rules/{name}/tap",
        "/v1/interfaces",
        "/v1/events",
        "/v1/reload",
        "/metrics",
        "/healthz",
        "/readyz",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let description = response["description"].as_str().unwrap();
                assert!(
                    description.len() > 5,
                    "{method} {path} {status}: {description:?}"
                );
            }
        }
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for schema in [
        "Stats",
        "RuleList",
        "RuleDocument",
        "Transaction",
        "Change",
        "ErrorReply",
    ] {
        assert!(schemas.contains_key(schema), "{schema}");
    }
}

#[tokio::test]
async fn the_read_only_listener_changes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (service, mut commands) = service();
    let names = host_name::served(Some(&["x".to_owned()]));
    tokio::spawn(serve_read_only(listener, service, names));
    let exchange = move |request: Vec<u8>| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(&request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let exchange = |request| tokio::task::spawn_blocking(move || exchange(request));
    let answer = exchange(request("POST /v1/rules", "{\"rules\":[]}"))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(commands.try_recv().is_err());

    let rebound = "GET /v1/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    let answer = exchange(rebound.into()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
    assert!(answer.contains("\"code\":\"bad_request\""), "{answer}");
    let served = rebound.replace("evil.example", "127.0.0.1:9469");
    let answer = exchange(served.into()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn every_route_states_its_least_role() {
    let document = serde_json::to_value(routes::document()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let role = operation["x-mcr-role"].as_str();
            let roles = ["none", "view", "operate", "change"];
            assert!(
                role.is_some_and(|role| roles.contains(&role)),
                "{method} {path}: {role:?}"
            );
            // These routes have a body and change nothing.
            let questions = ["/v1/explain", "/v1/check", "/v1/import"];
            let captures = ["/v1/discover", "/v1/rules/{name}/tap"].contains(&path.as_str());
            let changes = captures || method != "get" && !questions.contains(&path.as_str());
            let is_least = matches!(role, Some("none" | "view"));
            assert!(
                !changes || !is_least,
                "{method} {path}: {role:?} changes something"
            );
            let needs = operation["security"].as_array().unwrap();
            assert_eq!(needs.is_empty(), role == Some("none"), "{method} {path}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(document["paths"][path]["get"]["x-mcr-role"], "none");
    }
}
