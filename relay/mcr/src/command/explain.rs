//! `mcr explain`: what the relay would do with a packet, and why.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use api::reply::Explanation;
use api::request::PacketAsked;
use packet::craft::Craft;
use rules::endpoint::Endpoint;
use traffic::capture::Capture;

use crate::completion;
use crate::control::Control;
use crate::failure::{Failure, unavailable, usage, verdict};
use crate::global::Global;
use crate::render::{self, because, number::things};

/// How many different packets of a capture are explained.
const PACKETS: usize = 64;
/// Sender where none is named: an address for documentation (RFC 5737, RFC 3849).
const DEFAULT_SENDERS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Say what the relay would do with a packet, and why.
///
/// Names the rule and the input that take it, what decides on the way as it stands now (gate, failover,
/// merge, limit), and what each output would send, or why not and what to do; of a packet that no rule
/// takes the inputs that nearly would, and what differs. Nothing is sent and nothing is counted.
///
/// Exits with status 5 if the packet would not be forwarded.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr explain 239.1.1.1:5001 --from 10.0.0.5 --on eth0
  mcr explain 239.1.1.1%eth0:5001 --size 1472 --ttl 1
  mcr explain --pcap camera.pcap --on eth0")]
pub(crate) struct Args {
    /// Where the packet goes: GROUP:PORT or GROUP%IFACE:PORT, or an address of this host
    #[arg(required_unless_present = "pcap", value_name = "PACKET", conflicts_with = "pcap",
        add = completion::endpoint())]
    packet: Option<Endpoint>,
    /// Its sender, ADDRESS or ADDRESS:PORT; a sender that no rule names without it
    #[arg(long, value_name = "SENDER", value_parser = sender, conflicts_with = "pcap")]
    from: Option<SocketAddr>,
    /// Interface that it arrives on
    #[arg(long, value_name = "IFACE", add = completion::interface())]
    on: Option<String>,
    /// Bytes of its UDP payload
    #[arg(long, value_name = "BYTES", default_value_t = 1316, conflicts_with = "pcap",
        value_parser = clap::value_parser!(u16).range(0..=65_000))]
    size: u16,
    /// Its TTL
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "pcap")]
    ttl: u8,
    /// Ask about the packets of a pcap or pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

fn sender(text: &str) -> Result<SocketAddr, String> {
    let address = |_| {
        text.parse::<IpAddr>()
            .map(|address| SocketAddr::new(address, 5000))
    };
    let parsed = text.parse().or_else(address);
    parsed.map_err(|_| "an ADDRESS or ADDRESS:PORT, as in 10.0.0.5".to_owned())
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let of_packet = || args.packet.as_ref()?.interface.clone();
    let Some(interface) = args.on.clone().or_else(of_packet) else {
        return Err(usage("which interface does it arrive on? add --on IFACE"));
    };
    let control = Control::open(global)?;
    // One for each kind of packet: a stream has thousands alike.
    let mut explanations: BTreeMap<Vec<u8>, (usize, Explanation)> = BTreeMap::new();
    for frame in frames(args)? {
        let kind = kind(&frame);
        if let Some((count, _)) = explanations.get_mut(&kind) {
            *count += 1;
        } else if explanations.len() < PACKETS {
            let request = PacketAsked {
                interface: interface.clone(),
                frame: frame.iter().map(|byte| format!("{byte:02x}")).collect(),
            };
            explanations.insert(kind, (1, control.explain(&request)?));
        }
    }
    let all: Vec<&Explanation> = explanations.values().map(|(_, one)| one).collect();
    match (global.json, &all[..]) {
        (true, [one]) if args.pcap.is_none() => render::json(one)?,
        (true, all) => render::json(&all)?,
        (false, _) => {
            let texts = explanations.values().map(|(count, one)| text(*count, one));
            println!("{}", texts.collect::<Vec<_>>().join("\n\n"));
        }
    }
    let is_forwarded = all.iter().all(|explained| {
        explained.verdict == "forwarded" && explained.outputs.iter().all(|out| out.copy.is_some())
    });
    Ok(verdict(is_forwarded))
}

fn frames(args: &Args) -> Result<Vec<Vec<u8>>, Failure> {
    if let Some(path) = &args.pcap {
        let frames = Capture::frames(path).map_err(unavailable)?;
        if frames.is_empty() {
            let file = path.display();
            return Err(unavailable(format!("{file}: holds no IP packet")));
        }
        return Ok(frames);
    }
    let Some(to) = &args.packet else {
        return Ok(Vec::new());
    };
    if !to.is_single() {
        return Err(usage(
            "PACKET is one packet: one group or address and one port",
        ));
    }
    let destination = SocketAddr::new(to.destination.address, to.ports.first);
    let fallback = DEFAULT_SENDERS[usize::from(destination.is_ipv6())]
        .parse()
        .ok();
    let address = to.sources.first().map(|source| source.address).or(fallback);
    let default = address.map(|address| SocketAddr::new(address, 5000));
    let sender = args.from.or(default);
    let Some(source) = sender.filter(|it| it.is_ipv4() == destination.is_ipv4()) else {
        return Err(usage("--from: sender and packet are of one family"));
    };
    let craft = Craft {
        ttl: args.ttl,
        ..Craft::new(source, destination, vec![0; usize::from(args.size)])
    };
    Ok(vec![craft.frame()])
}

/// What tells a packet apart from others: addresses, ports, lengths and TTL.
fn kind(frame: &[u8]) -> Vec<u8> {
    let mut head = frame.get(12..62).unwrap_or(frame).to_vec();
    // Without identification and header checksum of IPv4, UDP checksum and payload.
    if head.starts_with(&[0x08, 0x00]) {
        head.truncate(28);
        [6, 7, 12, 13].into_iter().for_each(|at| {
            head.get_mut(at).into_iter().for_each(|byte| *byte = 0);
        });
    }
    head.extend((frame.len() as u32).to_be_bytes());
    head
}

fn text(count: usize, explained: &Explanation) -> String {
    let mut lines = Vec::new();
    let mut line = |title: &str, text: String| lines.push(format!("{title:<9} {text}"));
    let times = match count as u64 {
        1 => String::new(),
        count => format!(" ({} alike)", things(count, "packet")),
    };
    line("packet", format!("{}{times}", explained.packet));
    if let (Some(rule), Some(input)) = (&explained.rule, &explained.input) {
        line("rule", format!("{rule}, by its input {input}"));
    }
    if let (Some(path), Some(reason)) = (&explained.path, &explained.path_reason) {
        line("path", format!("{path}: {reason}"));
    }
    for stage in &explained.stages {
        line(&stage.stage, stage.text.clone());
    }
    let why = |reason: &Option<String>, remedy: &Option<String>| {
        because(reason.as_deref()) + &because(remedy.as_deref())
    };
    let no_rule = match (&explained.rule, &explained.reason) {
        (None, None) => ": no rule takes it",
        _ => "",
    };
    let reason = why(&explained.reason, &explained.remedy);
    line("verdict", format!("{}{no_rule}{reason}", explained.verdict));
    for output in &explained.outputs {
        let to = &output.to;
        let Some(copy) = &output.copy else {
            let reason = why(&output.reason, &output.remedy);
            line("output", format!("{to}  {}{reason}", output.verdict));
            continue;
        };
        let mac = copy.mac.as_ref();
        let to_mac = mac.map_or_else(String::new, |mac| format!(" to {mac}"));
        line(
            "output",
            format!("{to}  leaves by {}{to_mac}", copy.interface),
        );
        let text = format!(
            "{} to {}, TTL {}, DSCP {}, {} bytes",
            copy.source, copy.destination, copy.ttl, copy.dscp, copy.bytes
        );
        line("  copy", text);
    }
    if explained.rule.is_some() {
        let host = if explained.passed_up {
            "gets it, too"
        } else {
            "does not get it"
        };
        line("host", host.to_owned());
    }
    for near in &explained.nearest {
        let (rule, input, differs) = (&near.rule, &near.input, near.differs.join("; "));
        line("nearest", format!("{rule} takes {input}: {differs}"));
    }
    lines.join("\n")
}
