//! The command line: the list of subcommands, and how each is run. No subcommand imports it.

use std::process::{ExitCode, Termination};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::command;
use crate::failure::Failure;
use crate::global::Global;
use crate::{each_host, hosts};

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

/// Declares the subcommands: the arguments of each, and what runs it.
macro_rules! commands {
    ($($(#[$hidden:meta])? $name:ident($args:ty) = $run:expr,)+) => {
        /// The subcommands.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($(#[$hidden])? $name($args),)+
        }

        impl Command {
            fn run(self, global: &Global) -> Result<ExitCode, Failure> {
                match self {
                    $(Self::$name(args) => outcome($run, args, global),)+
                }
            }
        }
    };
}

commands! {
    Run(command::run::Args) = command::run::run,
    Add(command::add::Args) = command::add::run,
    Remove(command::remove::Args) = command::remove::run,
    Change(command::change::Args) = |args, global| command::change::run(&args, global),
    Enable(command::enable::EnableArgs) = |args, global| command::enable::enable(&args, global),
    Disable(command::enable::DisableArgs) = |args, global| command::enable::disable(&args, global),
    Switch(command::switch::Args) = |args, global| command::switch::run(&args, global),
    Acknowledge(command::acknowledge::Args) = command::acknowledge::run,
    Join(command::join::JoinArgs) = command::join::join,
    Leave(command::join::LeaveArgs) = command::join::leave,
    List(command::list::Args) = |args, global| command::list::run(&args, global),
    Show(command::show::Args) = |args, global| command::show::run(&args, global),
    Stats(command::stats::Args) = |args, global| command::stats::run(&args, global),
    History(command::history::Args) = |args, global| command::history::run(&args, global),
    Status(command::status::Args) = |args, global| command::status::run(&args, global),
    Stop(command::stop::Args) = |args, global| command::stop::run(&args, global),
    Top(command::top::Args) = |args, global| command::top::run(&args, global),
    Events(command::events::Args) = |args, global| command::events::run(&args, global),
    Explain(command::explain::Args) = |args, global| command::explain::run(&args, global),
    Tap(command::tap::Args) = |args, global| command::tap::run(&args, global),
    Discover(command::discover::Args) = |args, global| command::discover::run(&args, global),
    Log(command::log::Args) = |args, global| command::log::run(&args, global),
    Check(command::check::Args) = |args, global| command::check::run(&args, global),
    Config(command::config::Args) = |args, _| command::config::run(&args),
    Diff(command::apply::DiffArgs) = |args, global| command::apply::diff(&args, global),
    Apply(command::apply::Args) = |args, global| command::apply::run(&args, global),
    Reload(command::reload::Args) = |args, global| command::reload::run(&args, global),
    Rollback(command::rollback::Args) = |args, global| command::rollback::run(&args, global),
    Confirm(command::rollback::ConfirmArgs) = |args, global| command::rollback::confirm(&args, global),
    Save(command::rollback::SaveArgs) = |args, global| command::rollback::save(&args, global),
    Generations(command::rollback::GenerationsArgs) = |args, global| command::rollback::generations(&args, global),
    Export(command::export::Args) = |args, global| command::export::run(&args, global),
    Import(command::import::Args) = |args, global| command::import::run(&args, global),
    Fleet(command::fleet::Args) = |args, global| command::fleet::run(&args, global),
    Token(command::token::Args) = |args, global| command::token::run(&args, global),
    Notify(command::notify::Args) = |args, global| command::notify::run(&args, global),
    Send(command::send::Args) = |args, global| command::send::run(&args, global.json),
    Receive(command::receive::Args) = |args, global| command::receive::run(&args, global.json),
    Doctor(command::doctor::Args) = |args, global| command::doctor::run(&args, global),
    Demo(command::demo::Args) = |args, global| command::demo::run(&args, global.json),
    Bench(command::bench::Args) = |args, global| command::bench::run(&args, global.json),
    Completions(command::completions::Args) = |args, _| command::completions::run(&args),
    Man(command::man::Args) = |args, _| command::man::run(&args, definition()),
    #[command(hide = true)]
    Complete(command::complete::Args) = |args, _| command::complete::run(args, definition()),
    #[command(hide = true)]
    Guard(command::guard::Args) = |args, _| command::guard::run(&args),
    #[command(hide = true)]
    Keeper(command::keeper::Args) = |args, _| command::keeper::run(&args),
    #[command(hide = true)]
    Worker(command::worker::Args) = |args, _| Ok(command::worker::run(&args)),
}

/// Runs a subcommand; one that returns no exit status succeeds.
fn outcome<A, T: Termination>(
    run: fn(A, &Global) -> Result<T, Failure>,
    args: A,
    global: &Global,
) -> Result<ExitCode, Failure> {
    run(args, global).map(Termination::report)
}

impl Cli {
    /// Parses the command line, and returns it with the name of its subcommand for messages. Ends the
    /// process if it is wrong or requests help.
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
    if let Some(requested) = &global.host {
        let names = hosts::resolve(requested, name)?;
        if name == "top" {
            // It shows several hosts side by side itself.
            global.host = Some(names.join(","));
        } else if names.len() > 1 || requested == "all" && !names.is_empty() {
            if let Command::Apply(args) = &cli.command {
                command::apply::ask_of(args, &global, &names)?;
            }
            return each_host::run_at_each(&names, name, &global);
        }
    }
    cli.command.run(&global)
}

/// The whole command line as clap sees it, for completions and manual pages.
fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
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

    /// Splits a command into words as a shell does, honouring single quotes.
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
                let command = line
                    .trim_start_matches("$ ")
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

    /// The flags of a manual page's options, as written there.
    fn flags(page: &str) -> BTreeSet<String> {
        let plain = page
            .replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fR", "");
        let heads = plain.lines().filter(|line| line.starts_with('-'));
        let words = heads.flat_map(|line| line.split([' ', ',', '[']));
        let is_flag = |word: &&str| word.starts_with('-') && word.ends_with(char::is_alphanumeric);
        words.filter(is_flag).map(str::to_owned).collect()
    }

    /// Every `--flag` that a text names.
    fn named(text: &str) -> BTreeSet<String> {
        let plain = text.replace("\\-", "-").replace("\\fR", " ");
        let is_end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
        let words = plain.split(is_end);
        let flags = words.filter(|word| word.len() > 2 && word.starts_with("--"));
        flags
            .map(|word| word.trim_end_matches('-').to_owned())
            .collect()
    }

    #[test]
    fn manual_pages_and_commands_have_the_same_flags() {
        fn visit(command: &clap::Command, pages: &mut BTreeMap<String, String>, all: &mut Flags) {
            let name = command.get_display_name().unwrap_or(command.get_name());
            let removed = pages.remove(&format!("{name}.1"));
            let page = removed.unwrap_or_else(|| panic!("{name} has no page"));
            let shown = command.get_arguments().filter(|one| !one.is_hide_set());
            let names = |one: &clap::Arg| {
                let short = one.get_short().map(|short| format!("-{short}"));
                short
                    .into_iter()
                    .chain(one.get_long().map(|long| format!("--{long}")))
            };
            let expected: BTreeSet<String> = shown.flat_map(names).collect();
            assert_eq!(flags(&page), expected, "{name}");
            all.0.extend(expected);
            all.1.push((name.to_owned(), named(&page)));
            let below = command.get_subcommands();
            below
                .filter(|command| !command.is_hide_set() && command.get_name() != "help")
                .for_each(|command| visit(command, pages, all));
        }
        type Flags = (BTreeSet<String>, Vec<(String, BTreeSet<String>)>);

        let directory = tempfile::tempdir().unwrap();
        let arguments = [
            "mcr",
            "man",
            "--directory",
            directory.path().to_str().unwrap(),
        ];
        let cli = Cli::try_parse_from(arguments).unwrap();
        cli.command.run(&cli.global).unwrap();
        let files = fs::read_dir(directory.path().join("man1")).unwrap();
        let pages = files.map(|page| {
            let page = page.unwrap();
            let text = fs::read_to_string(page.path()).unwrap();
            assert!(!text.contains(".SH EXTRA\nExamples:"), "{page:?}");
            (page.file_name().into_string().unwrap(), text)
        });
        let mut rest = pages.collect();
        let mut definition = definition();
        definition.build();
        let mut all = Flags::default();
        visit(&definition, &mut rest, &mut all);
        assert!(rest.is_empty(), "pages of no command: {:?}", rest.keys());
        let (existing, named) = all;
        for (page, named) in named {
            let strange: Vec<_> = named.difference(&existing).collect();
            assert!(strange.is_empty(), "{page} names {strange:?}");
        }
    }

    #[test]
    fn every_help_has_examples() {
        fn check(command: &clap::Command) {
            let after_help = command.get_after_help().map(ToString::to_string);
            let help = after_help.unwrap_or_default();
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
