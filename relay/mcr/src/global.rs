//! The global options, which every subcommand reads.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

/// Options that may stand before or after the subcommand.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Control socket of the daemon [default: /run/mcr/mcr.sock, or /run/mcr/NAME.sock for an
    /// instance]
    #[arg(
        long,
        global = true,
        env = "MCR_SOCKET",
        hide_env_values = true,
        value_name = "PATH"
    )]
    pub(crate) socket: Option<PathBuf>,
    /// Daemons on other hosts, by their names in ~/.config/mcr/hosts.toml, or all
    #[arg(
        long,
        global = true,
        env = "MCR_HOST",
        hide_env_values = true,
        value_name = "NAME[,NAME]"
    )]
    pub(crate) host: Option<String>,
    /// Name of the daemon, where several run side by side
    #[arg(long, global = true, value_name = "NAME", default_value = "default", value_parser = instance)]
    pub(crate) instance: String,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Global {
    /// Gives a local daemon on the command line precedence over a host from the environment.
    pub(crate) fn settle(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut leaf = matches;
        while let Some((_, below)) = leaf.subcommand() {
            leaf = below;
        }
        let is_written = |name| leaf.value_source(name) == Some(ValueSource::CommandLine);
        if is_written("socket") || is_written("instance") {
            if is_written("host") {
                let message = "--socket and --instance are of this host: leave them or --host out";
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
            }
            self.host = None;
        }
        Ok(())
    }

    /// The same for one host.
    pub(crate) fn at(&self, host: &str) -> Self {
        Self {
            host: Some(host.to_owned()),
            ..self.clone()
        }
    }

    /// The control socket that these options name.
    pub(crate) fn socket(&self) -> PathBuf {
        match &self.socket {
            // A name without a slash is a file in this directory, not another host.
            Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            None if self.instance == "default" => PathBuf::from("/run/mcr/mcr.sock"),
            None => PathBuf::from(format!("/run/mcr/{}.sock", self.instance)),
        }
    }
}

/// Checks an instance's name, which becomes part of file names.
fn instance(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if text.is_empty() || text.len() > 32 || !text.chars().all(allowed) {
        return Err("an instance name has 1 to 32 letters, digits, - or _".to_owned());
    }
    Ok(text.to_owned())
}
