//! Configuration files as subcommands read them: like the daemon does, or from standard input.

use std::fs;
use std::io;
use std::path::Path;

use config::{self, Config, ConfigFile};
use rules::document::RuleDocument;
use rules::ruleset::Policy;

use crate::failure::{Failure, Status};

/// Reads a configuration file and the files that belong to it; `-` is standard input alone.
pub(crate) fn read(file: &Path, policy: Policy) -> Result<Config, Failure> {
    if file != Path::new("-") {
        let config = daemon::config_files::read(Some(file), policy);
        return config.map_err(|error| Failure::with_code(error.exit_code(), error));
    }
    Config::load(&[standard_input()?], policy)
        .map_err(|errors| Failure::new(Status::Configuration, errors))
}

/// Reads a file of rules for a fleet; `-` is standard input.
pub(crate) fn read_fleet(path: &Path) -> Result<Vec<RuleDocument>, Failure> {
    let wrong = |what: String| Failure::new(Status::Configuration, what);
    let file = match path.to_str() {
        Some("-") => standard_input()?,
        _ => ConfigFile {
            name: path.display().to_string(),
            text: fs::read_to_string(path)
                .map_err(|error| wrong(format!("{}: {error}", path.display())))?,
        },
    };
    config::fleet_rules(&file).map_err(|errors| wrong(errors.to_string()))
}

fn standard_input() -> Result<ConfigFile, Failure> {
    let name = "standard input".to_owned();
    let text = io::read_to_string(io::stdin())
        .map_err(|error| Failure::new(Status::Configuration, format!("{name}: {error}")))?;
    Ok(ConfigFile { name, text })
}
