//! The control API without a client program: a request is a few lines on the daemon's socket, so a
//! test can make hundreds a second.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::request::Transaction;

const PATIENCE: Duration = Duration::from_secs(30);

/// Changes the running rules of the daemon behind `socket`.
///
/// # Errors
/// When it refuses; the message is its answer.
pub fn transaction(socket: &Path, change: &Transaction) -> Result<()> {
    request(
        socket,
        "POST",
        "/v1/transaction",
        &serde_json::to_vec(change)?,
    )
    .map(drop)
}

/// Reads something of the daemon's, as it is sent.
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
        "{method} {path} HTTP/1.1\r\nhost: mcr\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "{method} {path}: {answer}"
    );
    Ok(answer)
}
