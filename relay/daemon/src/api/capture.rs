//! Captures for clients that may operate: a child process captures, and its output is passed on. At most
//! two at once, each of a minute and 64 MiB; a capture ends when its client disconnects.

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

use super::api_error::{ApiError, Code, Reply};
use super::body::{Name, Parameters};
use super::connections::{Connection, Held};
use super::document::Routes;
use super::service::Service;
use crate::capture::{BYTES_MAX, CaptureCommand, Lending};

/// The most captures at once.
static SLOTS: Semaphore = Semaphore::const_new(2);
const SECONDS_MAX: f64 = 60.0;
/// How long a process may take to start, and to end once its time is over.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the capture that are passed on at once, and the most bytes of standard error.
const PIECE: usize = 64 << 10;
const STDERR_MAX: u64 = 8 << 10;

/// The routes that capture.
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
) -> Reply<Response> {
    service.rule(&name)?;
    let option = |option: &str, value: Option<u64>| {
        value.map(|value| OsString::from(format!("--{option}={value}")))
    };
    let mut arguments = vec![duration(query.seconds)?];
    arguments.extend(option("count", query.count));
    arguments.extend(option("snaplen", query.snaplen.map(u64::from)));
    arguments.extend(option("output", query.output.map(|output| output as u64)));
    arguments.extend(["--".into(), name.clone().into()]);
    arguments.extend((!query.filter.is_empty()).then(|| query.filter.into()));
    let mut capture = Capture::begin(&service, "tap", arguments).await?;
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
) -> Reply<Response> {
    let mut arguments = vec!["--json".into(), duration(query.seconds)?];
    let option_each = |list: &str, option: &str| -> Vec<OsString> {
        let parts = list.split(',').filter(|part| !part.is_empty());
        parts.map(|part| format!("{option}{part}").into()).collect()
    };
    arguments.extend(option_each(&query.join, "--join="));
    arguments.push("--".into());
    arguments.extend(option_each(&query.interfaces, ""));
    let capture = Capture::begin(&service, "discover", arguments).await?;
    Ok(capture.answer("application/json", &connection))
}

fn duration(seconds: f64) -> Reply<OsString> {
    let message = format!("seconds={seconds}: more than 0, and {SECONDS_MAX} at most");
    if seconds > 0.0 && seconds <= SECONDS_MAX {
        Ok(format!("--duration={seconds}").into())
    } else {
        Err(ApiError::new(Code::Usage, message))
    }
}

/// A capturing process, which is killed on drop.
struct Capture {
    child: Child,
    stdout: ChildStdout,
    /// Its messages, without its name.
    messages: JoinHandle<String>,
    lending: Option<Lending>,
    /// It ends when this rule is removed.
    rule: Option<String>,
    view: watch::Receiver<Arc<View>>,
    deadline: Instant,
    remaining: u64,
    _slot: SemaphorePermit<'static>,
}

impl Capture {
    /// Starts a process; errors are reported before anything is captured.
    async fn begin(service: &Service, what: &str, arguments: Vec<OsString>) -> Reply<Self> {
        let unavailable = |why: &dyn std::fmt::Display| ApiError::new(Code::Unavailable, why);
        let slot = SLOTS
            .try_acquire()
            .map_err(|_| unavailable(&"two captures go on already; wait until one has ended"))?;
        let CaptureCommand { program, socket } = &service.capture;
        let program = program
            .as_ref()
            .ok_or_else(|| unavailable(&"this daemon starts no captures"))?;
        let cannot = |error: io::Error| unavailable(&format!("cannot capture: {error}"));
        let (lending, lender, ready) = Lending::start().map_err(cannot)?;
        let mut command = Command::new(program);
        command.arg("--socket").arg(socket).args([what, "--lent"]);
        // The daemon's environment is not meant for it.
        command.args(arguments).env_clear().kill_on_drop(true);
        command.stdin(Stdio::from(lender));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        // This closes the child's end of the lending socket here, so that its death is noticed.
        drop(command);
        let mut child = spawned.map_err(cannot)?;
        let (stdout, stderr) = child
            .stdout
            .take()
            .zip(child.stderr.take())
            .ok_or_else(|| cannot(ErrorKind::BrokenPipe.into()))?;
        let mut capture = Self {
            child,
            stdout,
            messages: tokio::spawn(read_messages(stderr, format!("mcr {what}: "))),
            lending: Some(lending),
            rule: None,
            view: service.view.clone(),
            deadline: Instant::now() + Duration::from_secs_f64(SECONDS_MAX) + PATIENCE,
            // It ends by itself with a complete file before this limit.
            remaining: BYTES_MAX + (1 << 20),
            _slot: slot,
        };
        match timeout(PATIENCE, ready).await {
            Ok(Ok(())) => Ok(capture),
            Ok(Err(_)) => Err(capture
                .outcome()
                .await
                .unwrap_or_else(|messages| unavailable(&messages))),
            Err(_) => Err(unavailable(&"the capture did not begin in time")),
        }
    }

    /// The outcome, once it writes no more: `Err` with its messages if it succeeded, else why it failed.
    async fn outcome(&mut self) -> Result<ApiError, String> {
        let status = timeout(PATIENCE, self.child.wait()).await;
        let mut messages = (&mut self.messages).await.unwrap_or_default();
        let code = match status
            .ok()
            .and_then(Result::ok)
            .and_then(|status| status.code())
        {
            Some(0) => return Err(messages),
            Some(2) => Code::Usage,
            _ => Code::Unavailable,
        };
        if messages.is_empty() {
            "the process that captures has died".clone_into(&mut messages);
        }
        Ok(ApiError::new(code, messages))
    }

    fn answer(self, kind: &'static str, connection: &Connection) -> Response {
        let frames = stream::unfold((Some(self), connection.hold()), next);
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::TRAILER, OUTCOME_HEADER),
        ];
        (headers, Body::new(StreamBody::new(frames))).into_response()
    }

    /// Reads the next part of its output; empty at its end.
    async fn read(&mut self) -> io::Result<Bytes> {
        let mut piece = vec![0; PIECE];
        let length = loop {
            let view = async {
                match self.view.changed().await {
                    Ok(()) => self.view.borrow_and_update().clone(),
                    // The daemon stops, and this with it.
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
        self.remaining = self
            .remaining
            .checked_sub(length as u64)
            .ok_or(ErrorKind::FileTooLarge)?;
        piece.truncate(length);
        Ok(piece.into())
    }

    /// The outcome as a trailer.
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
        let json = serde_json::to_vec(&outcome).unwrap_or_default();
        let name = HeaderName::from_static(OUTCOME_HEADER);
        HeaderValue::from_bytes(&json)
            .map(|value| (name, value))
            .into_iter()
            .collect()
    }
}

type StreamState = (Option<Capture>, Held);

async fn next((capture, held): StreamState) -> Option<(io::Result<Frame<Bytes>>, StreamState)> {
    let mut capture = capture?;
    Some(match capture.read().await {
        Ok(piece) if piece.is_empty() => {
            (Ok(Frame::trailers(capture.trailers().await)), (None, held))
        }
        Ok(piece) => (Ok(Frame::data(piece)), (Some(capture), held)),
        Err(error) => (Err(error), (None, held)),
    })
}

/// Reads the first messages of a process, without its name on each line.
async fn read_messages(stream: impl AsyncRead + Unpin, name: String) -> String {
    let mut bytes = Vec::new();
    let mut stream = stream.take(STDERR_MAX);
    let _ = stream.read_to_end(&mut bytes).await;
    // The process must not block because nobody reads the rest.
    let _ = copy(&mut stream.into_inner(), &mut sink()).await;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text
        .lines()
        .map(|line| line.strip_prefix(&name).unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}
