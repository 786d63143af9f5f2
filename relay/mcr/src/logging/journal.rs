//! Log lines as entries of systemd's journal with separate fields, in its native protocol
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): `journalctl MCR_RULE=cam1` finds them.

use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::queue::{Line, Queue};

const SOCKET: &str = "/run/systemd/journal/socket";

/// The layer that turns events into journal entries.
pub(super) struct Journal(pub(super) Queue);

/// Connects to the journal.
///
/// # Errors
/// The socket cannot be connected: there is no journal.
pub(super) fn connect() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(SOCKET)?;
    Ok(socket)
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::default();
        event.record(&mut entry);
        let bytes = entry.finish(*event.metadata().level());
        // Readers of the unit's standard error still get what the journal does not accept.
        let fallback = Some(entry.message);
        self.0.push(Line { bytes, fallback });
    }
}

/// The fields of one entry.
#[derive(Default)]
struct Entry {
    message: String,
    fields: Vec<(String, String)>,
}

impl Entry {
    fn put(&mut self, name: &str, value: String) {
        match name {
            "message" => self.message = value,
            _ => self
                .fields
                .push((format!("MCR_{}", name.to_uppercase()), value)),
        }
    }

    /// Builds the datagram. The message for people is followed by the fields, as in text form.
    fn finish(&mut self, level: Level) -> Vec<u8> {
        for (name, value) in &self.fields {
            let name = name.trim_start_matches("MCR_").to_lowercase();
            if name != "event" {
                let _ = write!(self.message, " {name}={value}");
            }
        }
        let priority = match level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            Level::DEBUG | Level::TRACE => "7",
        };
        let mut text = Vec::new();
        append(&mut text, "MESSAGE", &self.message);
        append(&mut text, "PRIORITY", priority);
        append(&mut text, "SYSLOG_IDENTIFIER", "mcr");
        for (name, value) in &self.fields {
            append(&mut text, name, value);
        }
        text
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}

/// Appends a field; a value of several lines is preceded by its length.
fn append(text: &mut Vec<u8>, name: &str, value: &str) {
    text.extend(name.as_bytes());
    if value.contains('\n') {
        text.push(b'\n');
        text.extend((value.len() as u64).to_le_bytes());
    } else {
        text.push(b'=');
    }
    text.extend(value.as_bytes());
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::queue::Sink;
    use super::*;

    #[test]
    fn every_field_is_a_field_of_the_entry() {
        let (socket, journal) = UnixDatagram::pair().unwrap();
        let queue = Queue::new(Sink::Journal(socket));
        queue.start();
        let subscriber = tracing_subscriber::registry().with(Journal(queue));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(event = "rule_down", rule = "cam1", "two\nlines");
        });
        let mut buffer = [0; 1024];
        let read = journal.recv(&mut buffer).unwrap();
        let mut expected = b"MESSAGE\n".to_vec();
        expected.extend(19_u64.to_le_bytes());
        expected.extend(b"two\nlines rule=cam1\nPRIORITY=4\nSYSLOG_IDENTIFIER=mcr\n");
        expected.extend(b"MCR_EVENT=rule_down\nMCR_RULE=cam1\n");
        assert_eq!(buffer[..read], expected);
    }
}
