//! Captures for whoever may operate: a process of its own captures, and what it writes is passed on. Two
//! at once, each for a minute and 64 MiB at most; one ends with whoever asked for it.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::mem::take;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use api::client::OUTCOME_HEADER;
use api::query::{DiscoverQuery, TapQuery};
use api::reply::{Discovery, ErrorReply};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use observe::view::View;
use tokio::io::{AsyncRead, AsyncReadExt, copy, sink};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use utoipa_axum::routes;

use super::api_error::{Answer, ApiError, Code};
use super::body::{Name, Parameters};
use super::connections::{Connection, Held};
use super::document::Routes;
use super::service::Service;
use crate::capture::{BYTES_MAX, CaptureCommand, Lending};

/// How many capture at once.
static SLOTS: Semaphore = Semaphore::const_new(2);
const SECONDS_MAX: f64 = 60.0;
/// How long a process may take to begin, and to end once its time is over.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are passed on at once, and of what is said beside it.
const PIECE: usize = 64 << 10;
const SAID_MAX: u64 = 8 << 10;

/// What captures.
pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(tap)).routes(routes!(discover))
}

/// A rule's packets as they arrive and leave, as pcapng, at the places that it has at the beginning.
/// Behind the last of them the trailer `X-MCR-Outcome` says how it ended, to whom sends `TE: trailers`.
#[utoipa::path(get, path = "/v1/rules/{name}/tap", tag = "rules",
    params(("name" = String, Path, description = "Name of the rule"), TapQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-pcapng"),
        (status = 404, body = ErrorReply)))]
pub(super) async fn tap(
    State(service): State<Arc<Service>>,
    Extension(connection): Extension<Connection>,
    Name(name): Name,
    Parameters(query): Parameters<TapQuery>,
) -> Answer<Response> {
    service.rule(&name)?;
    let option = |option: &str, value: Option<u64>| {
        value.map(|value| OsString::from(format!("--{option}={value}")))
    };
    let mut words = vec![duration(query.seconds)?];
    words.extend(option("count", query.count));
    words.extend(option("snaplen", query.snaplen.map(u64::from)));
    words.extend(option("output", query.output.map(|output| output as u64)));
    words.extend(["--".into(), name.clone().into()]);
    words.extend((!query.filter.is_empty()).then(|| query.filter.into()));
    let mut capture = Capture::begin(&service, "tap", words).await?;
    capture.rule = Some(name);
    Ok(capture.answer("application/x-pcapng", &connection))
}

/// What multicast arrives on the host, also what nobody joined, as `mcr discover` tells it.
#[utoipa::path(get, path = "/v1/discover", tag = "daemon", params(DiscoverQuery),
    responses((status = 200, body = Discovery)))]
pub(super) async fn discover(
    State(service): State<Arc<Service>>,
    Extension(connection): Extension<Connection>,
    Parameters(query): Parameters<DiscoverQuery>,
) -> Answer<Response> {
    let mut words = vec!["--json".into(), duration(query.seconds)?];
    let listed = |list: &str, option: &str| -> Vec<OsString> {
        let parts = list.split(',').filter(|part| !part.is_empty());
        parts.map(|part| format!("{option}{part}").into()).collect()
    };
    words.extend(listed(&query.join, "--join="));
    words.push("--".into());
    words.extend(listed(&query.interfaces, ""));
    let capture = Capture::begin(&service, "discover", words).await?;
    Ok(capture.answer("application/json", &connection))
}

fn duration(seconds: f64) -> Answer<OsString> {
    let message = format!("seconds={seconds}: more than 0, and {SECONDS_MAX} at most");
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(format!("--duration={seconds}").into())
    } else {
        Err(ApiError::new(Code::Usage, message))
    }
}

/// A process that captures. It ends with this.
struct Capture {
    child: Child,
    stdout: ChildStdout,
    /// What it says of itself, without its name.
    said: JoinHandle<String>,
    lending: Option<Lending>,
    /// Without this rule it ends.
    rule: Option<String>,
    view: watch::Receiver<Arc<View>>,
    deadline: Instant,
    left: u64,
    _slot: SemaphorePermit<'static>,
}

impl Capture {
    /// Has a process begin; what is wrong is known before anything is captured.
    async fn begin(service: &Service, what: &str, words: Vec<OsString>) -> Answer<Self> {
        let unavailable = |why: &dyn std::fmt::Display| ApiError::new(Code::Unavailable, why);
        let slot = SLOTS.try_acquire();
        let slot =
            slot.map_err(|_| unavailable(&"two captures go on already; wait until one has ended"))?;
        let CaptureCommand { program, socket } = &service.capture;
        let program = program.as_ref();
        let program = program.ok_or_else(|| unavailable(&"this daemon starts no captures"))?;
        let cannot = |error: io::Error| unavailable(&format!("cannot capture: {error}"));
        let (lending, lender, ready) = Lending::start().map_err(cannot)?;
        let mut command = Command::new(program);
        command.arg("--socket").arg(socket).args([what, "--lent"]);
        // What the daemon's environment says is not meant for it.
        command.args(words).env_clear().kill_on_drop(true);
        command.stdin(Stdio::from(lender));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        // With it goes the process's end of what it is lent by: its death is seen here.
        drop(command);
        let mut child = spawned.map_err(cannot)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = stdout
            .zip(stderr)
            .ok_or_else(|| cannot(ErrorKind::BrokenPipe.into()))?;
        let mut capture = Self {
            child,
            stdout,
            said: tokio::spawn(read_said(stderr, format!("mcr {what}: "))),
            lending: Some(lending),
            rule: None,
            view: service.view.clone(),
            deadline: Instant::now() + Duration::from_secs_f64(SECONDS_MAX) + PATIENCE,
            // It ends by itself, with a whole file, before this is at an end.
            left: BYTES_MAX + (1 << 20),
            _slot: slot,
        };
        match timeout(PATIENCE, ready).await {
            Ok(Ok(())) => Ok(capture),
            Ok(Err(_)) => Err(capture
                .outcome()
                .await
                .unwrap_or_else(|said| unavailable(&said))),
            Err(_) => Err(unavailable(&"the capture did not begin in time")),
        }
    }

    /// How it ended, once it writes no more: what it says where all is well, or else why it is not.
    async fn outcome(&mut self) -> Result<ApiError, String> {
        let status = timeout(PATIENCE, self.child.wait()).await;
        let mut said = (&mut self.said).await.unwrap_or_default();
        let code = match status
            .ok()
            .and_then(Result::ok)
            .and_then(|status| status.code())
        {
            Some(0) => return Err(said),
            Some(2) => Code::Usage,
            _ => Code::Unavailable,
        };
        if said.is_empty() {
            "the process that captures has died".clone_into(&mut said);
        }
        Ok(ApiError::new(code, said))
    }

    fn answer(self, kind: &'static str, connection: &Connection) -> Response {
        let frames = stream::unfold((Some(self), connection.hold()), next);
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::TRAILER, OUTCOME_HEADER),
        ];
        (headers, Body::new(StreamBody::new(frames))).into_response()
    }

    /// Reads what it writes; nothing at its end.
    async fn read(&mut self) -> io::Result<Bytes> {
        let mut piece = vec![0; PIECE];
        let length = loop {
            let view = async {
                match self.view.changed().await {
                    Ok(()) => self.view.borrow_and_update().clone(),
                    // The daemon ends, and this with it.
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                read = timeout_at(self.deadline, self.stdout.read(&mut piece)) => break read??,
                view = view => {
                    let goes_on = |rule: &String| view.rules.get(rule).is_some();
                    if !self.rule.as_ref().is_none_or(goes_on) {
                        self.lending = None;
                    }
                }
            }
        };
        self.left = self
            .left
            .checked_sub(length as u64)
            .ok_or(ErrorKind::FileTooLarge)?;
        piece.truncate(length);
        Ok(piece.into())
    }

    /// How it ended, as a trailer.
    async fn trailers(mut self) -> HeaderMap {
        let was_removed = self.lending.is_none();
        let outcome = match (self.outcome().await, take(&mut self.rule)) {
            (Err(message), Some(rule)) if was_removed => {
                let why = format!("{message}\nrule {rule:?} was removed; the capture ends");
                ApiError::new(Code::NotFound, why.trim_start()).into_reply()
            }
            (Err(message), _) => ErrorReply {
                code: String::new(),
                message,
            },
            (Ok(refusal), _) => refusal.into_reply(),
        };
        let outcome = serde_json::to_vec(&outcome).unwrap_or_default();
        let outcome = HeaderValue::from_bytes(&outcome).ok();
        let name = HeaderName::from_static(OUTCOME_HEADER);
        outcome.map(|outcome| (name, outcome)).into_iter().collect()
    }
}

type Going = (Option<Capture>, Held);

async fn next((capture, held): Going) -> Option<(io::Result<Frame<Bytes>>, Going)> {
    let mut capture = capture?;
    Some(match capture.read().await {
        Ok(piece) if piece.is_empty() => {
            (Ok(Frame::trailers(capture.trailers().await)), (None, held))
        }
        Ok(piece) => (Ok(Frame::data(piece)), (Some(capture), held)),
        Err(error) => (Err(error), (None, held)),
    })
}

/// Reads what a process says, of which the beginning is enough, without its name on each line.
async fn read_said(stream: impl AsyncRead + Unpin, name: String) -> String {
    let mut said = Vec::new();
    let mut stream = stream.take(SAID_MAX);
    let _ = stream.read_to_end(&mut said).await;
    // It must not wait for somebody to read the rest.
    let _ = copy(&mut stream.into_inner(), &mut sink()).await;
    let said = String::from_utf8_lossy(&said);
    let lines = said
        .lines()
        .map(|line| line.strip_prefix(&name).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
