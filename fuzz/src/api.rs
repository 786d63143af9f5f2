//! Clients of the control API: whole requests and raw bytes. Each is answered, none with an internal
//! error, and the rules afterwards are a valid configuration.

use std::cell::RefCell;
use std::future;

use config::{Config, ConfigFile};
use daemon::Rehearsal;
use rules::ruleset::Policy;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder, Runtime};

/// Bytes of answers that are read; a stream of events has no end.
const ANSWERS_MAX: usize = 1 << 16;
/// Longer bodies only take longer.
const BODY_MAX: usize = 1 << 16;

/// How often the daemon gets its turn after the client has disconnected. It need not end by then: a
/// stream of events with requests behind it notices that at its next keep-alive, 15 seconds later.
const TURNS: u32 = 16;

struct Bed {
    runtime: Runtime,
    rehearsal: Rehearsal,
}

thread_local! {
    static BED: RefCell<Bed> = RefCell::new(Bed {
        runtime: Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime without I/O needs no system call that fails"),
        rehearsal: Rehearsal::default(),
    });
}

/// Requests, separated by lines of a single dot: the first line is method and path, the rest the
/// body.
///
/// # Panics
/// If a request is not answered, or with an internal error.
pub fn api(data: &[u8]) {
    let data = &data[..data.len().min(BODY_MAX)];
    let mut conversation = Vec::new();
    let mut requests = 0;
    for request in split(data, b"\n.\n").take(8) {
        let mut parts = request.splitn(2, |byte| *byte == b'\n');
        let (line, body) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        let is_visible = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        if !line.iter().all(is_visible) || line.split(|byte| *byte == b' ').count() != 2 {
            return;
        }
        conversation.extend(line);
        let head = format!(
            " HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        conversation.extend(head.as_bytes());
        conversation.extend(body);
        requests += 1;
    }
    let answers = exchange(&conversation, None);
    assert!(requests == 0 || !answers.is_empty(), "no answer");
}

/// Raw bytes.
///
/// # Panics
/// If the daemon answers with an internal error.
pub fn http(data: &[u8]) {
    exchange(&data[..data.len().min(BODY_MAX)], None);
}

/// Bytes of another host, after TLS: of a client without a role, and of one that may only read.
///
/// # Panics
/// If they change something, or the daemon answers with an internal error.
pub fn elsewhere(data: &[u8]) {
    let data = &data[..data.len().min(BODY_MAX)];
    for shows in [false, true] {
        exchange(data, Some(shows));
        let rules = BED.with_borrow(|bed| bed.rehearsal.export());
        assert!(!rules.contains("[[rule]]"), "{rules}");
    }
}

/// The answers to these bytes. `shows`: `None` for a local client, else whether the client of another
/// host may read.
fn exchange(bytes: &[u8], shows: Option<bool>) -> Vec<u8> {
    BED.with_borrow_mut(|bed| {
        bed.rehearsal.reset();
        let (client, server) = duplex(1 << 16);
        let answers = bed.runtime.block_on(async {
            let client_side = async {
                let answers = speak(client, bytes).await;
                // Requests sent before the client disconnected are still served.
                silence().await;
                answers
            };
            let server_side = async {
                match shows {
                    None => bed.rehearsal.converse(server).await,
                    Some(shows) => bed.rehearsal.converse_elsewhere(server, shows).await,
                }
                future::pending::<()>().await;
            };
            tokio::select! {
                answers = client_side => answers,
                () = server_side => Vec::new(),
            }
        });
        if let Some(line) = answers.split(|byte| *byte == b'\r').next()
            && !line.is_empty()
        {
            let line = String::from_utf8_lossy(line);
            assert!(line.starts_with("HTTP/1."), "{line}");
            assert!(!line.contains(" 500 "), "{line}");
        }
        is_a_configuration(bed.rehearsal.export());
        answers
    })
}

/// Writes everything, reads until the server closes, has answered enough or is silent, and
/// disconnects.
async fn speak(client: DuplexStream, bytes: &[u8]) -> Vec<u8> {
    let (mut reading, mut writing) = tokio::io::split(client);
    let write = async {
        // The server may close before it has read everything.
        let _ = writing.write_all(bytes).await;
        future::pending::<()>().await;
    };
    let read = async {
        let mut answers = Vec::new();
        while answers.len() < ANSWERS_MAX {
            tokio::select! {
                biased;
                read = reading.read_buf(&mut answers) => match read {
                    Ok(1..) => {}
                    _ => break,
                },
                () = silence() => break,
            }
        }
        answers
    };
    tokio::select! {
        answers = read => answers,
        () = write => Vec::new(),
    }
}

/// Ends when every other task has had its turn many times. Nothing here waits for external events;
/// blocking work has one thread, which does it in order.
async fn silence() {
    for _ in 0..4 {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        let _ = tokio::task::spawn_blocking(|| ()).await;
    }
}

fn is_a_configuration(text: String) {
    let file = ConfigFile {
        name: "export.toml".to_owned(),
        text,
    };
    let read = Config::load(std::slice::from_ref(&file), Policy::default());
    let again = read.map(|config| config::export(&config.rules, &config.settings));
    assert_eq!(again.as_ref(), Ok(&file.text));
}

fn split<'a>(data: &'a [u8], divider: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = Some(data);
    std::iter::from_fn(move || {
        let data = rest?;
        let at = data
            .windows(divider.len())
            .position(|window| window == divider);
        let (part, more) = match at {
            Some(at) => (&data[..at], Some(&data[at + divider.len()..])),
            None => (data, None),
        };
        rest = more;
        Some(part)
    })
}
