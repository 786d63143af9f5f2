use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use api::client::{Client, Error};
use api::reply::{Change, Stats};
use api::request::RuleList;
use model::document::RuleDocument;
use tokio::sync::mpsc;

use super::super::body::BODY_MAX;
use super::*;
use crate::api::question::{Code, Question, Refusal};
use crate::events::Board;

struct Served {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

/// Serves on a socket of its own, with a supervisor that knows one rule and refuses every change.
fn serve() -> Served {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mcr.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (questions, mut asked) = mpsc::channel(16);
    tokio::spawn(serve_control(
        listener,
        Supervisor::new(questions, Board::new()),
    ));
    tokio::spawn(async move {
        while let Some(question) = asked.recv().await {
            answer(question);
        }
    });
    Served {
        _directory: directory,
        path,
    }
}

fn answer(question: Question) {
    let refusal = || Refusal::new(Code::Invalid, "no");
    match question {
        Question::Stats(reply) => drop(reply.send(Ok(Stats {
            instance: "test".to_owned(),
            version: "0".to_owned(),
            uptime_seconds: 1.0,
            rules: Vec::new(),
            workers: Vec::new(),
        }))),
        Question::Rules(reply) => drop(reply.send(Ok(RuleList {
            generation: Some(1),
            rules: vec![RuleDocument {
                name: "cam1".to_owned(),
                ..RuleDocument::default()
            }],
            settings: None,
        }))),
        Question::Change(_, reply) | Question::Replace { reply, .. } | Question::Reload(reply) => {
            drop(reply.send(Err::<Change, _>(refusal())));
        }
        Question::Log(_, reply) => drop(reply.send(Err(refusal()))),
        Question::Status(reply) => drop(reply.send(Err(refusal()))),
        Question::Scrape(reply) => drop(reply.send(Err(refusal()))),
        Question::Flows(_, reply) => drop(reply.send(Ok(Vec::new()))),
        Question::Interfaces(reply) => drop(reply.send(Ok(Vec::new()))),
        Question::Export(reply) => drop(reply.send(Ok("version = 1\n".to_owned()))),
    }
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
    let Err(Error::Refused(reply)) = client.rule("cam2").await else {
        panic!("there is no such rule");
    };
    assert_eq!(reply.code, "not_found");
    assert_eq!(reply.message, "no rule cam2 (have: cam1)");
}

#[tokio::test]
async fn refusals_have_a_code_and_a_message() {
    let served = serve();
    for (request, status, code) in [
        (request("GET /nothing", ""), "404", "not_found"),
        (request("PATCH /v1/rules", ""), "405", "usage"),
        (request("POST /v1/rules", "{"), "400", "usage"),
        (request("POST /v1/rules", "{\"ruels\":[]}"), "400", "usage"),
        (
            request("POST /v1/rules", "{\"rules\":[]}"),
            "422",
            "invalid",
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
        start.elapsed() < HEAD_PATIENCE,
        "had to wait until the crowd went"
    );
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
        "/v1/interfaces",
        "/v1/events",
        "/v1/reload",
        "/metrics",
        "/healthz",
        "/readyz",
    ] {
        assert!(paths.contains_key(path), "{path}");
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
    let (questions, mut asked) = mpsc::channel(16);
    tokio::spawn(serve_read_only(
        listener,
        Supervisor::new(questions, Board::new()),
    ));
    let exchange = move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream
            .write_all(&request("POST /v1/rules", "{\"rules\":[]}"))
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = tokio::task::spawn_blocking(exchange).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(asked.try_recv().is_err());
}
