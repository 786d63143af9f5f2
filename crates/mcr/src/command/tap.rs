//! `mcr tap`: a rule's packets as they arrive and as they leave, as pcapng.
//!
//! It looks on with sockets of its own and takes no part in relaying; packets it is too slow for are
//! lost to the capture alone, and counted in it.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use sys::sniffer::{Direction, Sniffed, Sniffer};

use crate::cli::Global;
use crate::control::Control;
use crate::failure::{Failure, Status};
use crate::tap::{Pcapng, Point, Written, points};

/// Longest packet: a whole GSO super-packet and its link header.
const LONGEST: usize = 1 << 18;
/// Bytes that wait in each socket while the capture is written.
const BUFFER: usize = 16 << 20;
/// How often the writer looks up when nothing comes.
const TURN_MS: u16 = 100;

/// Capture a rule's packets, arriving and leaving, as pcapng
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mcr tap cam1 | tshark -r -\n  mcr tap cam1 --output 1 --write cam1.pcapng --duration 10"
)]
pub(crate) struct Args {
    /// Name of the rule
    #[arg(add = crate::completion::rule())]
    name: String,
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
    /// End after this many seconds
    #[arg(long, value_name = "S", value_parser = super::send::seconds)]
    duration: Option<Duration>,
}

/// A point being looked at.
struct Eye {
    point: Point,
    sniffer: Sniffer,
    taken: u64,
    dropped: u64,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let control = Control::open(global)?;
    let rule = control.rule(&args.name)?;
    let points = points(&control, &rule, args.output)?;
    let out = open(args)?;
    let eyes = points.into_iter().map(|point| look(point, args.snaplen));
    let mut eyes = eyes.collect::<Result<Vec<Eye>, Failure>>()?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let caught = signal_hook::flag::register(signal, Arc::clone(&ended));
        caught.map_err(|error| Failure::new(Status::Unavailable, error))?;
    }
    let comment = format!("mcr tap {}", args.name);
    let mut file = Pcapng::begin(BufWriter::new(out), &comment)?;
    for eye in &eyes {
        let (name, what) = (&eye.point.interface, &eye.point.what);
        file.interface(name, what, eye.sniffer.is_ethernet(), args.snaplen)?;
    }
    file.flush()?;
    capture(args, &mut eyes, &mut file, &ended)?;
    finish(&mut eyes, &mut file)?;
    Ok(ExitCode::SUCCESS)
}

fn open(args: &Args) -> Result<Box<dyn Write>, Failure> {
    if args.write.as_os_str() != "-" {
        let file = File::create(&args.write);
        let told = |error| format!("cannot write {}: {error}", args.write.display());
        let file = file.map_err(|error| Failure::new(Status::Unavailable, told(error)))?;
        return Ok(Box::new(file));
    }
    if io::stdout().is_terminal() {
        let message = "a capture is not for terminals: name a file with --write, or pipe it: \
                       mcr tap NAME | tshark -r -";
        return Err(Failure::new(Status::Usage, message));
    }
    Ok(Box::new(io::stdout().lock()))
}

fn look(point: Point, snap_length: u32) -> Result<Eye, Failure> {
    let fails = |error: io::Error| {
        let status = match error.raw_os_error() {
            Some(libc_eperm) if libc_eperm == Errno::EPERM as i32 => Status::Privilege,
            _ => Status::Unavailable,
        };
        let message = format!(
            "{}: cannot look at {}: {error}",
            point.what, point.interface
        );
        Failure::new(status, message)
    };
    let index = if_nametoindex(point.interface.as_str());
    let index = index.map_err(|errno| fails(errno.into()))?;
    let destination = point.endpoint.destination;
    let sniffer = Sniffer::open(
        index,
        point.direction,
        destination.address,
        destination.length,
        snap_length,
        BUFFER,
    );
    let sniffer = sniffer.map_err(fails)?;
    Ok(Eye {
        point,
        sniffer,
        taken: 0,
        dropped: 0,
    })
}

fn capture<W: Write>(
    args: &Args,
    eyes: &mut [Eye],
    file: &mut Pcapng<W>,
    ended: &AtomicBool,
) -> io::Result<()> {
    let start = Instant::now();
    let mut buffer = vec![0; LONGEST];
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 && !ended.load(Ordering::Relaxed) {
        if args.duration.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
        let mut idle = true;
        for (number, eye) in (0..).zip(eyes.iter_mut()) {
            // In turns, so that a fast output does not keep the others from being written.
            for _ in 0..64 {
                let Some(sniffed) = receive(eye, &mut buffer)? else {
                    break;
                };
                idle = false;
                if left == 0 || !eye.wants(&buffer[..sniffed.captured]) {
                    continue;
                }
                eye.taken += 1;
                left -= 1;
                file.packet(Written {
                    interface: number,
                    at_ns: sniffed.at_ns,
                    bytes: &buffer[..sniffed.captured],
                    length: sniffed.length,
                    outbound: eye.point.direction == Direction::Out,
                })?;
            }
        }
        if idle {
            file.flush()?;
            let fds = eyes
                .iter()
                .map(|eye| PollFd::new(eye.sniffer.as_fd(), PollFlags::POLLIN));
            let mut fds: Vec<PollFd<'_>> = fds.collect();
            // A signal ends the wait; the loop's condition sees to the rest.
            let _ = poll(&mut fds, PollTimeout::from(TURN_MS));
        }
    }
    Ok(())
}

fn receive(eye: &Eye, buffer: &mut [u8]) -> io::Result<Option<Sniffed>> {
    match eye.sniffer.receive(buffer) {
        // Told once; the socket goes on when the interface is up again.
        Err(error) if error.raw_os_error() == Some(Errno::ENETDOWN as i32) => Ok(None),
        outcome => outcome,
    }
}

fn finish<W: Write>(eyes: &mut [Eye], file: &mut Pcapng<W>) -> io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos() as u64);
    for (number, eye) in (0..).zip(eyes.iter_mut()) {
        if let Ok(counted) = eye.sniffer.statistics() {
            eye.dropped += counted.drops;
        }
        file.statistics(number, now, eye.taken + eye.dropped, eye.dropped)?;
        eprintln!(
            "mcr tap: {} on {}: {} packets, {} lost to the tap",
            eye.point.what, eye.point.interface, eye.taken, eye.dropped
        );
    }
    file.flush()
}

impl Eye {
    /// The port, and an input's sources: what the kernel's filter left open.
    fn wants(&self, bytes: &[u8]) -> bool {
        let link = if self.sniffer.is_ethernet() { 14 } else { 0 };
        let Some(ip) = bytes.get(link..) else {
            return false;
        };
        let endpoint = &self.point.endpoint;
        let Some((source, port)) = source_and_port(ip) else {
            // A fragment without ports, or cut too short to tell.
            return true;
        };
        endpoint.ports.contains(port)
            && (endpoint.sources.is_empty() || endpoint.sources.contains(&source))
    }
}

/// Source address and destination port of a UDP packet that shows them.
fn source_and_port(ip: &[u8]) -> Option<(IpAddr, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes(ip.get(at..at + 2)?.try_into().ok()?));
    if ip.first()? >> 4 == 6 {
        let source: [u8; 16] = ip.get(8..24)?.try_into().ok()?;
        let udp_next = ip.get(6) == Some(&17);
        return udp_next.then(|| Some((source.into(), word(42)?))).flatten();
    }
    let source: [u8; 4] = ip.get(12..16)?.try_into().ok()?;
    let first = word(6)? & 0x1fff == 0;
    let header = usize::from(ip.first()? & 0xf) * 4;
    first
        .then(|| Some((source.into(), word(header + 2)?)))
        .flatten()
}
