//! Daemons on other hosts, as `~/.config/mcr/hosts.toml` has them; and a command of several of them
//! at once, each by a process of its own, so that none holds up or ends another.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;

use api::client::{Client, Host};
use config::{ConfigFile, HostEntry};
use rules::near;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Status};
use crate::global::Global;
use crate::terms;

/// What concerns the host that it runs on alone.
const OWN: [&str; 7] = ["run", "stop", "doctor", "demo", "send", "receive", "bench"];
/// What asks no daemon.
const ASKS_NONE: [&str; 5] = ["check", "config", "completions", "man", "complete"];
/// What goes on for as long as nobody ends it.
const GOES_ON: [&str; 1] = ["events"];

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
        return Err(Failure::new(Status::Usage, message));
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
            Err(Failure::new(
                Status::Usage,
                format!("{}: {what}", path.display()),
            ))
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
    let host =
        host.map_err(|error| Failure::new(Status::Configuration, format!("{name}: {error}")))?;
    Ok(Client::at(host))
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
    fs::read_to_string(path)
        .map_err(|error| Failure::new(Status::Configuration, config::unreadable(path, &error)))
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Configuration, format!("{}: {why}", path.display()))
}

/// Refuses a secret that others of this host can read.
fn require_secret(path: &Path) -> Result<(), Failure> {
    let there = fs::metadata(path)
        .map_err(|error| Failure::new(Status::Configuration, config::unreadable(path, &error)))?;
    if there.permissions().mode() & 0o007 == 0 {
        return Ok(());
    }
    let why = "others can read it: chmod 600, and have another made if they may have";
    Err(unusable(path, why))
}

/// Runs the command line for each of the hosts, side by side; the exit status is the worst.
///
/// # Errors
/// What cannot be asked of several at once.
pub(crate) fn run_at_each(
    names: &[String],
    command: &str,
    global: &Global,
) -> Result<ExitCode, Failure> {
    let is_json = global.json;
    let arguments = without_host(env::args_os().skip(1));
    let has = |words: &[&str]| {
        let words_before = arguments.iter().take_while(|word| *word != "--");
        let mut given = words_before.filter_map(|word| word.to_str());
        given.any(|word| words.contains(&word.split('=').next().unwrap_or(word)))
    };
    let is_watched = has(&["--watch", "-w"]);
    let is_confirmed = has(&["--confirm"]) && !has(&["--yes", "-y"]);
    if command == "tap" {
        let message = "is of one host at a time: name one by --host";
        return Err(Failure::new(Status::Usage, message));
    }
    let goes_on = is_watched || GOES_ON.contains(&command);
    let mut input = Vec::new();
    if arguments.iter().any(|word| word == "-") {
        io::stdin().lock().read_to_end(&mut input)?;
    }
    let asked = thread::scope(|scope| {
        let mut asked = Vec::new();
        for name in names {
            let child = begin(name, &arguments, &input);
            let follow = |child| scope.spawn(move || follow(name, child, is_json, goes_on));
            asked.push(child.map(|child| (name.clone(), follow(child))));
        }
        let told = asked.into_iter().map(|one| {
            let (name, thread) = one?;
            let told = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((name, told?))
        });
        told.collect::<io::Result<Vec<(String, Told)>>>()
    })?;
    let worst = asked.iter().map(|(_, told)| told.status).max();
    let done = asked.iter().filter(|(_, told)| told.status == 0);
    let done: Vec<String> = done.map(|(name, _)| name.clone()).collect();
    if is_json && !goes_on {
        let hosts: Map<String, Value> = { asked.into_iter() }
            .map(|(name, told)| (name, told.value()))
            .collect();
        crate::render::json(&json!({ "hosts": hosts }))?;
    }
    let worst = ExitCode::from(worst.unwrap_or_default());
    if is_confirmed && io::stderr().is_terminal() {
        let undone = terms::count_down_at(&done, global);
        let status = undone.map_err(|failure| failure.report(command)).err();
        return Ok(status
            .filter(|_| worst == ExitCode::SUCCESS)
            .unwrap_or(worst));
    }
    Ok(worst)
}

/// What a host came to.
struct Told {
    status: u8,
    values: Vec<Value>,
    errors: String,
}

impl Told {
    fn value(mut self) -> Value {
        match self.values.len() {
            0 if self.status == 0 => Value::Null,
            0 => json!({ "error": { "status": self.status, "message": self.errors.trim() } }),
            1 => self.values.remove(0),
            _ => Value::Array(self.values),
        }
    }
}

fn without_host(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--") => {
                kept.push(word);
                kept.extend(words);
                break;
            }
            Some("--host") => drop(words.next()),
            Some(text) if text.starts_with("--host=") => {}
            _ => kept.push(word),
        }
    }
    kept
}

fn begin(name: &str, arguments: &[OsString], input: &[u8]) -> io::Result<Child> {
    let mut child = Command::new(env::current_exe()?)
        .args(["--host", name])
        .args(arguments)
        .stdin(if input.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        let input = input.to_vec();
        // Who does not read it says why by its status.
        thread::spawn(move || drop(pipe.write_all(&input)));
    }
    Ok(child)
}

/// Passes on what is said of a host, each line under its name.
fn follow(name: &str, mut child: Child, is_json: bool, goes_on: bool) -> io::Result<Told> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = thread::scope(|scope| {
        let errors = scope.spawn(|| {
            let mut errors = String::new();
            for line in stderr
                .into_iter()
                .flat_map(|pipe| BufReader::new(pipe).lines())
            {
                let line = line?;
                eprintln!("{name}: {line}");
                errors = errors + &line + "\n";
            }
            io::Result::Ok(errors)
        });
        let mut values = Vec::new();
        for line in stdout
            .into_iter()
            .flat_map(|pipe| BufReader::new(pipe).lines())
        {
            let line = line?;
            match serde_json::from_str(&line) {
                Ok(value) if is_json && goes_on => {
                    let hosts: Map<String, Value> =
                        [(name.to_owned(), value)].into_iter().collect();
                    crate::render::json(&json!({ "hosts": hosts }))?;
                }
                Ok(value) if is_json => values.push(value),
                _ => crate::render::text(&format!("{name}: {line}"))?,
            }
        }
        let errors = errors
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        io::Result::Ok((values, errors))
    });
    if errors.is_err() {
        // Nobody reads any more.
        let _ = child.kill();
    }
    let status = child.wait()?.code().unwrap_or(128);
    let (values, errors) = errors?;
    Ok(Told {
        status: u8::try_from(status).unwrap_or(u8::MAX),
        values,
        errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_are_taken_out_of_the_command_line_and_nothing_else() {
        let kept = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            let kept = without_host(words)
                .into_iter()
                .map(|word| word.into_string().unwrap());
            kept.collect::<Vec<String>>().join(" ")
        };
        assert_eq!(kept("stats --host a,b --json"), "stats --json");
        assert_eq!(kept("--host=all list -- --host x"), "list -- --host x");
    }
}
