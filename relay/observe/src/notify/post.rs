//! Posts bodies: by http, or by https with the host's trust store or a CA of the operator's, with headers
//! that authenticate this relay. Files are read each time; redirects are not followed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{self, HeaderMap};
use axum::http::{HeaderName, HeaderValue, Request, StatusCode};
use config::{NotifyFormat, NotifyTarget};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// How long the receiver may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of a file with headers or a secret that are read.
const FILE_MAX: u64 = 64 << 10;
/// The path at which an Alertmanager takes alerts.
const ALERTS: &str = "/api/v2/alerts";
/// Headers that a file may not set.
const OWN: [HeaderName; 6] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    HeaderName::from_static("x-mcr-signature"),
    HeaderName::from_static("x-mcr-time"),
];

/// Why a body was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    /// A retry would be refused, too.
    #[error("{0}")]
    Refused(String),
    /// A retry may succeed.
    #[error("{0}")]
    Failed(String),
}

/// Where bodies are posted.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) target: NotifyTarget,
    /// The host's trust store: a long list, cached until a failure.
    native: Mutex<Option<Arc<ClientConfig>>>,
}

impl Destination {
    pub(super) fn new(target: NotifyTarget) -> Self {
        Self {
            target,
            native: Mutex::default(),
        }
    }

    /// Reads the target's files as a post would; returns what is wrong with them.
    pub(super) async fn trouble_of_files(&self) -> Option<String> {
        let target = self.target.clone();
        let tried = spawn_blocking(move || try_files(&target)).await;
        tried.map_err(|error| error.to_string()).flatten().err()
    }

    /// Posts a body.
    pub(super) async fn post(&self, body: Bytes) -> Result<(), PostError> {
        let exchanged = timeout(PATIENCE, self.exchange(body)).await;
        let status = exchanged.unwrap_or_else(|_| {
            let seconds = PATIENCE.as_secs();
            Err(format!("no answer within {seconds} s"))
        });
        match status {
            Ok(status) if status.is_success() => Ok(()),
            // The answer would be the same the next time.
            Ok(status) if status.is_redirection() => Err(PostError::Refused(format!(
                "it answers {status}, and where that leads is not followed: give the url that it leads to"
            ))),
            Ok(status) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                Err(PostError::Refused(format!("it answers {status}")))
            }
            Ok(status) => Err(PostError::Failed(format!("it answers {status}"))),
            Err(why) => {
                *self.native.lock() = None;
                Err(PostError::Failed(why))
            }
        }
    }

    async fn exchange(&self, body: Bytes) -> Result<StatusCode, String> {
        let url = &self.target.url;
        let (content_type, path) = match self.target.format {
            Some(NotifyFormat::Cloudevents) => ("application/cloudevents+json", url.path.clone()),
            Some(NotifyFormat::Alertmanager) if !url.path.ends_with(ALERTS) => {
                let below = url.path.trim_end_matches('/');
                ("application/json", format!("{below}{ALERTS}"))
            }
            _ => ("application/json", url.path.clone()),
        };
        let (target, signed) = (self.target.clone(), body.clone());
        let reading = spawn_blocking(move || headers(&target, &signed)).await;
        let mut headers = reading.map_err(|error| error.to_string())??;
        let host = url.authority();
        headers.insert(header::HOST, host.parse().map_err(|_| "names no host")?);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let value = HeaderValue::from_static(content_type);
        headers.entry(header::CONTENT_TYPE).or_insert(value);
        let built = Request::post(path).body(Full::new(body));
        let mut request = built.map_err(|_| "the url's path is none".to_owned())?;
        *request.headers_mut() = headers;
        let connected = TcpStream::connect((url.host.as_str(), url.port)).await;
        let stream = connected.map_err(|error| format!("cannot connect: {error}"))?;
        if !url.is_secure {
            return answer(stream, request).await;
        }
        let parsed = ServerName::try_from(url.host.clone());
        let name = parsed.map_err(|_| format!("no certificate can name {:?}", url.host))?;
        let connector = TlsConnector::from(self.tls().await?);
        let secured = connector.connect(name, stream).await;
        answer(secured.map_err(|error| self.untrusted(&error))?, request).await
    }

    /// The TLS configuration, with the CA's file as it is now.
    async fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(cached) = &*self.native.lock() {
            return Ok(Arc::clone(cached));
        }
        let ca = self.target.ca.clone();
        let is_native = ca.is_none();
        let make = move || {
            let roots = ca.map_or_else(|| Ok(tls::native_roots()), |ca| tls::roots(&ca))?;
            let mut config = tls::client(roots, None)?;
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok::<_, tls::Unusable>(Arc::new(config))
        };
        let joined = spawn_blocking(make).await;
        let made = joined.map_err(|error| error.to_string())?;
        let config = made.map_err(|error| error.to_string())?;
        if is_native {
            *self.native.lock() = Some(Arc::clone(&config));
        }
        Ok(config)
    }

    /// Why a handshake failed, and the remedy.
    fn untrusted(&self, error: &io::Error) -> String {
        let by = match &self.target.ca {
            Some(ca) => format!("that a CA in {} signed", ca.display()),
            None => "that the host trusts, or the file of its CA as ca".to_owned(),
        };
        match tls::of_tls(error) {
            Some(rustls::Error::InvalidCertificate(wrong)) => format!(
                "its certificate is not believed ({wrong:?}): it needs one for {}, of now, {by}",
                self.target.url.host
            ),
            _ => format!("TLS failed: {error}"),
        }
    }
}

/// Reads the files of a target as a post would.
///
/// # Errors
/// Which file cannot be used, and why.
pub fn try_files(target: &NotifyTarget) -> Result<(), String> {
    headers(target, &[])?;
    let roots = target.ca.as_deref().map(tls::roots).transpose();
    roots.map(drop).map_err(|error| error.to_string())
}

/// The additional headers from a target's files.
fn headers(target: &NotifyTarget, body: &[u8]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    if let Some(file) = &target.headers_file {
        for (line, number) in read(file)?.lines().zip(1..) {
            if line.trim().is_empty() {
                continue;
            }
            let (name, value) = header_of(line).ok_or_else(|| {
                // The line itself may be a secret.
                format!(
                    "{} line {number}: give NAME: VALUE, and none that MCR says itself",
                    file.display()
                )
            })?;
            headers.append(name, value);
        }
    }
    if let Some(file) = &target.secret_file {
        let time = (sys::clock::realtime_ns() / 1_000_000_000).to_string();
        let secret = read(file)?;
        if secret.trim().is_empty() {
            return Err(format!("{}: it is empty; give a secret", file.display()));
        }
        let signature = tls::token::sign(secret.trim(), &time, body);
        for (name, value) in [("x-mcr-signature", signature), ("x-mcr-time", time)] {
            let value = value.parse().map_err(|_| "it cannot be signed")?;
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    Ok(headers)
}

/// Parses a line as a header; `None` for headers that would change the request itself.
fn header_of(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let name: HeaderName = name.trim().parse().ok()?;
    let mut value: HeaderValue = value.trim().parse().ok()?;
    value.set_sensitive(true);
    (!OWN.contains(&name)).then_some((name, value))
}

async fn answer<S>(stream: S, request: Request<Full<Bytes>>) -> Result<StatusCode, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken = |error: hyper::Error| format!("the conversation broke off: {error}");
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(broken)?;
    let mut driver = JoinSet::new();
    // Ends with this attempt, whatever its outcome.
    driver.spawn(connection);
    let answer = sender.send_request(request).await.map_err(broken)?;
    Ok(answer.status())
}

fn read(file: &Path) -> Result<String, String> {
    let unreadable = |error: io::Error| {
        format!(
            "{}: {error}: give a file that the daemon's user can read",
            file.display()
        )
    };
    let mut head = File::open(file).map_err(unreadable)?.take(FILE_MAX);
    let mut text = String::new();
    head.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_headers_but_none_of_ours() {
        let (name, value) = header_of("Authorization:  Bearer a:b ").unwrap();
        assert_eq!(
            (name.as_str(), value.to_str().unwrap()),
            ("authorization", "Bearer a:b")
        );
        for line in [
            "x",
            ": x",
            "a b: c",
            "Host: a",
            "content-length: 9",
            "X-MCR-Time: 1",
            "a: \u{1}",
        ] {
            assert!(header_of(line).is_none(), "{line}");
        }
    }
}
