//! What a bench or a demo has created, found by the process id that is in all names.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use lab::wait;

/// Lists namespaces, pins, directories, and processes that name an instance.
pub(crate) fn of(pid: u32) -> Vec<String> {
    let mut leftovers = namespaces(pid);
    let temporary = env::temp_dir().display().to_string();
    for (directory, prefix) in [
        ("/sys/fs/bpf/mcr", "lab"),
        ("/run/mcr", "lab"),
        (temporary.as_str(), "mcrlab-"),
    ] {
        let own = format!("{directory}/{prefix}{pid}-");
        leftovers.extend(
            paths(directory)
                .into_iter()
                .filter(|path| path.starts_with(&own)),
        );
    }
    for process in paths("/proc") {
        let command = fs::read_to_string(format!("{process}/cmdline")).unwrap_or_default();
        if command.contains(&format!("lab{pid}-")) {
            leftovers.push(format!("{process}: {command}"));
        }
    }
    leftovers
}

fn namespaces(pid: u32) -> Vec<String> {
    let own = format!("/run/netns/mcrlab-{pid}-");
    let mut namespaces = paths("/run/netns");
    namespaces.retain(|path| path.starts_with(&own));
    namespaces
}

fn paths(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path().display().to_string());
    paths.collect()
}

/// A process: its id and its command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: u32,
    command: String,
}

impl Process {
    /// Whether one of its words is `word`.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.command.split(' ').any(|it| it == word)
    }

    /// Whether it still runs. One that waits to be reaped does not.
    fn runs(&self) -> bool {
        command_of(self.pid).as_ref() == Some(&self.command)
    }
}

/// Lists the processes in the namespaces, as `ip` finds them, and the guard.
pub(crate) fn processes(pid: u32) -> Vec<Process> {
    let mut ids: Vec<u32> = Vec::new();
    for path in namespaces(pid) {
        let name = path.trim_start_matches("/run/netns/");
        let output = Command::new("ip").args(["netns", "pids", name]).output();
        let listed = String::from_utf8(output.unwrap().stdout).unwrap();
        ids.extend(
            listed
                .lines()
                .filter_map(|line| line.trim().parse::<u32>().ok()),
        );
    }
    let all = paths("/proc").into_iter();
    let running = all.filter_map(|path| Path::new(&path).file_name()?.to_str()?.parse().ok());
    let own = |command: &str| command.contains(" guard ") && command.ends_with(&format!(" {pid}"));
    ids.extend(running.filter(|process| command_of(*process).is_some_and(|command| own(&command))));
    let processes = ids.into_iter().filter_map(|pid| {
        let command = command_of(pid)?;
        Some(Process { pid, command })
    });
    processes.collect()
}

/// The words of a command line; `None` for what has ended.
fn command_of(pid: u32) -> Option<String> {
    let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let words = arguments.trim_end_matches('\0').replace('\0', " ");
    (!words.is_empty()).then_some(words)
}

/// Waits until nothing of a bench or a demo is left, nor of these processes.
pub(crate) fn wait_until_gone(pid: u32, processes: &[Process]) {
    let remaining = || {
        let running = processes.iter().filter(|process| process.runs());
        let commands = running.map(|process| process.command.clone());
        commands.chain(of(pid)).collect::<Vec<_>>()
    };
    let outcome = wait::until("nothing is left", || remaining().is_empty());
    assert!(outcome.is_ok(), "{:?}", remaining());
}
