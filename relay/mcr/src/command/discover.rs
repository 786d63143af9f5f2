//! `mcr discover`: what multicast arrives on this host, and how to relay it.

mod report;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use api::query::DiscoverQuery;
use api::reply::Discovery;
use rules::endpoint::Endpoint;
use rules::ruleset::{Policy, RuleSet};
use sys::membership::{Membership, Memberships};

use crate::capture::{self, Sockets};
use crate::control::Control;
use crate::discover::{self, Interface, Joined, Listener, interfaces, is_on};
use crate::failure::{Failure, OrFail, Status, unavailable};
use crate::global::Global;
use crate::{completion, render};

/// Time between two redraws on a terminal.
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
    /// How long to listen
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = super::traffic_run::seconds)]
    duration: Duration,
    /// Ask for these groups meanwhile, on each of the interfaces
    #[arg(long, value_name = "GROUP", num_args = 1.., value_parser = group)]
    join: Vec<IpAddr>,
    /// Listen by sockets that the daemon lends, which started this for somebody else
    #[arg(long, hide = true)]
    lent: bool,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if global.host.is_some() {
        return run_elsewhere(args, global);
    }
    let sockets = Sockets::of_this_process(args.lent)?;
    let interfaces = interfaces(&args.interfaces)?;
    if interfaces.is_empty() {
        return Err(unavailable(
            "no interface is up; name one to listen on it all the same",
        ));
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
    // Read before this process joins groups itself.
    let joined = Joined::read();
    // Before it visibly listens: an interrupt from then on prints the report.
    let stop = super::traffic_run::stop_on_signals()?;
    let at_xdp = |interfaces: &[Interface]| {
        if sockets.are_lent() {
            at_xdp_by_daemon(global, interfaces).unwrap_or_default()
        } else {
            discover::at_xdp(interfaces)
        }
    };
    let mut listener = Listener::open(interfaces, &sockets, at_xdp)?;
    let _memberships = join(&args.join, &listener.interfaces)?;
    sockets.enter_sandbox()?;
    let until = Instant::now() + args.duration;
    let is_live = !global.json && io::stdout().is_terminal();
    // Even an immediate interrupt reports what waits in the sockets.
    loop {
        let next = if is_live || sockets.are_lent() {
            until.min(Instant::now() + REDRAW)
        } else {
            until
        };
        listener.listen(next, &stop)?;
        if is_live {
            let text = report::screen(&report::of(&listener, &joined, rules.as_ref()), until);
            render::text(&format!("{CLEAR}{text}"))?;
        }
        if stop.load(Ordering::Relaxed) || sockets.have_ended() || Instant::now() >= until {
            break;
        }
    }
    let clear = if is_live { CLEAR } else { "" };
    show(
        &report::of(&listener, &joined, rules.as_ref()),
        clear,
        global,
    )?;
    for name in &listener.at_xdp {
        eprintln!(
            "mcr discover: {name}: what the kernel path takes at XDP is not heard; a daemon that runs leaves it to tc"
        );
    }
    for (name, missed) in listener.missed().filter(|(_, missed)| *missed > 0) {
        let missed = render::number::things(missed, "packet");
        eprintln!("mcr discover: {name}: {missed} came too fast; its rates are too low");
    }
    Ok(())
}

fn show(report: &Discovery, clear: &str, global: &Global) -> Result<(), Failure> {
    render::reply(global.json, report, || {
        format!("{clear}{}", report::text(report))
    })
}

/// Has the daemon on another host listen there.
fn run_elsewhere(args: &Args, global: &Global) -> Result<(), Failure> {
    let groups: Vec<String> = args.join.iter().map(ToString::to_string).collect();
    let query = DiscoverQuery {
        seconds: args.duration.as_secs_f64(),
        interfaces: args.interfaces.join(","),
        join: groups.join(","),
    };
    let control = Control::open(global)?;
    let mut pieces = control.pieces(&query.path())?;
    let mut reply = Vec::new();
    while let Some(piece) = control.next_piece(&mut pieces)? {
        reply.extend_from_slice(&piece);
    }
    let parsed = serde_json::from_slice(&reply);
    let report = parsed.or_fail("what the daemon tells is no report", Status::Unreachable)?;
    show(&report, "", global)?;
    capture::pass_on("discover", &pieces.said);
    Ok(())
}

/// The interfaces where a rule's packets are taken at XDP, according to the daemon: a process that
/// captures for it may not inspect programs.
fn at_xdp_by_daemon(global: &Global, interfaces: &[Interface]) -> Option<Vec<String>> {
    let stats = Control::open(global).ok()?.stats().ok()?;
    let inputs = stats.rules.iter().flat_map(|rule| &rule.inputs);
    let at_xdp = inputs.filter(|input| input.hook.as_deref() == Some("xdp"));
    let endpoints: Vec<Endpoint> = at_xdp.filter_map(|input| input.at.parse().ok()).collect();
    let is_taken = |link: &&Interface| endpoints.iter().any(|input| is_on(input, link));
    let links = interfaces.iter().filter(is_taken);
    Some(links.map(|link| link.name.clone()).collect())
}

const CLEAR: &str = "\x1b[H\x1b[2J";

/// The rules of the daemon, if it sees the same interfaces.
fn rules(global: &Global, interfaces: &[Interface]) -> Result<RuleSet, Failure> {
    let control = Control::open(global)?;
    let documents = control.rules()?.rules;
    let links = control.interfaces()?;
    let is_seen = |here: &Interface| {
        let mut links = links.iter();
        links.any(|link| (link.index, &link.name) == (here.index, &here.name))
    };
    if let Some(Interface { name, .. }) = interfaces.iter().find(|link| !is_seen(link)) {
        let message =
            format!("the daemon does not see {name}: it runs in another network namespace");
        return Err(unavailable(message));
    }
    RuleSet::from_documents(&documents, Policy::PERMISSIVE)
        .map_err(|problems| Failure::new(Status::Refused, problems))
}

/// Joins the groups on each of the interfaces until the returned value is dropped.
fn join(groups: &[IpAddr], interfaces: &[Interface]) -> Result<Memberships, Failure> {
    let mut memberships = Memberships::new();
    let requested = groups.iter().flat_map(|group| {
        interfaces.iter().map(|interface| Membership {
            interface: interface.index,
            group: *group,
            source: None,
        })
    });
    let refused = memberships.reconcile(&requested.collect::<BTreeSet<_>>());
    match refused.into_iter().next() {
        Some(error) => Err(unavailable(error)),
        None => Ok(memberships),
    }
}

fn group(text: &str) -> Result<IpAddr, String> {
    let address: Option<IpAddr> = text.parse().ok();
    let group = address.filter(IpAddr::is_multicast);
    group.ok_or_else(|| "not a multicast group".to_owned())
}
