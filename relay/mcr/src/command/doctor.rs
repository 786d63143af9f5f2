//! `mcr doctor`: reports what keeps multicast from flowing on this host, and mends what is safe.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use compile::placement::PathChoice;
use rules::ruleset::{Policy, RuleSet};
use serde_json::json;

use crate::command::without::Without;
use crate::control::Control;
use crate::doctor::snapshot::{Rules, Snapshot};
use crate::doctor::{self, CheckResult, Finding, Severity};
use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::{configuration, render};

const CONFIGURATION: &str = "/etc/mcr/mcr.toml";

/// Find what keeps multicast from flowing on this host.
///
/// Looks at interfaces, bridges, packet filters, offloads, other programs and privileges, with the
/// rules of the running daemon, of --config, or of /etc/mcr/mcr.toml. Where a rule of the daemon
/// receives nothing, it listens for what arrives instead. Says what it saw and what to do. Exits with
/// status 5 if something stops traffic, else with 4 if no daemon answers and no --config was given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr doctor                                judge the running rules
  mcr doctor --config new.toml              judge rules before they run
  mcr doctor --fix                          mend what is safe to mend, until the next boot
  mcr doctor --json | jq .findings")]
pub(crate) struct Args {
    /// Judge the rules of this file instead of the daemon's
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Mend what is safe: a forced IGMP version, receive offloads that cost packets, a missing
    /// querier on a bridge, a queue that copies overflow, a busy input that one CPU receives
    #[arg(long)]
    fix: bool,
    /// How long to listen where a rule receives nothing, in seconds; 0: not at all
    #[arg(long, value_name = "S", default_value = "3", value_parser = super::traffic_run::seconds)]
    listen: Duration,
    #[command(flatten)]
    without: Without,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<ExitCode, Failure> {
    let rules = listen(rules(args, global)?, args, global)?;
    let snapshot = Snapshot::read(rules, &args.without.features)?;
    let mut outcomes = doctor::examine(&snapshot);
    if args.fix {
        for outcome in &mut outcomes {
            outcome.findings.iter_mut().for_each(Finding::mend);
        }
    }
    let (origin, count) = (&snapshot.rules.origin, snapshot.rules.set.len());
    let findings = outcomes.iter().flat_map(|outcome| &outcome.findings);
    let checks = outcomes.iter().map(|outcome| outcome.check);
    let skipped = outcomes.iter().filter_map(|outcome| {
        let reason = outcome.skipped.as_ref()?;
        Some(json!({"check": outcome.check, "reason": reason}))
    });
    let json = json!({
        "rules": count,
        "rules_from": origin,
        "checks": checks.collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
        "findings": findings.clone().collect::<Vec<_>>(),
    });
    render::reply(global.json, &json, || report(origin, count, &outcomes))?;
    Ok(if findings.clone().any(Finding::stops) {
        ExitCode::from(Status::Loss as u8)
    } else if snapshot.rules.may_not_ask {
        ExitCode::from(Status::Privilege as u8)
    } else if snapshot.rules.stats.is_none() && args.config.is_none() {
        ExitCode::from(Status::Unreachable as u8)
    } else {
        ExitCode::SUCCESS
    })
}

/// The rules to judge: those of the file, else of the daemon, else of the usual file.
fn rules(args: &Args, global: &Global) -> Result<Rules, Failure> {
    if let Some(file) = &args.config {
        return of_file(file);
    }
    let failure = match of_daemon(global) {
        Ok(rules) => return Ok(rules),
        Err(failure) => failure,
    };
    let may_not_ask = failure.is(Status::Privilege);
    let path = global.socket();
    let socket = path.display();
    let reason = if may_not_ask {
        format!("the daemon at {socket} may not be asked")
    } else {
        format!("no daemon answers at {socket}")
    };
    let file = Path::new(CONFIGURATION);
    let (rules, origin) = if file.exists() {
        (of_file(file)?, format!("{CONFIGURATION}: {reason}"))
    } else {
        (
            Rules::default(),
            format!(
                "no rules: {reason} and there is no {CONFIGURATION}; name a file with --config"
            ),
        )
    };
    Ok(Rules {
        origin,
        unasked: Some(failure.to_string()),
        may_not_ask,
        ..rules
    })
}

/// Listens for the streams of rules that receive nothing, and takes what the daemon counted by
/// then.
fn listen(mut rules: Rules, args: &Args, global: &Global) -> Result<Rules, Failure> {
    rules.unheard.clone_from(&rules.unasked);
    match doctor::listen(&rules, args.listen) {
        Ok(None) => {}
        Ok(heard) => {
            rules = Rules {
                heard,
                ..of_daemon(global)?
            };
        }
        Err(failure) => rules.unheard = Some(failure.to_string()),
    }
    Ok(rules)
}

fn of_file(file: &Path) -> Result<Rules, Failure> {
    let config = configuration::read(file)?;
    Ok(Rules {
        choices: config.settings.path_choices(PathChoice::Auto),
        settings: config.settings,
        set: config.rules,
        origin: file.display().to_string(),
        unasked: Some("the rules of a file are judged, no daemon is asked".to_owned()),
        ..Rules::default()
    })
}

fn of_daemon(global: &Global) -> Result<Rules, Failure> {
    let control = Control::open(global)?;
    let running = control.rules()?;
    let set = RuleSet::from_documents(&running.rules, Policy::PERMISSIVE);
    Ok(Rules {
        set: set.map_err(|problems| Failure::new(Status::Refused, problems))?,
        origin: format!("the daemon at {}", global.socket().display()),
        settings: running.settings.unwrap_or_default(),
        status: Some(control.status()?),
        stats: Some(control.stats()?),
        // A daemon in no fleet refuses, and so does one older than fleets.
        fleet: control.fleet().ok(),
        ..Rules::default()
    })
}

fn report(origin: &str, rules: usize, outcomes: &[CheckResult]) -> String {
    let rules = render::number::things(rules as u64, "rule");
    let mut text = format!("{rules} from {origin}\n\n");
    for outcome in outcomes {
        let worst = outcome.findings.first().map(|finding| finding.severity);
        let fine = match outcome.skipped {
            Some(_) => "-",
            None => "ok",
        };
        let word = worst.map_or(fine, word);
        text.push_str(&format!(
            "{word:<6} {:<13} {}\n",
            outcome.check, outcome.covers
        ));
        if let Some(reason) = &outcome.skipped {
            text.push_str(&format!("       not looked at: {reason}\n"));
        }
        for finding in &outcome.findings {
            text.push_str(&paragraph(finding));
        }
    }
    let findings = || outcomes.iter().flat_map(|outcome| &outcome.findings);
    let of = |severity| findings().filter(move |finding| finding.severity == severity);
    let fixed = findings().filter(|finding| finding.fixed == Some(true));
    text.push_str(&format!(
        "\n{} found that stop traffic, {} that harm, {} to note; {} mended\n",
        of(Severity::Stops).count(),
        of(Severity::Harms).count(),
        of(Severity::Note).count(),
        fixed.count(),
    ));
    let mendable = findings().filter(|finding| finding.fix.is_some() && finding.fixed.is_none());
    if mendable.count() > 0 {
        text.push_str("mcr doctor --fix mends what stands under \"--fix:\"\n");
    }
    text
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Stops => "STOPS",
        Severity::Harms => "HARMS",
        Severity::Note => "note",
    }
}

fn paragraph(finding: &Finding) -> String {
    let mut text = format!(
        "       {} {}: {}\n",
        word(finding.severity),
        finding.subject,
        finding.evidence
    );
    if !finding.remedy.is_empty() {
        text.push_str(&format!("         do: {}\n", finding.remedy));
    }
    if let Some(fix) = &finding.fix {
        let done = match finding.fixed {
            Some(true) => "done",
            Some(false) => "failed",
            None => "--fix",
        };
        text.push_str(&format!("         {done}: {fix}\n"));
    }
    text
}
