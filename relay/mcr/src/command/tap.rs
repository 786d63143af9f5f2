//! `mcr tap`: a rule's packets as they arrive and as they leave, as pcapng.
//!
//! It captures with sockets of its own and takes no part in relaying. Packets that it is too slow
//! for are lost to the capture alone, which counts them. It follows the rule: changed and added
//! inputs and outputs are captured from then on, and the capture ends when the rule is removed.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::task::Poll;
use std::time::{Duration, Instant};

use api::query::{StatsQuery, TapQuery};
use daemon::capture::BYTES_MAX;
use sys::sniffer::Direction;

use crate::capture::{self, Sockets};
use crate::control::Control;
use crate::failure::{Failure, Status, unavailable, usage};
use crate::global::Global;
use crate::render;
use crate::tap::{
    CapturePoints, CaptureSocket, Captured, Filter, Pcapng, RuleState, follow, query_points,
    whole_blocks,
};

/// Longest packet: a whole GSO super-packet and its link header.
const LONGEST: usize = 1 << 18;
/// Longest wait for packets before the loop goes on with its other work.
const POLL: Duration = Duration::from_millis(100);

/// Capture a rule's packets, arriving and leaving, as pcapng.
///
/// FILTER is the part of pcap-filter(7) that tells a rule's datagrams apart: [src|dst] host ADDRESS,
/// net PREFIX, port N, portrange N-M; less BYTES, greater BYTES, inbound, outbound, ip, ip6, udp; not,
/// and, or (these two from left to right) and parentheses. Without one every packet of the rule is
/// captured.
///
/// It follows the rule: interfaces and outputs that come later are captured from then on. Where the
/// rule is removed, the capture ends with status 3. With --host the relay over there captures where the
/// rule is when it begins, for 60 s and 64 MiB at most.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr tap cam1 | tshark -r -
  mcr tap cam1 --output 1 --write cam1.pcapng --duration 10s
  mcr tap channels --count 100 'src 10.0.0.5 and dst net 239.1.1.0/28' | tshark -r -")]
pub(crate) struct Args {
    /// Name of the rule
    #[arg(add = crate::completion::rule())]
    name: String,
    /// Only packets that it takes
    filter: Vec<String>,
    /// Only this output, counted from 1 [default: all inputs and outputs]
    #[arg(long, value_name = "N")]
    output: Option<usize>,
    /// File to write; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// Bytes to keep of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = LONGEST as u32,
        value_parser = clap::value_parser!(u32).range(1..=LONGEST as i64))]
    snaplen: u32,
    /// End after this many packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// End after this time, such as 10s or 5m
    #[arg(long, value_name = "TIME", value_parser = super::traffic_run::seconds)]
    duration: Option<Duration>,
    /// Capture by sockets that the daemon lends, which started this for somebody else
    #[arg(long, hide = true)]
    lent: bool,
}

/// A running capture.
struct Capture<'a> {
    args: &'a Args,
    filter: Option<Filter>,
    source: Sockets,
    /// In the order of their interface blocks.
    sockets: Vec<CaptureSocket>,
    /// Why points could not be captured at the last attempt.
    missing: Vec<String>,
    file: Pcapng<BufWriter<Box<dyn Write>>>,
    buffer: Vec<u8>,
    /// Packets until the end.
    remaining: u64,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let filter = match args.filter.join(" ") {
        text if args.filter.is_empty() => Ok((text, None)),
        text => Filter::parse(&text).map(|filter| (text, Some(filter))),
    };
    let wrong = |what| usage(format!("filter: {what}"));
    let (text, filter) = filter.map_err(wrong)?;
    let control = Control::open(global)?;
    if control.other_host().is_some() {
        return run_elsewhere(args, text, &control);
    }
    let source = Sockets::of_this_process(args.lent)?;
    let rule = control.rule(&args.name)?;
    let points = query_points(&control, &rule, args.output)?;
    if points.present.is_empty() {
        return Err(unavailable(points.missing.join("\n")));
    }
    let comment = format!("mcr tap {} {text}", args.name);
    let file = Pcapng::begin(BufWriter::new(open(args)?), comment.trim_end());
    let mut capture = Capture {
        file: file.map_err(|error| cannot_write(args, error))?,
        args,
        filter,
        source,
        sockets: Vec::new(),
        missing: Vec::new(),
        buffer: vec![0; LONGEST],
        remaining: args.count.unwrap_or(u64::MAX),
    };
    // Before the capture becomes visible: an interrupt from then on must leave a whole file.
    let stop = super::traffic_run::stop_on_signals()?;
    capture.capture_at(points, Some(&control))?;
    capture.source.enter_sandbox()?;
    // In the sandbox nothing new can be captured.
    let states = (!args.lent).then(|| follow(control, args.name.clone(), args.output));
    let outcome = capture.capture(states.as_ref(), &stop);
    capture.finish()?;
    outcome
}

/// Has the daemon on another host capture, and writes what it sends.
fn run_elsewhere(args: &Args, filter: String, control: &Control) -> Result<(), Failure> {
    let query = TapQuery {
        seconds: args.duration.map_or(60.0, |time| time.as_secs_f64()),
        count: args.count,
        snaplen: (args.snaplen < LONGEST as u32).then_some(args.snaplen),
        output: args.output,
        filter,
    };
    let stop = super::traffic_run::stop_on_signals()?;
    let mut pieces = control.pieces(&query.path(&args.name))?;
    let mut out = open(args)?;
    let mut blocks = Vec::new();
    let outcome = loop {
        // Only whole blocks are written, so that an interrupt leaves a whole file.
        match control.next_piece_within(&mut pieces, POLL) {
            _ if stop.load(Ordering::Relaxed) => break Ok(()),
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(None)) => break Ok(()),
            Err(failure) => break Err(failure),
            Ok(Poll::Ready(Some(piece))) => {
                blocks.extend_from_slice(&piece);
                let whole: Vec<u8> = blocks.drain(..whole_blocks(&blocks)).collect();
                let written = out.write_all(&whole).and_then(|()| out.flush());
                written.map_err(|error| cannot_write(args, error))?;
            }
        }
    };
    if outcome.is_ok() {
        capture::pass_on("tap", &pieces.said);
    }
    outcome
}

fn open(args: &Args) -> Result<Box<dyn Write>, Failure> {
    if args.write.as_os_str() != "-" {
        let file = File::create(&args.write).map_err(|error| cannot_write(args, error))?;
        return Ok(Box::new(file));
    }
    if io::stdout().is_terminal() {
        let message = "a capture is not for terminals: name a file with --write, or pipe it: \
                       mcr tap NAME | tshark -r -";
        return Err(usage(message));
    }
    Ok(Box::new(io::stdout().lock()))
}

/// The reader of a pipe may go away at any time; the error for a file names it.
fn cannot_write(args: &Args, error: io::Error) -> Failure {
    if args.write.as_os_str() == "-" {
        return error.into();
    }
    let file = args.write.display();
    unavailable(format!("cannot write {file}: {error}"))
}

impl Capture<'_> {
    /// Captures until the count or the time is reached, a signal arrives or the rule is removed.
    fn capture(
        &mut self,
        states: Option<&Receiver<RuleState>>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        while self.remaining > 0 && !stop.load(Ordering::Relaxed) && !self.source.have_ended() {
            let limit = self.args.duration;
            if limit.is_some_and(|limit| start.elapsed() >= limit) {
                break;
            }
            match states.and_then(|states| states.try_recv().ok()) {
                Some(RuleState::Present(points)) => self.capture_at(points, None)?,
                Some(RuleState::Removed) => {
                    self.receive_all()?;
                    let message =
                        format!("rule {:?} was removed; the capture ends", self.args.name);
                    return Err(Failure::new(Status::Rule, message));
                }
                None => {}
            }
            if !self.receive_all()? {
                self.flush()?;
                capture::wait(self.sockets.iter().filter_map(CaptureSocket::fd), POLL);
            }
        }
        Ok(())
    }

    /// Receives some packets of every socket; `false` if there was none.
    fn receive_all(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        for number in 0..self.sockets.len() {
            any |= self.receive(number)?;
        }
        Ok(any)
    }

    /// Receives some packets of a socket; `false` if there was none. The number is limited, so that
    /// a fast output does not starve the others.
    fn receive(&mut self, number: usize) -> Result<bool, Failure> {
        let socket = &mut self.sockets[number];
        for turn in 0..64 {
            let Some(sniffed) = socket.receive(&mut self.buffer)? else {
                return Ok(turn > 0);
            };
            let bytes = &self.buffer[..sniffed.captured];
            if self.remaining == 0 || !socket.wants(bytes, sniffed.length, self.filter.as_ref()) {
                continue;
            }
            socket.taken += 1;
            self.remaining -= 1;
            let written = self.file.packet(Captured {
                interface: number as u32,
                at_ns: sniffed.at_ns,
                bytes: &bytes[..bytes.len().min(self.args.snaplen as usize)],
                length: sniffed.length,
                outbound: socket.point.direction == Direction::Out,
            });
            written.map_err(|error| cannot_write(self.args, error))?;
            if self.args.lent && self.file.written >= BYTES_MAX {
                eprintln!(
                    "mcr tap: {} MiB are written; the capture ends",
                    BYTES_MAX >> 20
                );
                self.remaining = 0;
            }
        }
        Ok(true)
    }

    /// Captures at exactly these points. A point that cannot be captured is an error only at the
    /// start, when `daemon` is given, which is then waited for, too.
    fn capture_at(
        &mut self,
        mut points: CapturePoints,
        daemon: Option<&Control>,
    ) -> Result<(), Failure> {
        for socket in &mut self.sockets {
            if !points.present.contains(&socket.point) {
                socket.close();
            }
        }
        for point in points.present {
            if self.sockets.iter().any(|socket| socket.is_at(&point)) {
                continue;
            }
            let snaplen = self.args.snaplen;
            let socket = match CaptureSocket::open(point, snaplen, &self.source) {
                Err(failure) if daemon.is_none() => {
                    points.missing.push(failure.to_string());
                    continue;
                }
                opened => opened?,
            };
            let (interface, what) = (&socket.point.interface, &socket.point.what);
            let ethernet = socket.ethernet;
            let written = self.file.interface(interface, what, ethernet, snaplen);
            written.map_err(|error| cannot_write(self.args, error))?;
            self.sockets.push(socket);
        }
        for missing in &points.missing {
            if !self.missing.contains(missing) {
                let later = if self.args.lent {
                    ""
                } else {
                    "; captured when that changes"
                };
                eprintln!("mcr tap: {missing}{later}");
            }
        }
        self.missing = points.missing;
        if let Some(daemon) = daemon {
            self.wait_for_tc(daemon)?;
        }
        self.flush()
    }

    /// Waits until no packets of the rule are taken at XDP.
    fn wait_for_tc(&self, daemon: &Control) -> Result<(), Failure> {
        let name = &self.args.name;
        let query = StatsQuery {
            filter: name.clone(),
            ..StatsQuery::default()
        };
        let is_at_tc = capture::wait_for_tc(|| {
            let stats = daemon.selected_stats(&query)?;
            let rules = stats.rules.iter().filter(|rule| rule.name == *name);
            let mut inputs = rules.flat_map(|rule| &rule.inputs);
            Ok(!inputs.any(|input| input.hook.as_deref() == Some("xdp")))
        })?;
        if !is_at_tc {
            eprintln!(
                "mcr tap: packets of {name:?} are still taken at XDP, where they are not seen"
            );
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.file.flush();
        flushed.map_err(|error| cannot_write(self.args, error))
    }

    /// Writes the counts of captured and lost packets to the file and to standard error.
    fn finish(&mut self) -> Result<(), Failure> {
        let now = sys::clock::realtime_ns();
        for socket in &mut self.sockets {
            socket.close();
            let (what, name) = (&socket.point.what, &socket.point.interface);
            let taken = render::number::things(socket.taken, "packet");
            let dropped = render::count(socket.dropped);
            eprintln!("mcr tap: {what} on {name}: {taken}, {dropped} lost to the tap");
        }
        for (number, socket) in (0..).zip(&self.sockets) {
            let (taken, dropped) = (socket.taken, socket.dropped);
            let written = self.file.statistics(number, now, taken + dropped, dropped);
            written.map_err(|error| cannot_write(self.args, error))?;
        }
        self.flush()
    }
}
