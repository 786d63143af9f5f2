//! What a bench or a demo has made, by the process id that it all bears.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use lab::wait;

/// Lists namespaces, pins, directories, and processes that name an instance.
pub(crate) fn of(pid: u32) -> Vec<String> {
    let mut found = namespaces(pid);
    let temporary = env::temp_dir().display().to_string();
    for (directory, prefix) in [
        ("/sys/fs/bpf/mcr", "lab"),
        ("/run/mcr", "lab"),
        (temporary.as_str(), "mcrlab-"),
    ] {
        let own = format!("{directory}/{prefix}{pid}-");
        found.extend(
            paths(directory)
                .into_iter()
                .filter(|path| path.starts_with(&own)),
        );
    }
    for process in paths("/proc") {
        let command = fs::read_to_string(format!("{process}/cmdline")).unwrap_or_default();
        if command.contains(&format!("lab{pid}-")) {
            found.push(format!("{process}: {command}"));
        }
    }
    found
}

fn namespaces(pid: u32) -> Vec<String> {
    let own = format!("/run/netns/mcrlab-{pid}-");
    let mut found = paths("/run/netns");
    found.retain(|path| path.starts_with(&own));
    found
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
    /// Says whether one of its words is this.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.command.split(' ').any(|it| it == word)
    }

    /// Says whether it still runs. One that waits to be reaped does not.
    fn runs(&self) -> bool {
        command_of(self.pid).as_ref() == Some(&self.command)
    }
}

/// Lists the processes in the namespaces, as `ip` finds them, and the guard.
pub(crate) fn processes(pid: u32) -> Vec<Process> {
    let mut ids: Vec<u32> = Vec::new();
    for path in namespaces(pid) {
        let name = path.trim_start_matches("/run/netns/");
        let listed = Command::new("ip").args(["netns", "pids", name]).output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        ids.extend(
            listed
                .lines()
                .filter_map(|line| line.trim().parse::<u32>().ok()),
        );
    }
    let all = paths("/proc").into_iter();
    let all = all.filter_map(|path| Path::new(&path).file_name()?.to_str()?.parse().ok());
    let own = |command: &str| command.contains(" guard ") && command.ends_with(&format!(" {pid}"));
    ids.extend(all.filter(|process| command_of(*process).is_some_and(|command| own(&command))));
    let processes = ids.into_iter().filter_map(|pid| {
        let command = command_of(pid)?;
        Some(Process { pid, command })
    });
    processes.collect()
}

/// The words of a command line; `None` for what has ended.
fn command_of(pid: u32) -> Option<String> {
    let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.trim_end_matches('\0').replace('\0', " ");
    (!words.is_empty()).then_some(words)
}

/// Waits until nothing of a bench or a demo is left, nor of these processes.
pub(crate) fn wait_until_gone(pid: u32, processes: &[Process]) {
    let left = || {
        let running = processes.iter().filter(|process| process.runs());
        let running = running.map(|process| process.command.clone());
        running.chain(of(pid)).collect::<Vec<_>>()
    };
    let gone = wait::until("nothing is left", || left().is_empty());
    assert!(gone.is_ok(), "{:?}", left());
}
