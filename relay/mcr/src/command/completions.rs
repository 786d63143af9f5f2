//! `mcr completions`: what a shell needs to complete the command line.

use crate::failure::Failure;
use crate::render;

/// Print completions for a shell, names of rules and interfaces included.
///
/// The script asks the running daemon while you type.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mcr completions bash > /usr/share/bash-completion/completions/mcr
  mcr completions zsh > /usr/local/share/zsh/site-functions/_mcr
  mcr completions fish > ~/.config/fish/completions/mcr.fish
  source <(mcr completions bash)                              for this shell only")]
pub(crate) struct Args {
    /// The shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    Ok(render::text(match args.shell {
        Shell::Bash => include_str!("completions/mcr.bash"),
        Shell::Zsh => include_str!("completions/mcr.zsh"),
        Shell::Fish => include_str!("completions/mcr.fish"),
    })?)
}
