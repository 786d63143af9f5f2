//! Configuration files as subcommands read them: as the daemon does, or from standard input.

use std::fs;
use std::io;
use std::path::Path;

use config::{self, Config, ConfigFile};
use daemon::DaemonError;
use rules::document::RuleDocument;
use rules::ruleset::Policy;

use crate::failure::{Failure, Status};

/// Reads a configuration file and the files that belong to it; `-` is standard input alone. The daemon
/// decides whether link-local inputs are permitted.
pub(crate) fn read(file: &Path) -> Result<Config, Failure> {
    load(file, Policy::PERMISSIVE).map_err(failed)
}

fn failed(error: DaemonError) -> Failure {
    Failure::with_code(error.exit_code(), error)
}

/// The same with a policy, and with an error that lists each problem.
pub(crate) fn load(file: &Path, policy: Policy) -> Result<Config, DaemonError> {
    if file != Path::new("-") {
        return daemon::config_files::read(Some(file), policy);
    }
    Ok(Config::load(&[standard_input()?], policy)?)
}

/// Reads a file of rules for a fleet; `-` is standard input.
pub(crate) fn read_fleet(path: &Path) -> Result<Vec<RuleDocument>, Failure> {
    let file = match path.to_str() {
        Some("-") => standard_input().map_err(failed)?,
        _ => ConfigFile {
            name: path.display().to_string(),
            text: fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?,
        },
    };
    config::fleet_rules(&file).map_err(|errors| Failure::new(Status::Configuration, errors))
}

fn standard_input() -> Result<ConfigFile, DaemonError> {
    let name = "standard input".to_owned();
    match io::read_to_string(io::stdin()) {
        Ok(text) => Ok(ConfigFile { name, text }),
        Err(source) => Err(DaemonError::ConfigFile {
            path: name.into(),
            source,
        }),
    }
}
