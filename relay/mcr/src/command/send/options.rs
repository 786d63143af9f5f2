//! The command line of `mcr send`, and the generator's options made of it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::features::Feature;
use rules::endpoint::Endpoint;
use rules::rule::code_point;
use traffic::capture::Capture;
use traffic::framing::Framing;
use traffic::generator::{Faults, Line, Method, Options, Restart, Sizes};

use crate::command::traffic_run::{destinations, number, seconds};
use crate::command::without::Without;
use crate::failure::{Failure, usage};

/// Send test traffic that `mcr receive` can check.
///
/// Each destination is one stream; --rate, --bitrate, --count and --burst are per stream. Without
/// --count and --duration it sends until interrupted. Packets are paced from their due times: a
/// late one does not delay the next, and shows as latency at the receiver.
///
/// With --line in place of destinations one stream goes on several lines, each with faults of its
/// own, as redundant inputs of one rule get it (SMPTE ST 2022-7, A and B feeds).
#[derive(Clone, Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  mcr send 239.1.1.1%eth0:5001 --count 1000
  mcr send 239.1.1.0/28%eth0:5001 --rate 5000 --size 1316 --duration 10s   16 streams
  mcr send --framing rtp --line 239.1.1.1%eth0:5001,lose=5%,burst=10 \\
           --line 239.2.1.1%eth1:5001,lose=5%,delay=40ms,cut=3s-5s         two lines"
)]
pub(crate) struct Args {
    /// GROUP%IFACE:PORT, or ADDRESS[%IFACE]:PORT for unicast; GROUP and
    /// PORT may be ranges, 239.1.1.0/24%eth0:5001-5010
    #[arg(required_unless_present = "line", value_name = "DESTINATION",
        add = crate::completion::endpoint())]
    destinations: Vec<Endpoint>,
    /// Send each packet on several lines, an option each: GROUP%IFACE:PORT and, behind commas, what
    /// goes wrong there: lose=5%, burst=10 (lost in a row), delay=40ms, jitter=2ms, cut=3s-5s (as
    /// often as you like), duplicate=1%, reorder=1%
    #[arg(long, value_name = "LINE", add = crate::completion::endpoint(), conflicts_with_all =
        ["destinations", "streams", "lose", "duplicate", "reorder", "corrupt"])]
    line: Vec<Line>,
    /// With --line, streams that take turns on all lines, each with numbers and an SSRC or session
    /// of its own
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "destinations",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    senders: u32,
    /// Packets per second of each stream; "max" for as fast as possible
    #[arg(short, long, value_name = "PPS", default_value = "1000", value_parser = rate)]
    rate: SendRate,
    /// Bits of UDP payload per second of each stream, such as 20Mbit, in place of a packet rate
    #[arg(short, long, value_name = "RATE", value_parser = bitrate, conflicts_with = "rate")]
    bitrate: Option<f64>,
    /// Packets of each stream; with --replay, rounds through the capture
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// How long to send, such as 10s or 5m
    #[arg(short, long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// Bytes of UDP payload: fixed (1024), a range (64-1400), a mix with weights
    /// (64:7,576:4,1400:1) or imix [default: 1024, or 7 MPEG-TS packets]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<Sizes>,
    /// What stands around the header of the sequence check
    #[arg(short, long, value_enum, default_value_t)]
    framing: Framing,
    /// First number in the framing, where it has one [default: 0, or 1 for moldudp64 and mdp3]
    #[arg(long, value_name = "N")]
    start: Option<u64>,
    /// Start anew after that time, as another sender (1500ms: another SSRC or session, numbers from
    /// the first on) or with a jump of the same one (at=1500ms,number=50000); may be repeated
    #[arg(long, value_name = "TIME")]
    restart: Vec<Restart>,
    /// Streams from each destination on, group and port counting up together (239.1.1.1:5001,
    /// 239.1.1.2:5002, …; the last octet runs from 1 to 254)
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    streams: u32,
    /// Packets of a stream that leave together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    burst: Option<u64>,
    /// Time during which the rate rises from 0
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "0s")]
    ramp: Duration,
    /// Percentage of packets to leave out
    #[arg(long, value_name = "%", default_value_t = 0.0, value_parser = percentage)]
    lose: f64,
    /// Percentage of packets to send twice
    #[arg(long, value_name = "%", default_value_t = 0.0, value_parser = percentage)]
    duplicate: f64,
    /// Percentage of packets to send after their successor
    #[arg(long, value_name = "%", default_value_t = 0.0, value_parser = percentage)]
    reorder: f64,
    /// Percentage of packets to send with a changed byte
    #[arg(long, value_name = "%", default_value_t = 0.0, value_parser = percentage)]
    corrupt: f64,
    /// Seed of faults and sizes: the same seed makes the same choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Send the UDP datagrams of a pcap or pcapng file with its timing instead of test packets:
    /// the file's first flow to the first destination, and so on; with --line all of it on each
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "bitrate", "size", "framing",
        "streams", "burst", "ramp", "lose", "duplicate", "reorder", "corrupt", "senders", "start",
        "restart"])]
    replay: Option<PathBuf>,
    /// With --replay, how many times as fast as it was captured
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = number, requires = "replay")]
    speed: f64,
    /// How packets are handed to the kernel
    #[arg(long, value_enum, default_value_t)]
    method: Method,
    /// TTL or hop limit, 1 to 255
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..))]
    ttl: u8,
    /// DSCP, 0 to 63 or a name such as ef
    #[arg(long, default_value = "0", value_parser = dscp)]
    dscp: u8,
    /// Source address; one that is not this host's takes raw frames
    #[arg(long, value_name = "ADDR")]
    source: Option<IpAddr>,
    /// Source port
    #[arg(long, value_name = "PORT")]
    sport: Option<u16>,
    /// CPU to run on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    #[command(flatten)]
    without: Without,
}

#[derive(Clone, Copy, Debug)]
enum SendRate {
    Pps(f64),
    Max,
}

/// Turns the arguments into options, and reads the files that they name.
pub(super) fn options(args: &Args) -> Result<Options, Failure> {
    let destinations = destinations(&args.destinations, args.streams)?;
    let framing = args.framing;
    let destination = if args.line.is_empty() {
        Options::to(destinations)
    } else {
        Options::on(args.line.clone())
    };
    let usual = Sizes::Fixed(framing.usual_size());
    let sizes = args.size.clone().unwrap_or(usual);
    Ok(Options {
        rate_pps: rate_pps(args, &sizes),
        sizes,
        framing,
        start: args.start,
        restarts: args.restart.clone(),
        senders: args.senders,
        count: args.count,
        duration: args.duration,
        burst: args.burst,
        ramp: args.ramp,
        faults: Faults {
            lose: args.lose,
            duplicate: args.duplicate,
            reorder: args.reorder,
            corrupt: args.corrupt,
        },
        seed: args.seed,
        replay: args.replay.as_deref().map(read_capture).transpose()?,
        speed: args.speed,
        method: args.method,
        segmentation: sys::udp::option::has_segmentation()
            && !args.without.features.contains(&Feature::UdpSegment),
        ttl: args.ttl,
        dscp: args.dscp,
        source: args.source,
        source_port: args.sport,
        cpu: args.cpu,
        ..destination
    })
}

fn rate_pps(args: &Args, sizes: &Sizes) -> Option<f64> {
    match (args.bitrate, args.rate) {
        (Some(bits), _) => Some(bits / 8.0 / sizes.mean()),
        (None, SendRate::Pps(rate)) => Some(rate),
        (None, SendRate::Max) => None,
    }
}

fn read_capture(path: &Path) -> Result<Capture, Failure> {
    let capture = Capture::open(path).map_err(usage)?;
    let (datagrams, flows) = (capture.datagrams(), capture.flows.len());
    eprintln!(
        "{}: {datagrams} datagram{} in {flows} flow{} over {:.3} s{}",
        path.display(),
        if datagrams == 1 { "" } else { "s" },
        if flows == 1 { "" } else { "s" },
        capture.length_ns() as f64 / 1e9,
        capture.skipped
    );
    Ok(capture)
}

fn rate(text: &str) -> Result<SendRate, String> {
    match text {
        "max" => Ok(SendRate::Max),
        _ => number(text.strip_suffix("pps").unwrap_or(text)).map(SendRate::Pps),
    }
}

fn percentage(text: &str) -> Result<f64, String> {
    let parsed = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let percent = parsed.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "not a percentage from 0 to 100".to_owned())
}

fn dscp(text: &str) -> Result<u8, String> {
    code_point(text).ok_or_else(|| "not 0 to 63 or a name such as ef or af41".to_owned())
}

/// Reads a rate of bits as rules write it, `20Mbit`; the unit may be left out.
fn bitrate(text: &str) -> Result<f64, String> {
    number(text.strip_suffix("bit").unwrap_or(text))
        .map_err(|error| error.replace("1500, 400k or 1M", "400kbit or 20Mbit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_percentages_are_written_as_in_rules() {
        for text in ["1kpps", "1000pps", "1k", "1000"] {
            let is_thousand = matches!(rate(text), Ok(SendRate::Pps(1000.0)));
            assert!(is_thousand, "{text}");
        }
        assert_eq!((percentage("2%"), percentage("2")), (Ok(2.0), Ok(2.0)));
        assert_eq!((dscp("ef"), dscp("46")), (Ok(46), Ok(46)));
        assert!(dscp("64").is_err() && dscp("keep").is_err());
    }

    #[test]
    fn a_bitrate_is_written_as_in_rules() {
        for text in ["20Mbit", "20M", "20000kbit", "20000000"] {
            assert_eq!(bitrate(text), Ok(20e6), "{text}");
        }
        let error = bitrate("fast").unwrap_err();
        assert!(error.contains("20Mbit"), "{error}");
    }
}
