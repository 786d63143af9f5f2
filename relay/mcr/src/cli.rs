//! The command line: the list of subcommands, and how each is run. No subcommand imports it.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::command;
use crate::failure::Failure;
use crate::global::Global;
use crate::hosts;

/// Relay UDP multicast between networks that multicast routing cannot join.
#[derive(Debug, Parser)]
#[command(
    name = "mcr",
    version,
    arg_required_else_help = true,
    after_help = EXAMPLES,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  mcr demo                                                    see it work
  mcr run &                                                   start the daemon
  mcr add 239.1.1.1%eth0:5001 239.10.1.1%eth1:6001            relay a stream
  mcr stats --watch                                           watch it

Exit status: 0 done, 1 refused by the daemon, 2 usage, 3 no such rule or already there,
4 daemon unreachable, 5 loss or error found, 69 interface or service unavailable,
77 missing privilege, 78 bad configuration.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(command::run::Args),
    Add(command::add::Args),
    Remove(command::remove::Args),
    Change(command::change::Args),
    Enable(command::enable::EnableArgs),
    Disable(command::enable::DisableArgs),
    Switch(command::switch::Args),
    Acknowledge(command::acknowledge::Args),
    Join(command::join::JoinArgs),
    Leave(command::join::LeaveArgs),
    List(command::list::Args),
    Show(command::show::Args),
    Stats(command::stats::Args),
    History(command::history::Args),
    Status(command::status::Args),
    Stop(command::stop::Args),
    Top(command::top::Args),
    Events(command::events::Args),
    Explain(command::explain::Args),
    Tap(command::tap::Args),
    Discover(command::discover::Args),
    Log(command::log::Args),
    Check(command::check::Args),
    Config(command::config::Args),
    Diff(command::apply::DiffArgs),
    Apply(command::apply::Args),
    Reload(command::reload::Args),
    Rollback(command::rollback::Args),
    Confirm(command::rollback::ConfirmArgs),
    Save(command::rollback::SaveArgs),
    Generations(command::rollback::GenerationsArgs),
    Export(command::export::Args),
    Import(command::import::Args),
    Fleet(command::fleet::Args),
    Token(command::token::Args),
    Notify(command::notify::Args),
    Send(command::send::Args),
    Receive(command::receive::Args),
    Doctor(command::doctor::Args),
    Demo(command::demo::Args),
    Bench(command::bench::Args),
    Completions(command::completions::Args),
    Man(command::man::Args),
    #[command(hide = true)]
    Complete(command::complete::Args),
    #[command(hide = true)]
    Guard(command::guard::Args),
    #[command(hide = true)]
    Keeper(command::keeper::Args),
    #[command(hide = true)]
    Worker(command::worker::Args),
}

impl Cli {
    /// Reads the command line, with the name of its subcommand for messages; ends the process
    /// where it is wrong or asks for help.
    pub(crate) fn read() -> (Self, String) {
        let matches = definition().get_matches();
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        let read = Self::from_arg_matches(&matches).and_then(|mut cli| {
            cli.global.settle(&matches)?;
            Ok(cli)
        });
        match read {
            Ok(cli) => (cli, name),
            Err(error) => error.format(&mut definition()).exit(),
        }
    }
}

/// Runs the subcommand that the command line names.
pub(crate) fn run(cli: Cli, name: &str) -> Result<ExitCode, Failure> {
    let mut global = cli.global;
    if let Some(asked) = &global.host {
        let names = hosts::meant(asked, name)?;
        if name == "top" {
            // It shows them side by side itself.
            global.host = Some(names.join(","));
        } else if names.len() > 1 || asked == "all" && !names.is_empty() {
            return hosts::run_at_each(&names, name, global.json);
        }
    }
    match cli.command {
        Command::Run(args) => command::run::run(args, &global),
        Command::Add(args) => command::add::run(args, &global),
        Command::Remove(args) => command::remove::run(args, &global),
        Command::Change(args) => command::change::run(&args, &global),
        Command::Enable(args) => command::enable::enable(&args, &global),
        Command::Disable(args) => command::enable::disable(&args, &global),
        Command::Switch(args) => command::switch::run(&args, &global),
        Command::Acknowledge(args) => command::acknowledge::run(args, &global),
        Command::Join(args) => command::join::join(args, &global),
        Command::Leave(args) => command::join::leave(args, &global),
        Command::List(args) => command::list::run(&args, &global),
        Command::Show(args) => command::show::run(&args, &global),
        Command::Stats(args) => command::stats::run(&args, &global),
        Command::History(args) => command::history::run(&args, &global),
        Command::Status(args) => command::status::run(&args, &global),
        Command::Stop(args) => command::stop::run(&args, &global),
        Command::Top(args) => command::top::run(&args, &global),
        Command::Explain(args) => command::explain::run(&args, &global),
        Command::Tap(args) => command::tap::run(&args, &global),
        Command::Discover(args) => command::discover::run(&args, &global),
        Command::Events(args) => command::events::run(&args, &global),
        Command::Log(args) => command::log::run(&args, &global),
        Command::Config(args) => command::config::run(&args),
        Command::Check(args) => command::check::run(&args, &global),
        Command::Diff(args) => command::apply::diff(&args, &global),
        Command::Apply(args) => command::apply::run(&args, &global),
        Command::Reload(args) => command::reload::run(&args, &global),
        Command::Rollback(args) => command::rollback::run(&args, &global),
        Command::Save(args) => command::rollback::save(&args, &global),
        Command::Confirm(args) => command::rollback::confirm(&args, &global),
        Command::Generations(args) => command::rollback::generations(&args, &global),
        Command::Export(args) => command::export::run(&args, &global),
        Command::Import(args) => command::import::run(&args, &global),
        Command::Fleet(args) => command::fleet::run(&args, &global),
        Command::Token(args) => command::token::run(&args, &global),
        Command::Notify(args) => command::notify::run(&args, &global),
        Command::Send(args) => command::send::run(&args, global.json),
        Command::Receive(args) => command::receive::run(&args, global.json),
        Command::Doctor(args) => command::doctor::run(&args, &global),
        Command::Demo(args) => command::demo::run(&args, global.json),
        Command::Bench(args) => command::bench::run(&args, global.json),
        Command::Completions(args) => command::completions::run(&args),
        Command::Man(args) => command::man::run(&args, definition()),
        Command::Complete(args) => command::complete::run(args, definition()),
        Command::Guard(args) => command::guard::run(&args),
        Command::Keeper(args) => command::keeper::run(&args),
        Command::Worker(args) => Ok(command::worker::run(&args)),
    }
}

/// The whole command line as clap sees it, for completions and manual pages.
fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use config::{Config, ConfigFile};
    use rules::ruleset::Policy;

    use super::*;

    /// The documents for users, by name.
    fn documents() -> Vec<(&'static str, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |name| (name, fs::read_to_string(root.join(name)).unwrap());
        [
            "README.md",
            "docs/install.md",
            "docs/run.md",
            "docs/watch.md",
            "docs/trouble.md",
        ]
        .map(read)
        .into()
    }

    /// The words of a command: as a shell splits them, which single quotes keep together.
    fn words(command: &str) -> Vec<String> {
        let mut is_quoted = false;
        let ends = |letter: char| {
            is_quoted ^= letter == '\'';
            letter.is_whitespace() && !is_quoted
        };
        let words = command.split(ends).filter(|word| !word.is_empty());
        words.map(|word| word.replace('\'', "")).collect()
    }

    #[test]
    fn commands_in_the_documents_are_well_formed() {
        let mut seen = 0;
        for (name, text) in documents() {
            let written = |line: &str| {
                let shown = line.strip_prefix("    ").or(line.strip_prefix("$ "));
                shown.is_some_and(|command| command.starts_with("mcr "))
            };
            for line in text.lines().filter(|line| written(line)) {
                let command = line.trim_start_matches("$ ");
                let command = command
                    .split(['>', '&', '|', '#'])
                    .next()
                    .unwrap_or_default();
                let parsed = Cli::try_parse_from(words(command));
                assert!(parsed.is_ok(), "{name}: {line}: {}", parsed.unwrap_err());
                seen += 1;
            }
        }
        assert!(seen > 5, "{seen}");
    }

    #[test]
    fn configurations_in_the_documents_are_good() {
        let mut seen = 0;
        for (name, text) in documents() {
            for block in text.split("```toml\n").skip(1) {
                let file = ConfigFile {
                    name: name.to_owned(),
                    text: block.split("```").next().unwrap_or_default().to_owned(),
                };
                let loaded = Config::load(&[file], Policy::default());
                assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
                seen += 1;
            }
        }
        assert!(seen > 1, "{seen}");
    }

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn every_help_has_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let line = format!("\n  {}", command.get_bin_name().unwrap_or_default());
            let name = command.get_name();
            assert!(
                help.contains("Examples:") && help.contains(&line),
                "{name}: {help}"
            );
            let below = command.get_subcommands();
            below
                .filter(|command| !command.is_hide_set() && command.get_name() != "help")
                .for_each(check);
        }
        let mut definition = definition();
        definition.build();
        check(&definition);
    }
}
