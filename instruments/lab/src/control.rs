//! The control API without a client program: a request is a few lines on the daemon's socket, so a
//! test can make hundreds a second.
//!
//! It uses HTTP/1.0, whose answers come in one piece and end with the connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
#[cfg(feature = "test-support")]
use api::request::Transaction;

const PATIENCE: Duration = Duration::from_secs(30);

/// Changes the running rules of the daemon behind `socket`.
///
/// # Errors
/// When it refuses; the message is its answer.
#[cfg(feature = "test-support")]
pub fn transaction(socket: &Path, change: &Transaction) -> Result<()> {
    request(
        socket,
        "POST",
        "/v1/transaction",
        &serde_json::to_vec(change)?,
    )
    .map(drop)
}

/// Reads a resource of the daemon; returns the body of its answer.
///
/// # Errors
/// When it refuses; the message is its answer.
pub fn read(socket: &Path, path: &str) -> Result<String> {
    request(socket, "GET", path, b"")
}

fn request(socket: &Path, method: &str, path: &str, body: &[u8]) -> Result<String> {
    let mut stream = UnixStream::connect(socket).context("no daemon")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: mcr\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer
        .split_once("\r\n\r\n")
        .map(|(head, body)| (head, body.to_owned()));
    match body {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body),
        _ => bail!("{method} {path}: {answer}"),
    }
}
