//! Configuration files: found, read, checked, and every fault named with its place.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model::config::{Config, ConfigFile};
use model::ruleset::Policy;

use crate::failure::{Failure, Status};

/// Reads a configuration file and the files of `conf.d` beside it.
pub(crate) fn read(file: &Path, policy: Policy) -> Result<Config, Failure> {
    let mut files = vec![read_file(file)?];
    for part in parts(file).map_err(|error| failure(&file.display(), &error))? {
        files.push(read_file(&part)?);
    }
    Config::load(&files, policy).map_err(|errors| Failure::new(Status::Configuration, errors))
}

/// The files `conf.d/*.toml`, in the order of their names.
fn parts(file: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = file.with_file_name("conf.d");
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut parts = Vec::new();
    for entry in entries {
        let path = entry?.path();
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

fn read_file(path: &Path) -> Result<ConfigFile, Failure> {
    let name = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => Ok(ConfigFile { name, text }),
        Err(error) => Err(failure(&name, &error)),
    }
}

fn failure(name: &dyn Display, error: &io::Error) -> Failure {
    Failure::new(Status::Configuration, format!("{name}: {error}"))
}
