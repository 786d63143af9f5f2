//! `mcr add`: one more rule, or many from standard input.

use std::io;

use api::request::Transaction;
use clap::Parser;
use compile::placement::PathChoice;
use compile::table::LocalDelivery;
use rules::document::{
    FailoverDocument, HealthDocument, MergeDocument, OutputDocument, RuleDocument, Scalar,
};
use rules::rule;
use rules::ruleset::{Policy, RuleSet};

use crate::completion;
use crate::failure::{Failure, OrFail, Status, usage};
use crate::global::Global;
use crate::render;
use crate::rows;
use crate::selection::label;
use crate::terms::Terms;

/// Add a rule: relay what arrives at INPUT to every OUTPUT.
///
/// Prints the rule's name. A rule for an interface that does not exist yet is accepted with a
/// warning, and waits. Exits with status 3 if there is a rule of that name already.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "mcr add [OPTIONS] INPUT OUTPUT...\n       mcr add - < RULES"
)]
pub(crate) struct Args {
    /// [SOURCE@]GROUP%IFACE:PORT, ADDRESS of this host or `unicast` for GROUP; - reads rules from standard input, a line each, written like
    /// the arguments of this command
    #[arg(add = completion::endpoint())]
    input: String,
    /// GROUP%IFACE:PORT or ADDRESS[%IFACE]:PORT, with options after commas: ttl=N|dec,
    /// source=ADDR|keep, sport=N, dscp=N, limit=RATE, burst=SIZE
    #[arg(value_name = "OUTPUT", add = completion::endpoint())]
    outputs: Vec<String>,
    /// Name of the rule; made from the input if not given: 239.1.1.1%eth0:5001 becomes
    /// eth0-239.1.1.1-5001
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A further input, relayed like the first; may be given several times
    #[arg(long = "input", value_name = "INPUT")]
    further_inputs: Vec<String>,
    /// Path to force the rule to
    #[arg(long, value_name = "PATH", value_parser = rows::word::<PathChoice>())]
    path: Option<PathChoice>,
    /// Whether this host's own sockets get a copy as well
    #[arg(long, value_parser = rows::word::<LocalDelivery>())]
    local: Option<LocalDelivery>,
    /// Cap on what the rule accepts: 5000pps, 20Mbit
    #[arg(long, value_name = "RATE")]
    limit: Option<String>,
    /// Burst the cap allows: packets, or a size such as 1Mbit
    #[arg(long, value_name = "SIZE", requires = "limit")]
    burst: Option<String>,
    /// Relay one input, the first that delivers, while the others stand by:
    /// silence=TIME,revert=TIME|never,on=silence|degraded
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = FailoverDocument::from_text)]
    failover: Option<FailoverDocument>,
    /// Make one stream of inputs that bring the same, each packet once: rtp, moldudp64, mdp3, payload,
    /// or by=WORD,window=TIME,packets=N and, for by=sequence, offset=N,bytes=N,order=big|little,
    /// session=OFFSET:BYTES,count=OFFSET:BYTES; see mcr.toml(5)
    #[arg(long, value_name = "WORD|KEY=VALUE,...", value_parser = MergeDocument::from_text,
        add = completion::merge())]
    merge: Option<MergeDocument>,
    /// Carry what comes to the group INPUT, written GROUP:PORT, by each of these interfaces out of all
    /// others, and no payload twice: for discovery. After the interfaces isolated=IFACE for each of
    /// those that do not hear each other, source=keep, ttl=N|dec, window=TIME; see mcr.toml(5)
    #[arg(long, value_name = "IFACE,IFACE,...", value_delimiter = ',')]
    reflect: Vec<String>,
    /// Watch the stream: silence=TIME|off, rate_min=RATE, rate_max=RATE, content=auto|rtp|ts|none,
    /// clock=HZ, joined by commas; see mcr.toml(5)
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = HealthDocument::from_text)]
    health: Option<HealthDocument>,
    /// What it is chosen by, as in mcr list -l site=y; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// What to say of it
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    #[command(flatten)]
    terms: Terms,
}

const EXAMPLES: &str = "\
Examples:
  mcr add 239.1.1.1%eth0:5001 239.10.1.1%eth1:6001
  mcr add 10.0.0.5@232.1.1.1%eth0:5001 10.9.9.9:7000 --name cam1      one sender, to unicast
  mcr add 239.1.1.1%eth0:5001 239.10.1.1%eth1:6001,ttl=16 239.10.1.2%eth2:6001,dscp=34
  mcr add 239.1.1.1%eth0:5001 239.10.1.1%eth1:6001 --health silence=2s,rate_min=900pps
  mcr add 239.1.1.1%eth0:5001 239.10.1.1%eth1:6001 --input 239.2.1.1%eth2:5001 --failover silence=200ms
  mcr add 239.1.1.1%red:5001 239.10.1.1%eth1:6001 --input 239.2.1.1%blue:5001 --merge rtp
  mcr add 224.0.0.251:5353 --reflect eth0,eth1 --name mdns
  echo '239.1.1.2%eth0:5001 10.9.9.9:7001 --name cam2' | mcr add -    all lines or none";

pub(crate) fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let terms = args.terms.clone();
    let documents = if args.input == "-" {
        refuse_options(&args)?;
        batch()?
    } else {
        vec![checked_document(args)?]
    };
    let names: Vec<String> = documents.iter().map(|rule| rule.name.clone()).collect();
    let (control, saving) = terms.open(global)?;
    let change = control.transaction(&Transaction {
        add: documents,
        ..Transaction::default()
    })?;
    super::warn("add", &change.warnings);
    render::reply(global.json, &change, || names.join("\n"))?;
    terms.finish_rules((control, saving), &change, &names)
}

/// Refuses arguments beside `-`: each line has its own.
fn refuse_options(args: &Args) -> Result<(), Failure> {
    let options = [
        ("OUTPUT", !args.outputs.is_empty()),
        ("--name", args.name.is_some()),
        ("--input", !args.further_inputs.is_empty()),
        ("--path", args.path.is_some()),
        ("--local", args.local.is_some()),
        ("--limit", args.limit.is_some()),
        ("--burst", args.burst.is_some()),
        ("--failover", args.failover.is_some()),
        ("--merge", args.merge.is_some()),
        ("--reflect", !args.reflect.is_empty()),
        ("--health", args.health.is_some()),
        ("--label", !args.labels.is_empty()),
        ("--comment", args.comment.is_some()),
    ];
    let given = options.iter().filter(|(_, is_given)| *is_given);
    let names = given.map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        return Ok(());
    }
    let message =
        format!("{names} beside -: write it on the lines of standard input that it is meant for");
    Err(usage(message))
}

/// A line of standard input: the arguments of this command.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    rule: Args,
}

/// Reads rules from standard input, without empty lines and what follows a `#`. Reports every wrong
/// line.
fn batch() -> Result<Vec<RuleDocument>, Failure> {
    let text = io::read_to_string(io::stdin()).or_fail("standard input", Status::Usage)?;
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        if words.clone().next().is_none() {
            continue;
        }
        let parsed = Line::try_parse_from(words).map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            usage(first.trim_start_matches("error: ").to_owned())
        });
        let document = parsed.and_then(|line| {
            if line.rule.terms.are_given() {
                Err(usage(
                    "--save, --message, --confirm, --yes: give them beside -, for all lines"
                        .to_owned(),
                ))
            } else {
                checked_document(line.rule)
            }
        });
        match document {
            Ok(document) => documents.push(document),
            Err(failure) => {
                let message = failure.to_string();
                let lines = message.lines();
                errors.extend(lines.map(|line| format!("standard input, line {number}: {line}")));
            }
        }
    }
    match (documents.is_empty(), errors.is_empty()) {
        (_, false) => Err(usage(errors.join("\n"))),
        (true, true) => Err(usage("standard input: no rules in it".to_owned())),
        (false, true) => Ok(documents),
    }
}

fn checked_document(args: Args) -> Result<RuleDocument, Failure> {
    if args.outputs.is_empty() && args.reflect.is_empty() {
        let message = format!("{}: no OUTPUT given; mcr add INPUT OUTPUT...", args.input);
        return Err(usage(message));
    }
    let document = if args.reflect.is_empty() {
        document(args)
    } else {
        reflecting(args)?
    };
    check(&document)?;
    Ok(document)
}

fn document(args: Args) -> RuleDocument {
    let mut inputs = args.further_inputs;
    inputs.insert(0, args.input);
    let derived = || inputs[0].parse().map(|input| rule::name_for(&input)).ok();
    // A check reports an input that cannot be parsed, under this name.
    let name = args
        .name
        .or_else(derived)
        .unwrap_or_else(|| "new".to_owned());
    RuleDocument {
        name,
        input: None,
        inputs,
        outputs: args.outputs.into_iter().map(OutputDocument::Text).collect(),
        path: args.path,
        local: args.local,
        limit: args.limit,
        burst: args.burst.map(Scalar::Text),
        failover: args.failover,
        merge: args.merge,
        health: args.health,
        enabled: None,
        comment: args.comment,
        labels: args.labels.into_iter().collect(),
        ..RuleDocument::default()
    }
}

/// A rule that reflects: INPUT is its group, from which its name is derived.
fn reflecting(mut args: Args) -> Result<RuleDocument, Failure> {
    let group = args.input.clone();
    let named =
        |input: rules::endpoint::Endpoint| format!("reflect-{}-{}", input.destination, input.ports);
    args.name = args.name.or_else(|| group.parse().map(named).ok());
    let words = std::mem::take(&mut args.reflect);
    let (options, interfaces): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| word.contains('='));
    let mut document = RuleDocument {
        inputs: args.further_inputs.clone(),
        mode: Some(rules::reflect::MODE.to_owned()),
        interfaces,
        group: Some(group),
        ..document(args)
    };
    for option in &options {
        let (key, value) = option.split_once('=').unwrap_or_default();
        let value = value.to_owned();
        match key {
            "source" => document.source = Some(value),
            "ttl" => document.ttl = Some(Scalar::Text(value)),
            "window" => document.window = Some(value),
            "isolated" => document.isolated.push(value),
            _ => {
                let message = format!(
                    "--reflect {option}: there is no such key; there are source, ttl, window, isolated"
                );
                return Err(usage(message));
            }
        }
    }
    Ok(document)
}

/// Checks the rule by itself: what is wrong there is a usage error. The daemon decides about inputs
/// that need permission, and about loops, which it looks for among all rules.
pub(super) fn check(document: &RuleDocument) -> Result<(), Failure> {
    let document = std::slice::from_ref(document);
    let Err(mut problems) = RuleSet::from_documents(document, Policy::PERMISSIVE) else {
        return Ok(());
    };
    problems.0.retain(|problem| !problem.what.is_loop());
    if problems.0.is_empty() {
        Ok(())
    } else {
        Err(usage(problems))
    }
}
