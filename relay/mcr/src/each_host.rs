//! Runs one command for several hosts at once, each in a process of its own, so that none delays or ends
//! another.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;

use serde_json::{Map, Value, json};

use crate::failure::{Failure, usage};
use crate::global::Global;
use crate::{render, terms};

/// How a line of stderr begins that reports no error.
const NOTICE: &str = "MCR: ";

/// Runs the command line for each of the hosts, side by side; the exit status is the worst.
///
/// # Errors
/// The command cannot be run for several hosts at once.
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
        return Err(usage("is of one host at a time: name one by --host"));
    }
    let is_endless = is_watched || command == "events";
    let mut input = Vec::new();
    if arguments.iter().any(|word| word == "-") {
        io::stdin().lock().read_to_end(&mut input)?;
    }
    let outcomes = thread::scope(|scope| {
        let mut running = Vec::new();
        for name in names {
            let child = spawn(name, &arguments, &input);
            let follow = |child| scope.spawn(move || follow(name, child, is_json, is_endless));
            running.push(child.map(|child| (name.clone(), follow(child))));
        }
        let outcomes = running.into_iter().map(|started| {
            let (name, thread) = started?;
            let outcome = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((name, outcome?))
        });
        outcomes.collect::<io::Result<Vec<(String, Outcome)>>>()
    })?;
    let worst = outcomes.iter().map(|(_, outcome)| outcome.status).max();
    let successful = outcomes.iter().filter(|(_, outcome)| outcome.status == 0);
    let done: Vec<String> = successful.map(|(name, _)| name.clone()).collect();
    if is_json && !is_endless {
        let hosts = outcomes.into_iter().map(|(name, one)| (name, one.value()));
        render::json(&json!({ "hosts": hosts.collect::<Map<_, _>>() }))?;
    }
    let exit_code = ExitCode::from(worst.unwrap_or_default());
    if is_confirmed && io::stderr().is_terminal() {
        let undone = terms::count_down_at(&done, global);
        let status = undone.map_err(|failure| failure.report(command)).err();
        return Ok(status
            .filter(|_| exit_code == ExitCode::SUCCESS)
            .unwrap_or(exit_code));
    }
    Ok(exit_code)
}

/// What the command printed for a host, and its exit status.
struct Outcome {
    status: u8,
    values: Vec<Value>,
    errors: String,
}

impl Outcome {
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
    let mut arguments = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--") => {
                arguments.push(word);
                arguments.extend(words);
                break;
            }
            Some("--host") => drop(words.next()),
            Some(text) if text.starts_with("--host=") => {}
            _ => arguments.push(word),
        }
    }
    arguments
}

fn spawn(name: &str, arguments: &[OsString], input: &[u8]) -> io::Result<Child> {
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
        // A child that does not read its input reports why by its status.
        thread::spawn(move || drop(pipe.write_all(&input)));
    }
    Ok(child)
}

fn lines(pipe: Option<impl Read>) -> impl Iterator<Item = io::Result<String>> {
    pipe.into_iter()
        .flat_map(|pipe| BufReader::new(pipe).lines())
}

/// Passes on the output for a host, each line under its name.
fn follow(name: &str, mut child: Child, is_json: bool, is_endless: bool) -> io::Result<Outcome> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = thread::scope(|scope| {
        let errors = scope.spawn(|| {
            let mut errors = String::new();
            for line in lines(stderr) {
                let line = line?;
                eprintln!("{name}: {line}");
                if !line.starts_with(NOTICE) {
                    errors = errors + &line + "\n";
                }
            }
            io::Result::Ok(errors)
        });
        let mut values = Vec::new();
        for line in lines(stdout) {
            let line = line?;
            match serde_json::from_str(&line) {
                Ok(value) if is_json && is_endless => {
                    render::json(&json!({ "hosts": { name: value } }))?;
                }
                Ok(value) if is_json => values.push(value),
                _ => render::text(&format!("{name}: {line}"))?,
            }
        }
        let errors = errors
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        io::Result::Ok((values, errors))
    });
    if output.is_err() {
        // Nobody reads any more.
        let _ = child.kill();
    }
    let status = child.wait()?.code().unwrap_or(128);
    let (values, errors) = output?;
    Ok(Outcome {
        status: u8::try_from(status).unwrap_or(u8::MAX),
        values,
        errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_no_errors() {
        let script = "echo MCR: not yet >&2; echo mcr list: it is away >&2; exit 4";
        let child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let outcome = follow("a", child, true, false).unwrap();
        let error = json!({ "error": { "status": 4, "message": "mcr list: it is away" } });
        assert_eq!(outcome.value(), error);
    }

    #[test]
    fn the_hosts_are_taken_out_of_the_command_line_and_nothing_else() {
        let stripped = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            let arguments = without_host(words)
                .into_iter()
                .map(|word| word.into_string().unwrap());
            arguments.collect::<Vec<String>>().join(" ")
        };
        assert_eq!(stripped("stats --host a,b --json"), "stats --json");
        assert_eq!(stripped("--host=all list -- --host x"), "list -- --host x");
    }
}
