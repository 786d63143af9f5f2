//! The names of network namespaces: their owners, the processes inside, their removal.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

/// Where named namespaces are found by every tool.
pub(super) const DIRECTORY: &str = "/run/netns";

/// Removes the names `PREFIX-PID-…` whose process no longer exists.
pub fn sweep(prefix: &str) {
    for process in abandoned_by(prefix) {
        made_by(prefix, process)
            .iter()
            .for_each(|name| remove(name));
    }
}

/// Lists the processes that no longer exist but whose names `PREFIX-PID-…` do.
pub fn abandoned_by(prefix: &str) -> BTreeSet<u32> {
    let names = names();
    let makers = names.iter().filter_map(|name| maker(prefix, name));
    makers
        .filter(|pid| !Path::new("/proc").join(pid.to_string()).exists())
        .collect()
}

/// Lists the names `PREFIX-PID-…` of one process.
pub fn made_by(prefix: &str, process: u32) -> Vec<String> {
    let mut names = names();
    names.retain(|name| maker(prefix, name) == Some(process));
    names
}

/// Lists the processes whose main thread is in a namespace of one of these names.
pub fn processes_in(names: &[String]) -> Vec<i32> {
    let identity = |path: &Path| {
        let file = fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    };
    let paths = names.iter().map(|name| path_of(name));
    let namespaces: BTreeSet<_> = paths.filter_map(|path| identity(&path)).collect();
    let processes = names_in("/proc").into_iter().filter_map(|name| {
        let process = name.parse().ok()?;
        let namespace = identity(&Path::new("/proc").join(name).join("ns/net"))?;
        namespaces.contains(&namespace).then_some(process)
    });
    processes.collect()
}

/// The process that made a namespace `PREFIX-PID-…`.
fn maker(prefix: &str, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(prefix)?.strip_prefix('-')?;
    rest.split('-').next()?.parse().ok()
}

fn names() -> Vec<String> {
    names_in(DIRECTORY)
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.collect()
}

/// Removes a name. The namespace ends with its last user.
pub fn remove(name: &str) {
    let path = path_of(name);
    // A lazy unmount never waits for users of the namespace; the empty file is then only a name.
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
}

pub(super) fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

#[cfg(test)]
mod tests {
    use super::super::Namespace;
    use super::*;

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    #[test]
    fn sweeping_leaves_the_living_alone() {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let living = Namespace::create("mcrsys", "living").unwrap();
        let dead = Namespace::create_named("mcrsys-4194305-0-dead").unwrap();
        sweep("mcrsys");
        assert!(living.path().exists());
        assert!(!dead.path().exists());
    }

    #[test]
    fn what_a_process_made_is_told_from_what_others_did() {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let process = std::process::id();
        let made = Namespace::create("mcrsysmade", "one").unwrap();
        let named = |name: String| Namespace::create_named(&name).unwrap();
        let _others = [
            named(format!("mcrsysmade-{process}0-0-longer")),
            named(format!("mcrsysmadeup-{process}-0-other")),
        ];
        let names = made_by("mcrsysmade", process);
        assert_eq!(names, [made.name()]);
        assert_eq!(processes_in(&names), [0; 0]);
        let mut inside = made.command("sleep").arg("60").spawn().unwrap();
        assert_eq!(processes_in(&names), [inside.id() as i32]);
        inside.kill().unwrap();
        inside.wait().unwrap();
        assert_eq!(processes_in(&names), [0; 0]);
    }
}
