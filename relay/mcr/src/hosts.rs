//! Daemons on other hosts, as `~/.config/mcr/hosts.toml` has them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::client::{Client, Host};
use config::{ConfigFile, HostEntry};
use rules::near;

use crate::failure::{Failure, OrFail, Status, usage};

/// What concerns the host that it runs on alone.
const OWN: [&str; 7] = ["run", "stop", "doctor", "demo", "send", "receive", "bench"];
/// What asks no daemon.
const ASKS_NONE: [&str; 5] = ["check", "config", "completions", "man", "complete"];
/// The hosts that `--host` means, where a command of this name may be run elsewhere.
///
/// # Errors
/// It may not, or there is no such host.
pub(crate) fn meant(asked: &str, command: &str) -> Result<Vec<String>, Failure> {
    if ASKS_NONE.contains(&command) {
        return Ok(Vec::new());
    }
    if OWN.contains(&command) {
        let message = format!(
            "concerns the host that it runs on alone: log in to {asked} and run it there, or take \
             --host and MCR_HOST away"
        );
        return Err(usage(message));
    }
    let (path, known) = read()?;
    let names: Vec<String> = match asked {
        "all" => known.keys().cloned().collect(),
        names => names.split(',').map(str::to_owned).collect(),
    };
    match names.iter().find(|name| !known.contains_key(*name)) {
        None if names.is_empty() => Err(unusable(&path, "it names no host")),
        None => Ok(names),
        Some(unknown) => {
            let known: Vec<&str> = known.keys().map(String::as_str).collect();
            let hint = near::hint(unknown, known.iter().copied());
            let what = format!("no host {unknown:?} (have: {}{hint})", known.join(", "));
            Err(usage(format!("{}: {what}", path.display())))
        }
    }
}

/// A client of the host of this name.
///
/// # Errors
/// What of its entry is of no use.
pub(crate) fn client(name: &str) -> Result<Client, Failure> {
    let (path, mut known) = read()?;
    let entry = known.remove(name);
    let entry = entry.ok_or_else(|| unusable(&path, format!("no host {name:?}")))?;
    let place = |file: &PathBuf| path.parent().unwrap_or(Path::new("/")).join(file);
    let [ca, certificate, key, token] =
        [&entry.ca, &entry.certificate, &entry.key, &entry.token_file]
            .map(|file| file.as_ref().map(place));
    for secret in [&key, &token].into_iter().flatten() {
        require_secret(secret)?;
    }
    let own = match (&certificate, &key) {
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
        (None, None) => None,
        _ => {
            return Err(unusable(
                &path,
                format!("{name}: certificate and key belong together"),
            ));
        }
    };
    let token = match &token {
        None if own.is_none() => {
            let what = format!("{name}: give certificate and key, or token_file");
            return Err(unusable(&path, what));
        }
        None => None,
        Some(file) => Some(text(file)?.trim().to_owned()),
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
    let configured = env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(home);
    let path = configured
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
    let there = fs::metadata(path).map_err(|error| Failure::unreadable(path, &error))?;
    if there.permissions().mode() & 0o007 == 0 {
        return Ok(());
    }
    let why = "others can read it: chmod 600, and have another made if they may have";
    Err(unusable(path, why))
}
