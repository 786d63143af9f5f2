//! The configuration files: found and read; what they mean is the model's business.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::config::{Config, ConfigFile};
use model::ruleset::Policy;

use crate::error::DaemonError;

/// The configuration of a host that names no other.
const DEFAULT: &str = "/etc/mcr/mcr.toml";

/// Reads the file and `conf.d/*.toml` beside it. The default file may be missing, a named one may
/// not.
///
/// # Errors
/// Which file cannot be read, or everything that is wrong with any of them.
pub fn read(named: Option<&Path>, policy: Policy) -> Result<Config, DaemonError> {
    let main = named.unwrap_or(Path::new(DEFAULT));
    let mut files = Vec::new();
    match read_file(main) {
        Err(DaemonError::ConfigFile { source, .. })
            if named.is_none() && source.kind() == io::ErrorKind::NotFound => {}
        file => files.push(file?),
    }
    for part in parts(main)? {
        files.push(read_file(&part)?);
    }
    if files.is_empty() {
        return Ok(Config::default());
    }
    Ok(Config::load(&files, policy)?)
}

fn parts(main: &Path) -> Result<Vec<PathBuf>, DaemonError> {
    let directory = main.with_file_name("conf.d");
    let failed = |source| DaemonError::ConfigFile {
        path: directory.clone(),
        source,
    };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut parts = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

fn read_file(path: &Path) -> Result<ConfigFile, DaemonError> {
    let text = fs::read_to_string(path).map_err(|source| DaemonError::ConfigFile {
        path: path.to_owned(),
        source,
    })?;
    Ok(ConfigFile {
        name: path.display().to_string(),
        text,
    })
}
