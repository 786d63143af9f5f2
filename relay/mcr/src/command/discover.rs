//! `mcr discover`: what multicast arrives on this host, and how to relay it.

mod report;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rules::ruleset::{Policy, RuleSet};
use sys::membership::{Membership, Memberships};

use crate::control::Control;
use crate::discover::{Interface, Joined, Listener, interfaces};
use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::{completion, render};
use report::Report;

/// Time between two pictures on a terminal.
const REDRAW: Duration = Duration::from_millis(500);

/// Show what multicast arrives on this host, also what nobody joined.
///
/// Listens on all interfaces that are up, or on those that are named, and says for each stream how
/// much of it comes, what it carries, whether this host has joined it on that interface, which rule
/// takes it, and how to add one. It takes no part in relaying and needs no daemon. Where a switch
/// sends only what was asked for, --join asks for it. Interfaces are in promiscuous mode meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr discover                              on all interfaces, for 5 s
  mcr discover eth0 --duration 30s          a stream that sends seldom
  mcr discover eth0 --join 239.1.1.1        where the switch filters
  mcr discover --json | jq -r '.streams[] | select(.rule == null).add'")]
pub(crate) struct Args {
    /// Interfaces to listen on; * and ? stand for any text and character [default: all that are up]
    #[arg(value_name = "IFACE", add = completion::interface())]
    interfaces: Vec<String>,
    /// How long to listen, in seconds
    #[arg(long, value_name = "S", default_value = "5", value_parser = super::traffic_run::seconds)]
    duration: Duration,
    /// Ask for these groups meanwhile, on each of the interfaces
    #[arg(long, value_name = "GROUP", num_args = 1.., value_parser = group)]
    join: Vec<IpAddr>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let interfaces = interfaces(&args.interfaces)?;
    if interfaces.is_empty() {
        let message = "no interface is up; name one to listen on it all the same";
        return Err(Failure::new(Status::Unavailable, message));
    }
    for down in interfaces.iter().filter(|interface| !interface.up) {
        eprintln!("mcr discover: {} is down: nothing arrives there", down.name);
    }
    let rules = match rules(global, &interfaces) {
        Ok(rules) => Some(rules),
        Err(why) => {
            eprintln!("mcr discover: what rules take is not known: {why}");
            None
        }
    };
    // What is joined apart from this.
    let joined = Joined::read();
    // Before it is seen to listen: who interrupts it then wants the report.
    let ended = Arc::new(AtomicBool::new(false));
    super::traffic_run::stop_on_signals(&ended)?;
    let mut listener = Listener::open(interfaces)?;
    let _memberships = join(&args.join, &listener.interfaces)?;
    let until = Instant::now() + args.duration;
    let is_live = !global.json && io::stdout().is_terminal();
    while !ended.load(Ordering::Relaxed) && Instant::now() < until {
        let next = match is_live {
            true => until.min(Instant::now() + REDRAW),
            false => until,
        };
        listener.listen(next, &ended)?;
        if is_live {
            let text = Report::new(&listener, &joined, rules.as_ref()).picture(until);
            render::text(&format!("{CLEAR}{text}"))?;
        }
    }
    let report = Report::new(&listener, &joined, rules.as_ref());
    if global.json {
        render::json(&report)?;
    } else {
        let clear = if is_live { CLEAR } else { "" };
        render::text(&format!("{clear}{}", report.text()))?;
    }
    for name in &listener.at_xdp {
        eprintln!(
            "mcr discover: {name}: what the kernel path takes at XDP is not heard; a daemon that runs leaves it to tc"
        );
    }
    for (name, missed) in listener.missed().filter(|(_, missed)| *missed > 0) {
        let missed = render::number::things(missed, "packet");
        eprintln!("mcr discover: {name}: {missed} came too fast; its rates are too low");
    }
    Ok(ExitCode::SUCCESS)
}

const CLEAR: &str = "\x1b[H\x1b[2J";

/// The rules of the daemon, if it sees the same interfaces.
fn rules(global: &Global, interfaces: &[Interface]) -> Result<RuleSet, Failure> {
    let control = Control::open(global)?;
    let documents = control.rules()?.rules;
    let seen = control.interfaces()?;
    let is_seen = |here: &Interface| {
        let mut seen = seen.iter();
        seen.any(|link| (link.index, &link.name) == (here.index, &here.name))
    };
    if let Some(own) = interfaces.iter().find(|interface| !is_seen(interface)) {
        let message = format!(
            "the daemon does not see {}: it runs in another network namespace",
            own.name
        );
        return Err(Failure::new(Status::Unavailable, message));
    }
    let policy = Policy::PERMISSIVE;
    RuleSet::from_documents(&documents, policy)
        .map_err(|problems| Failure::new(Status::Refused, problems))
}

/// Asks for the groups until what it returns is dropped.
fn join(groups: &[IpAddr], interfaces: &[Interface]) -> Result<Memberships, Failure> {
    let mut memberships = Memberships::new();
    let on = |interface: &Interface| interface.index;
    let wanted = groups.iter().flat_map(|group| {
        interfaces.iter().map(on).map(|interface| Membership {
            interface,
            group: *group,
            source: None,
        })
    });
    let refused = memberships.reconcile(&wanted.collect::<BTreeSet<_>>());
    match refused.into_iter().next() {
        Some(error) => Err(Failure::new(Status::Unavailable, error)),
        None => Ok(memberships),
    }
}

fn group(text: &str) -> Result<IpAddr, String> {
    let group: Option<IpAddr> = text.parse().ok();
    let group = group.filter(IpAddr::is_multicast);
    group.ok_or_else(|| "not a multicast group".to_owned())
}
