//! `mcr token`: makes tokens for clients of other hosts, and lists the clients.

use std::time::Duration;

use api::reply::ApiClientStatus;
use comfy_table::Cell;
use config::Role;
use rules::setting::Setting as _;
use serde_json::json;

use crate::control::Control;
use crate::failure::{Failure, unavailable};
use crate::global::Global;
use crate::render::{self, Column};

/// Make tokens for clients of other hosts, and list the clients
///
/// A client shows its token with every request, over TLS: `mcr --host` by `token_file`, Prometheus by
/// `authorization`. The daemon knows the hash alone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr token create --name noc --role operate --expires 90d
  mcr token list")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(CreateArgs),
    List(ListArgs),
}

/// Make a token: it is shown once, with what the configuration is to say of it.
///
/// Nothing is changed. What is printed goes into the daemon's configuration; then `mcr reload`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr token create --name noc --role operate --expires 90d
  mcr token create --name prometheus --role view > prometheus.txt")]
struct CreateArgs {
    /// What the client is called
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: String,
    /// What it may do
    #[arg(long, value_name = "ROLE", value_parser = role, default_value = "view")]
    role: Role,
    /// After how long it ends, as in 90d or 12h [default: never]
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    expires: Option<Duration>,
}

/// List the clients that the daemon's configuration names, and when they were last served.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mcr token list
  mcr token list --json | jq '.[] | select(.last_used == null).name'")]
struct ListArgs {}

pub(crate) fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    match &args.command {
        Command::Create(args) => create(args, global),
        Command::List(ListArgs {}) => list(global),
    }
}

fn create(args: &CreateArgs, global: &Global) -> Result<(), Failure> {
    let created = tls::token::create();
    let token = created.ok_or_else(|| unavailable("the kernel gives no chance"))?;
    let hash = tls::token::hash(&token);
    let expires = args.expires.map(|lifetime| {
        let now = sys::clock::realtime_ns() / 1_000_000_000;
        config::moment_text(now + lifetime.as_secs())
    });
    let CreateArgs { name, role, .. } = args;
    if global.json {
        let client = json!({ "name": name, "role": role, "token": hash, "expires": expires });
        return Ok(render::json(&json!({ "token": token, "client": client }))?);
    }
    let ends = expires.map_or_else(String::new, |expires| format!("expires = \"{expires}\"\n"));
    let client =
        format!("[[api.client]]\nname = \"{name}\"\nrole = \"{role}\"\ntoken = \"{hash}\"\n{ends}");
    render::text(&format!("{token}\n\n{client}"))?;
    eprintln!(
        "mcr token: the first line is the client's, and shown only now; the rest goes into the \
         daemon's configuration, then mcr reload"
    );
    Ok(())
}

fn list(global: &Global) -> Result<(), Failure> {
    let clients = Control::open(global)?.clients()?;
    let text = || render::table(CLIENTS, &clients).to_string();
    render::reply(global.json, &clients, text)
}

const CLIENTS: &[Column<ApiClientStatus>] = &[
    ("NAME", |client| Cell::new(&client.name)),
    ("ROLE", |client| Cell::new(&client.role)),
    ("BY", |client| Cell::new(&client.by)),
    ("FROM", |client| {
        if client.from.is_empty() {
            Cell::new("anywhere")
        } else {
            Cell::new(client.from.join(", "))
        }
    }),
    ("EXPIRES", |client| Cell::new(at(client.expires))),
    ("LAST USED", |client| {
        let address = client.last_from.as_ref();
        let from = address.map_or_else(String::new, |from| format!(" from {from}"));
        Cell::new(at(client.last_used) + &from)
    }),
];

fn at(moment: Option<u64>) -> String {
    moment.map_or("never".to_owned(), config::moment_text)
}

fn name(text: &str) -> Result<String, String> {
    let fits = (rules::rule::NAME.fits)(text);
    fits.then(|| text.to_owned())
        .ok_or_else(|| format!("give {}", rules::rule::NAME.remedy))
}

fn role(text: &str) -> Result<Role, String> {
    let parsed = Role::parse(text, &Role::FORM);
    parsed.map_err(|_| "give view, operate or change".to_owned())
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse().ok());
    let in_days = days.map(|days: u32| Duration::from_secs(86_400 * u64::from(days)));
    let time = in_days.or_else(|| rules::duration::parse(text));
    let most = Duration::from_secs(86_400 * 36_500);
    time.filter(|time| !time.is_zero() && *time <= most)
        .ok_or_else(|| "give a time, as in 90d or 12h".to_owned())
}
