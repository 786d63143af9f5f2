//! `mcr import`: makes rules of files of other tools, as a configuration to read and to change.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::request::RuleList;
use config::{self, Settings};
use import::{BYTES_MAX, Format, Imported, Options, Remark, To, make, read};
use rules::endpoint::{Endpoint, check_interface_name};
use rules::net::Ports;
use rules::printable::printable;

use super::check;
use crate::completion;
use crate::failure::{Failure, Status, usage};
use crate::global::Global;
use crate::render;
use crate::rows;

/// Print rules made of an SDP, a playlist, smcroute.conf or an IS-05 file; change nothing.
///
/// Reads session descriptions (SDP; ST 2110 with a=source-filter, and both legs of a=group:DUP as one
/// rule that merges them), playlists (M3U, M3U8, XSPF) with udp:// and rtp://, what udpxy is asked for
/// too, smcroute.conf, and senders and receivers of AMWA IS-05 (staged, active, bulk requests, with the
/// SDP in transport_file). The rules go to standard output, as a configuration that mcr check and mcr
/// apply take. What could not be taken over goes to standard error, each under its line. What only
/// players and decoders need, such as logos and codecs, is passed over.
///
/// Exits with status 0 if all was taken over, 1 if something was not, 2 if an option is missing, and 78
/// if there is no rule to be made of the file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr import tv.m3u --input-interface eth0 --to %eth1               group and port stay
  mcr import tv.m3u --input-interface eth0 --to 239.20.0.0/16%eth1  239.1.1.7 becomes 239.20.1.7
  mcr import cam1.sdp --input-interface red --input-interface blue --to %eth1,dscp=34
  mcr import /etc/smcroute.conf > rules.toml && mcr check rules.toml
  curl -s http://node/x-nmos/connection/v1.1/single/receivers/ID/active |
      mcr import - --input-interface eth0 --to 10.9.9.9")]
pub(crate) struct Args {
    /// The file; - is standard input
    file: PathBuf,
    /// What the file is; by default that is seen by how it begins
    #[arg(long, value_parser = rows::choice(FORMATS), value_name = "FORMAT")]
    format: Option<Format>,
    /// Where streams arrive that the file names no interface for; given again, where their second
    /// leg does
    #[arg(long = "input-interface", value_name = "IFACE", value_parser = interface,
        add = completion::interface())]
    interfaces: Vec<String>,
    /// Where streams go that the file sends nowhere, as outputs are written, with their options; what
    /// is left out is kept: %eth1 keeps group and port, 10.9.9.9 the port, 239.20.0.0/16%eth1 the
    /// port and the last 16 bits of the group; may be given several times
    #[arg(long, value_name = "OUTPUT", add = completion::endpoint())]
    to: Vec<To>,
    /// Ports of groups that the file names none for, as smcroute.conf does not [default: all]
    #[arg(long, value_name = "PORT[-PORT]", value_parser = ports)]
    port: Option<Ports>,
}

const FORMATS: rows::Choice<Format> = &[
    ("sdp", Format::Sdp, "Session descriptions"),
    ("m3u", Format::M3u, "Playlists, a URL a line"),
    ("xspf", Format::Xspf, "Playlists in XML"),
    ("smcroute", Format::Smcroute, "What smcroute reads"),
    (
        "is05",
        Format::Is05,
        "Senders and receivers of AMWA IS-05, JSON",
    ),
];

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let name = if is_standard_input(&args.file) {
        "standard input".to_owned()
    } else {
        args.file.display().to_string()
    };
    let failure = |what: String| Failure::new(Status::Configuration, format!("{name}: {what}"));
    let bytes = bytes(&args.file).map_err(|error| Failure::unreadable(Path::new(&name), &error))?;
    let parsed = read(&bytes, args.format).map_err(|error| failure(error.to_string()))?;
    let options = Options {
        interfaces: args.interfaces.clone(),
        to: args.to.clone(),
        ports: args.port,
    };
    let remarks = parsed.remarks.clone();
    let imported = make(parsed, &options).map_err(|missing| {
        print_remarks(&name, &remarks);
        usage(missing)
    })?;
    print_remarks(&name, &imported.remarks);
    if imported.rules.is_empty() {
        return Err(failure("no rule can be made of it".to_owned()));
    }
    check::require_room(&imported.rules, None)?;
    print(&imported, global)
}

fn print(imported: &Imported, global: &Global) -> Result<ExitCode, Failure> {
    let Imported { rules, remarks } = imported;
    if global.json {
        render::json(&RuleList {
            generation: None,
            rules: rules.to_documents(),
            settings: None,
        })?
    } else {
        render::text(&config::export(rules, &Settings::default()))?
    }
    let lost = remarks.iter().filter(|remark| remark.is_loss).count();
    if lost == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let made = render::number::things(rules.len() as u64, "rule");
    let lost = render::number::things(lost as u64, "thing");
    eprintln!("mcr import: {made} made, {lost} not taken over");
    Ok(ExitCode::from(1))
}

/// Prints all remarks at once: a file may cause a hundred thousand of them.
fn print_remarks(file: &str, remarks: &[Remark]) {
    let line =
        |remark: &Remark| format!("mcr import: {}\n", printable(&format!("{file}:{remark}")));
    let lines: String = remarks.iter().map(line).collect();
    eprint!("{lines}");
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reads the file; of one that is too large only one byte more than is permitted.
fn bytes(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = if is_standard_input(file) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file)?)
    };
    source.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn interface(text: &str) -> Result<String, String> {
    check_interface_name(text).map_err(|problem| problem.to_string())?;
    Ok(text.to_owned())
}

fn ports(text: &str) -> Result<Ports, String> {
    let parsed = format!("239.0.0.1:{text}").parse::<Endpoint>();
    let endpoint = parsed.map_err(|error| error.problem.to_string())?;
    Ok(endpoint.ports)
}
