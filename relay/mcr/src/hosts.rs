//! Daemons on other hosts, as `~/.config/mcr/hosts.toml` lists them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::client::{Client, Host};
use config::{ConfigFile, HostEntry};
use rules::near;

use crate::failure::{Failure, OrFail, Status, usage};

/// Commands that concern only the host they run on.
const LOCAL: [&str; 7] = ["run", "stop", "doctor", "demo", "send", "receive", "bench"];
/// Commands that query no daemon.
const WITHOUT_DAEMON: [&str; 5] = ["check", "config", "completions", "man", "complete"];

/// The hosts that `--host` names, if a command of this name can be run for other hosts.
///
/// # Errors
/// It cannot, or there is no such host.
pub(crate) fn resolve(requested: &str, command: &str) -> Result<Vec<String>, Failure> {
    if WITHOUT_DAEMON.contains(&command) {
        return Ok(Vec::new());
    }
    if LOCAL.contains(&command) {
        let message = format!(
            "concerns the host that it runs on alone: log in to {requested} and run it there, or take \
             --host and MCR_HOST away"
        );
        return Err(usage(message));
    }
    let (path, hosts) = read()?;
    let names: Vec<String> = match requested {
        "all" => hosts.keys().cloned().collect(),
        names => names.split(',').map(str::to_owned).collect(),
    };
    match names.iter().find(|name| !hosts.contains_key(*name)) {
        None if names.is_empty() => Err(unusable(&path, "it names no host")),
        None => Ok(names),
        Some(unknown) => {
            let existing: Vec<&str> = hosts.keys().map(String::as_str).collect();
            let hint = near::hint(unknown, existing.iter().copied());
            let what = format!("no host {unknown:?} (have: {}{hint})", existing.join(", "));
            Err(usage(format!("{}: {what}", path.display())))
        }
    }
}

/// A client of the host of this name.
///
/// # Errors
/// Its entry is missing or unusable.
pub(crate) fn client(name: &str) -> Result<Client, Failure> {
    let (path, mut hosts) = read()?;
    let Some(entry) = hosts.remove(name) else {
        return Err(unusable(&path, format!("no host {name:?}")));
    };
    let absolute = |file: &PathBuf| path.parent().unwrap_or(Path::new("/")).join(file);
    let [ca, certificate, key, token] =
        [&entry.ca, &entry.certificate, &entry.key, &entry.token_file]
            .map(|file| file.as_ref().map(absolute));
    for secret in [&key, &token].into_iter().flatten() {
        require_secret(secret)?;
    }
    let own = match (&certificate, &key) {
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
        (None, None) => None,
        _ => {
            let what = format!("{name}: certificate and key belong together");
            return Err(unusable(&path, what));
        }
    };
    let token = match &token {
        None if own.is_none() => {
            let what = format!("{name}: give certificate and key, or token_file");
            return Err(unusable(&path, what));
        }
        None => None,
        Some(file) => match text(file)?.trim() {
            "" => {
                return Err(unusable(
                    file,
                    "it is empty: it is to hold the client's token",
                ));
            }
            token => Some(token.to_owned()),
        },
    };
    let host = Host::new(
        (name, &entry.address(), entry.server_name.as_deref()),
        ca.as_deref(),
        own,
        token,
    );
    Ok(Client::at(host.or_fail(name, Status::Configuration)?))
}

fn read() -> Result<(PathBuf, BTreeMap<String, HostEntry>), Failure> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".config"));
    let path = env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .unwrap_or_else(|| "/root/.config".into())
        .join("mcr/hosts.toml");
    let file = ConfigFile {
        name: path.display().to_string(),
        text: text(&path)?,
    };
    let hosts = config::hosts(&file);
    let hosts = hosts.map_err(|errors| Failure::new(Status::Configuration, errors))?;
    Ok((path, hosts))
}

fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Configuration, format!("{}: {why}", path.display()))
}

/// Refuses a secret that others of this host can read.
fn require_secret(path: &Path) -> Result<(), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::unreadable(path, &error))?;
    if metadata.permissions().mode() & 0o007 == 0 {
        return Ok(());
    }
    let why = "others can read it: chmod 600, and have another made if they may have";
    Err(unusable(path, why))
}
