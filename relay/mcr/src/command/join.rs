//! `mcr join` and `mcr leave`: groups that the daemon joins independently of the rules.

use std::time::{Duration, SystemTime};

use api::reply::JoinStatus;
use api::request::Transaction;
use config::StaticJoin;
use serde_json::json;

use crate::completion;
use crate::control::Control;
use crate::failure::Failure;
use crate::global::Global;
use crate::render;
use crate::save::Configuration;
use crate::terms::Terms;

/// Join groups on an interface whatever the rules say, or list what is joined so.
///
/// The daemon reports the groups to the network (IGMPv3, MLDv2) and keeps them joined over restarts
/// and links that come and go, so that a switch or a router sends them here: to see a stream with other
/// tools, to have it flowing before a rule is added, or as smcroute's static groups. Nothing is relayed,
/// and no rule is changed. In a configuration that is join = ["239.1.1.1%eth1"]. Without a group the
/// joins are listed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr join 239.1.1.1%eth1
  mcr join 10.0.0.5@232.1.1.1%eth1 ff3e::1%eth1      (S,G), and IPv6
  mcr join 239.1.1.0/28%eth1 --duration 1h           16 groups, for an hour
  mcr join                                           list them")]
pub(crate) struct JoinArgs {
    /// GROUP%IFACE; GROUP may be a range, and have sources before an @
    #[arg(value_name = "GROUP%IFACE", add = completion::group())]
    groups: Vec<StaticJoin>,
    /// Leave them again after this time, such as 90s or 1h
    #[arg(short, long, value_name = "TIME", value_parser = super::traffic_run::seconds)]
    #[arg(requires = "groups", conflicts_with = "save")]
    duration: Option<Duration>,
    #[command(flatten)]
    terms: Terms,
}

/// Leave groups that mcr join joined, all of those named or none.
///
/// Exits with status 3 if one of them is not joined so. What rules need stays joined.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr leave 239.1.1.1%eth1")]
pub(crate) struct LeaveArgs {
    /// GROUP%IFACE as it was joined
    #[arg(value_name = "GROUP%IFACE", required = true, add = completion::joined())]
    groups: Vec<StaticJoin>,
    #[command(flatten)]
    terms: Terms,
}

pub(crate) fn join(args: JoinArgs, global: &Global) -> Result<(), Failure> {
    if args.groups.is_empty() {
        return list(global);
    }
    let until = args.duration.map(|duration| {
        let since_epoch = (SystemTime::now() + duration).duration_since(SystemTime::UNIX_EPOCH);
        since_epoch.unwrap_or_default().as_secs_f64().ceil() as u64
    });
    let joins = args.groups.into_iter().map(|join| StaticJoin {
        until: until.or(join.until),
        ..join
    });
    let transaction = Transaction {
        join: joins.collect(),
        ..Transaction::default()
    };
    change("join", &transaction, &args.terms, global)
}

pub(crate) fn leave(args: LeaveArgs, global: &Global) -> Result<(), Failure> {
    let transaction = Transaction {
        leave: args.groups,
        ..Transaction::default()
    };
    change("leave", &transaction, &args.terms, global)
}

fn change(
    command: &str,
    transaction: &Transaction,
    terms: &Terms,
    global: &Global,
) -> Result<(), Failure> {
    let (control, saving) = terms.open(global)?;
    let change = control.transaction(transaction)?;
    super::print_change(command, &change, global)?;
    terms.finish((control, saving), &change, Configuration::write_joins)
}

fn list(global: &Global) -> Result<(), Failure> {
    let joins = Control::open(global)?.status()?.joins;
    if global.json {
        return Ok(render::json(&json!({ "joins": joins }))?);
    }
    if joins.is_empty() {
        eprintln!("nothing is joined but what rules need; join with `mcr join GROUP%IFACE`");
        return Ok(());
    }
    let mut table = render::empty_table(&["JOIN", "JOINED", "LEFT", "REASON"]);
    for join in &joins {
        table.add_row(vec![
            join.at.clone().into(),
            render::state_cell(if join.joined { "yes" } else { "no" }),
            remaining(join).into(),
            join.reason.clone().unwrap_or_default().into(),
        ]);
    }
    Ok(render::text(&render::table_text(&table))?)
}

/// How long a group stays joined; empty where nothing ends it.
fn remaining(join: &JoinStatus) -> String {
    let Some(until) = join.until else {
        return String::new();
    };
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(until);
    let remaining = until.duration_since(SystemTime::now()).unwrap_or_default();
    render::times::duration(remaining.as_secs_f64())
}
