//! `mcr check`: reads a configuration and reports what is wrong with it, without a daemon.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use api::request::RULES_MAX;
use bpf::merge_layout::Merge;
use compile::table::Path;
use config::{Config, MAX_RULES};
use daemon::DaemonError;
use dataplane::Capacity;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nameindex;
use rules::near::nearest;
use rules::ruleset::{Policy, RuleSet};
use serde_json::{Value, json};

use crate::discover::ip;
use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::{configuration, render};

/// Check a configuration file and the files that belong to it, without a daemon.
///
/// Exits with status 78 if something is wrong, and says what and where; with --json on standard output,
/// too, as errors with file, line and message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr check /etc/mcr/mcr.toml
  generate-rules | mcr check -")]
pub(crate) struct Args {
    /// The configuration, TOML; - is standard input
    file: PathBuf,
    /// Permit 224.0.0.0/24 and ff02::/16 as inputs, or not, as mcr run does with this option
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_link_local: Option<bool>,
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let policy = Policy {
        allow_link_local: args.allow_link_local,
    };
    let refuse = |failure: Failure, errors: Value| {
        if global.json {
            render::json(&json!({ "file": args.file, "errors": errors }))?;
        }
        Err(failure)
    };
    let config = match configuration::load(&args.file, policy) {
        Ok(config) => config,
        Err(error) => {
            let errors = match &error {
                DaemonError::Config(errors) => json!(errors.0),
                error => json!([{ "message": error.to_string() }]),
            };
            return refuse(Failure::with_code(error.exit_code(), error), errors);
        }
    };
    let Config {
        rules, settings, ..
    } = &config;
    if let Err(failure) = require_room(rules, settings.daemon.max_rules) {
        let errors = json!([{ "message": failure.to_string() }]);
        return refuse(failure, errors);
    }
    let mut warnings = rules::mixed::mixed(rules.iter(), rules.iter());
    warnings.extend(rules::payload::spoilt(rules.iter()));
    warnings.extend(unknown_interfaces(rules));
    warnings.extend(unknown_addresses(rules));
    // No errors: the file may be for another host.
    warnings.extend(daemon::named_files::troubles(&config));
    super::warn("check", &warnings);
    let merges = rules
        .iter()
        .filter_map(|rule| rule.merge.or_else(|| rule.passes_once()));
    let memory: u64 = merges.map(|merge| Merge::memory(&merge)).sum();
    let json = json!({ "file": args.file, "rules": rules.len(), "warnings": warnings,
        "merge_memory_bytes": memory });
    render::reply(global.json, &json, || {
        let memory = match memory {
            0 => String::new(),
            _ => format!(
                "; up to {} remember what passed of merged rules",
                render::bytes(memory)
            ),
        };
        let (file, rules) = (args.file.display(), rules.len() as u64);
        format!(
            "{file}: {}, good{memory}",
            render::number::things(rules, "rule")
        )
    })
}

/// Warnings about names of interfaces that do not exist here, but one letter away from one that
/// does. Others are accepted: a file that is written on another host may name that one's
/// interfaces.
fn unknown_interfaces(rules: &RuleSet) -> Vec<String> {
    let Ok(links) = if_nameindex() else {
        return Vec::new();
    };
    let names = links.iter().filter_map(|link| link.name().to_str().ok());
    let existing: Vec<&str> = names.collect();
    let mut warnings = BTreeSet::new();
    for rule in rules.iter() {
        let outputs = rule.outputs.iter().map(|output| &output.to);
        let ends = rule.inputs.iter().chain(outputs);
        for (end, name) in ends.filter_map(|end| Some((end, end.interface.as_deref()?))) {
            let is_here = end.has_wildcard() || existing.contains(&name);
            let near = nearest(name, existing.iter().copied()).filter(|_| !is_here);
            warnings.extend(near.map(|near| {
                format!(
                    "rule {:?}: {end}: there is no interface {name} here; did you mean {near}?",
                    rule.name
                )
            }));
        }
    }
    warnings.into_iter().collect()
}

/// Warnings about inputs at addresses that this host does not have: perhaps groups were meant.
fn unknown_addresses(rules: &RuleSet) -> Vec<String> {
    let links = getifaddrs().into_iter().flatten();
    let addresses = links.flat_map(|link| [link.address, link.broadcast]);
    let own: BTreeSet<IpAddr> = addresses.flatten().filter_map(|it| ip(&it)).collect();
    let inputs = rules
        .iter()
        .flat_map(|rule| rule.inputs.iter().map(move |input| (rule, input)));
    let unknown = inputs.filter(|(_, input)| {
        let address = input.destination.address;
        let is_general = input.is_every_address() || address == IpAddr::from([255; 4]);
        !input.is_multicast() && !is_general && !own.contains(&address)
    });
    let warnings = unknown.map(|(rule, input)| {
        format!(
            "rule {:?}: input {input}: {} is no group and no address of this host; if a group was meant, \
             those begin with 224 to 239, or ff",
            rule.name, input.destination
        )
    });
    warnings.collect()
}

/// Refuses more streams than the kernel path of a daemon for `max_rules` has room for: each input
/// takes a route, or one for each source that it names.
pub(super) fn require_room(rules: &RuleSet, max_rules: Option<u32>) -> Result<(), Failure> {
    let in_kernel = rules
        .iter()
        .filter(|rule| rule.path != Some(Path::Userspace));
    let inputs = in_kernel.flat_map(|rule| &rule.inputs);
    let routes: usize = inputs.map(|input| input.sources.len().max(1)).sum();
    let most = u32::try_from(RULES_MAX).unwrap_or(u32::MAX);
    let room = Capacity::for_rules(max_rules.unwrap_or(MAX_RULES).min(most)).routes as usize;
    if routes <= room {
        return Ok(());
    }
    let message = format!(
        "{routes} routes needed, the kernel path has room for {room}: raise max_rules of \
         [daemon], up to {RULES_MAX}, or put some of the rules on the userspace path \
         (path = \"userspace\"), or in another instance"
    );
    Err(Failure::new(Status::Configuration, message))
}
