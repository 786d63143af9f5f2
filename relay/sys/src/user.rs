//! The user that a child process becomes before its program starts.

#![expect(
    unsafe_code,
    reason = "a child has to change its user between fork and exec"
)]

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

/// A user of this host, without supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: Uid,
    gid: Gid,
}

impl User {
    /// Looks up a user, by name or number; `None` where there is no such user. An unassigned number is a user too,
    /// with a group of the same number.
    ///
    /// # Errors
    /// The database's.
    pub fn find(name: &str) -> io::Result<Option<Self>> {
        let user = if cfg!(target_feature = "crt-static") {
            // It must not load the C library's name service modules, which are made for another
            // copy of that library and crash it.
            user_in(&fs::read_to_string("/etc/passwd").unwrap_or_default(), name)
        } else {
            let entry = match name.parse() {
                Ok(uid) => nix::unistd::User::from_uid(Uid::from_raw(uid)),
                Err(_) => nix::unistd::User::from_name(name),
            };
            entry?.map(|nix::unistd::User { uid, gid, .. }| Self { uid, gid })
        };
        let number = || {
            let number = name.parse().ok()?;
            let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
            Some(Self { uid, gid })
        };
        Ok(user.or_else(number))
    }

    /// Returns whether it is the user of this process.
    pub fn is_own(&self) -> bool {
        self.uid == geteuid()
    }

    /// Makes a program run as this user, with only this user's group. Starting it needs
    /// `CAP_SETUID` and `CAP_SETGID`, and fails with `EPERM` without; ending it needs `CAP_KILL`.
    pub fn run(&self, command: &mut Command) {
        let Self { uid, gid } = *self;
        let become_user = move || {
            setgroups(&[])?;
            setresgid(gid, gid, gid)?;
            Ok(setresuid(uid, uid, uid)?)
        };
        // SAFETY: between fork and exec it makes three system calls, and neither allocates nor
        // locks.
        unsafe {
            command.pre_exec(become_user);
        }
    }
}

/// The name of the user of that number, where this host knows one.
pub fn name_of(uid: u32) -> Option<String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = uid.to_string();
    let here = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    });
    let elsewhere = || {
        if cfg!(target_feature = "crt-static") {
            None
        } else {
            Some(nix::unistd::User::from_uid(Uid::from_raw(uid)).ok()??.name)
        }
    };
    here.or_else(elsewhere)
}

/// The user of this name or number in the text of `/etc/passwd`.
fn user_in(text: &str, wanted: &str) -> Option<User> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (
            fields.next()?,
            fields.next()?,
            fields.next()?,
            fields.next()?,
        );
        (name == wanted || uid == wanted).then_some(())?;
        let (uid, gid) = (
            Uid::from_raw(uid.parse().ok()?),
            Gid::from_raw(gid.parse().ok()?),
        );
        Some(User { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_looked_up_by_name_and_by_number() {
        let root = User::find("root").unwrap().unwrap();
        assert_eq!((root.uid.as_raw(), root.gid.as_raw()), (0, 0));
        assert_eq!(User::find("0").unwrap(), Some(root));
        assert_eq!(User::find("mcr-nobody-has-this-name").unwrap(), None);
        let number = User::find("4000000").unwrap().unwrap();
        assert_eq!(
            (number.uid.as_raw(), number.gid.as_raw()),
            (4_000_000, 4_000_000)
        );
    }

    #[test]
    fn a_static_binary_finds_the_same() {
        let text = "root:x:0:0:root:/root:/bin/sh\n\nmcr:x:998\nrelay:x:997:996::/:/bin/false\n";
        let (uid, gid) = (Uid::from_raw(997), Gid::from_raw(996));
        assert_eq!(user_in(text, "relay"), Some(User { uid, gid }));
        assert_eq!(user_in(text, "997"), Some(User { uid, gid }));
        assert_eq!(user_in(text, "mcr"), None);
        assert_eq!(user_in(text, "x"), None);
    }

    #[test]
    fn a_program_runs_as_the_user_and_its_group_alone() {
        if !geteuid().is_root() {
            eprintln!("skipped: becoming another user needs root");
            return;
        }
        let user = User::find("4000000").unwrap().unwrap();
        assert!(!user.is_own());
        let mut command = Command::new("sh");
        command.args(["-c", "id -u; id -G"]);
        user.run(&mut command);
        let output = command.output().unwrap();
        assert_eq!(output.stdout, b"4000000\n4000000\n", "{output:?}");
    }
}
