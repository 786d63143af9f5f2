//! The bounded queue of log lines, which one thread empties. Logging never waits for the reader: lines that do
//! not fit are counted, and reported once there is room again.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use super::repeats::Counts;

/// Bytes of queued lines at most.
const CAPACITY: usize = 4 << 20;

/// Where lines go.
#[derive(Debug)]
pub(super) enum Sink {
    /// Standard error.
    Text,
    /// The journal's socket, with one datagram per entry.
    Journal(UnixDatagram),
}

/// A queued line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) bytes: Vec<u8>,
    /// What standard error gets if the journal does not accept it.
    pub(super) fallback: Option<String>,
}

/// A handle of the queue.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sink: Sink,
    state: Mutex<State>,
    repeats: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Whether a line has left the queue and is not written yet.
    is_writing: bool,
    is_started: bool,
    written: u64,
    lost: u64,
    /// Lost lines that have been reported.
    reported: u64,
}

impl Queue {
    pub(super) fn new(sink: Sink) -> Self {
        Self(Arc::new(Shared {
            sink,
            state: Mutex::default(),
            repeats: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Whether a line may be written, and is not one of too many.
    pub(super) fn admits(&self, line: String) -> bool {
        self.0.repeats.lock().admit(Instant::now(), line)
    }

    /// Queues a line if there is room.
    pub(super) fn push(&self, line: Line) {
        let mut state = self.0.state.lock();
        if state.bytes + line.bytes.len() > CAPACITY {
            state.lost += 1;
            return;
        }
        state.bytes += line.bytes.len();
        state.lines.push_back(line);
        self.0.changed.notify_all();
    }

    /// Starts the thread that empties the queue, once; until then lines wait.
    pub(super) fn start(&self) {
        if std::mem::replace(&mut self.0.state.lock().is_started, true) {
            return;
        }
        let queue = self.clone();
        let thread = thread::Builder::new().name("log".to_owned());
        if thread.spawn(move || queue.run()).is_err() {
            self.0.state.lock().is_started = false;
        }
    }

    /// Waits until all lines are written, for as long as each is written within `patience`.
    pub(super) fn finish(&self, patience: Duration) {
        self.start();
        let mut state = self.0.state.lock();
        while !state.lines.is_empty() || state.is_writing {
            let written = state.written;
            let is_stuck = |state: &mut State| state.written == written;
            let changed = &self.0.changed;
            if changed
                .wait_while_for(&mut state, is_stuck, patience)
                .timed_out()
            {
                return;
            }
        }
    }

    /// How many lines are lost.
    pub(super) fn lost(&self) -> u64 {
        self.0.state.lock().lost
    }

    fn run(&self) {
        loop {
            let repeats = self.0.repeats.lock().drain(Instant::now());
            for (line, count) in repeats {
                tracing::warn!("{count} more lines within a minute were: {line}");
            }
            let Some(line) = self.next() else { continue };
            let is_written = self.0.sink.write(&line);
            let mut state = self.0.state.lock();
            state.is_writing = false;
            state.written += 1;
            if !is_written {
                // Not to be reported: the report could not be written either.
                state.lost += 1;
                state.reported += 1;
            }
            let unreported = state.lost - state.reported;
            let has_room = state.bytes < CAPACITY / 2;
            if has_room {
                state.reported = state.lost;
            }
            self.0.changed.notify_all();
            drop(state);
            if has_room && unreported > 0 {
                tracing::warn!(
                    lost = unreported,
                    "lines of the log are lost: nobody read it for a while"
                );
            }
        }
    }

    /// The next line; none when it is time to report suppressed lines.
    fn next(&self) -> Option<Line> {
        let mut state = self.0.state.lock();
        if let Some(line) = state.lines.pop_front() {
            state.bytes -= line.bytes.len();
            state.is_writing = true;
            return Some(line);
        }
        let rest = self.0.repeats.lock().remaining(Instant::now());
        let idle = Duration::from_secs(86_400);
        self.0.changed.wait_for(&mut state, rest.unwrap_or(idle));
        None
    }
}

impl Sink {
    fn write(&self, line: &Line) -> bool {
        match self {
            Self::Text => io::stderr().write_all(&line.bytes).is_ok(),
            Self::Journal(socket) => {
                let text = line.fallback.as_deref().unwrap_or_default();
                socket.send(&line.bytes).is_ok() || writeln!(io::stderr(), "{text}").is_ok()
            }
        }
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Queue {
    /// Queues a whole line: the formatter writes each in one call.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(Line {
            bytes: bytes.to_vec(),
            fallback: None,
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line {
            bytes: text.into(),
            fallback: Some(text.to_owned()),
        }
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_hold_up_nobody() {
        let (socket, reader) = UnixDatagram::pair().unwrap();
        let queue = Queue::new(Sink::Journal(socket));
        queue.start();
        let text = "x".repeat(1000);
        for _ in 0..20_000 {
            queue.push(line(&text));
        }
        assert!(queue.lost() > 15_000, "{} lost", queue.lost());
        queue.finish(Duration::from_millis(1));
        // Somebody reads again: the queued lines arrive, and new ones.
        let taken = thread::spawn(move || {
            let mut buffer = [0; 2000];
            let mut taken = 0;
            while reader.recv(&mut buffer).unwrap() != 3 {
                taken += 1;
            }
            taken
        });
        queue.finish(Duration::from_secs(60));
        let lost = queue.lost();
        queue.push(line("end"));
        assert_eq!(taken.join().unwrap() + lost, 20_000);
    }
}
