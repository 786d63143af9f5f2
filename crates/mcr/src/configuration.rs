//! Configuration files as subcommands read them: like the daemon does, or from standard input.

use std::io;
use std::path::Path;

use model::config::{Config, ConfigFile};
use model::ruleset::Policy;

use crate::failure::{Failure, Status};

/// Reads a configuration file and the files that belong to it; `-` is standard input alone.
pub(crate) fn read(file: &Path, policy: Policy) -> Result<Config, Failure> {
    if file != Path::new("-") {
        let config = daemon::config::read(Some(file), policy);
        return config.map_err(|error| Failure::with_code(error.exit_code(), error));
    }
    let name = "standard input".to_owned();
    let text = io::read_to_string(io::stdin())
        .map_err(|error| Failure::new(Status::Configuration, format!("{name}: {error}")))?;
    Config::load(&[ConfigFile { name, text }], policy)
        .map_err(|errors| Failure::new(Status::Configuration, errors))
}
