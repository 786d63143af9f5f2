//! The bench's requirements of the host, checked before it starts: a run of half an hour must not fail
//! in the middle.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::relay::Relay;

/// Programs that set up beds and count at sinks, each with its Debian package.
const BEDS: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("bridge", "iproute2"),
    ("ethtool", "ethtool"),
    ("nft", "nftables"),
    ("taskset", "util-linux"),
];

/// Checks the programs of the beds and of the relays, and the scripts of other relays.
///
/// # Errors
/// The first thing that is missing, with the remedy.
pub fn check(relays: &[Relay]) -> Result<()> {
    check_in(relays, &std::env::var_os("PATH").unwrap_or_default())
}

fn check_in(relays: &[Relay], path: &OsStr) -> Result<()> {
    for (program, package) in BEDS {
        ensure!(
            is_installed(program, path),
            "no program {program}, which the bench needs: apt install {package}"
        );
    }
    for relay in relays {
        let (program, package) = match relay {
            Relay::Socat => ("socat", "socat"),
            Relay::KernelRouting => ("smcrouted", "smcroute"),
            Relay::Floor => ("tc", "iproute2"),
            Relay::Script { name, program } => {
                check_script(name, program)?;
                continue;
            }
            Relay::Kernel | Relay::Xdp | Relay::Userspace | Relay::Redirect => continue,
        };
        ensure!(
            is_installed(program, path),
            "no program {program} for the relay {relay}: apt install {package}, or leave the relay \
             out with --only"
        );
    }
    Ok(())
}

/// A relay of the user's own needs a name of its own and a program that can be started.
fn check_script(name: &str, program: &Path) -> Result<()> {
    if name.is_empty() || Relay::parse(name).is_ok() {
        bail!(
            "--relay \"{name}={}\": it needs a name of its own",
            program.display()
        );
    }
    let metadata = program
        .metadata()
        .with_context(|| format!("relay {name}: {}", program.display()))?;
    ensure!(
        metadata.is_file() && metadata.permissions().mode() & 0o111 != 0,
        "relay {name}: {} is not a program: chmod +x makes a script one",
        program.display()
    );
    Ok(())
}

fn is_installed(program: &str, path: &OsStr) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;

    use super::*;

    fn refusal(relays: &[Relay], path: &Path) -> String {
        let refused = check_in(relays, path.as_os_str()).unwrap_err();
        format!("{refused:#}")
    }

    #[test]
    fn programs_that_are_missing_are_named_with_their_package() {
        let path = tempfile::tempdir().unwrap();
        let refused = refusal(&[], path.path());
        assert!(refused.contains("iproute2"), "{refused}");
        for (program, _) in BEDS {
            File::create(path.path().join(program)).unwrap();
        }
        check_in(&[Relay::Kernel, Relay::Userspace], path.path().as_os_str()).unwrap();
        let refused = refusal(&Relay::ALL, path.path());
        assert!(refused.contains("apt install smcroute"), "{refused}");
        File::create(path.path().join("smcrouted")).unwrap();
        let refused = refusal(&Relay::ALL, path.path());
        assert!(refused.contains("apt install socat"), "{refused}");
    }

    #[test]
    fn a_script_must_be_a_program_under_a_name_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("relay");
        let script = |name: &str, program: &Path| {
            check_script(name, program).map_err(|error| format!("{error:#}"))
        };
        let missing = script("other", &PathBuf::from("/nonexistent/relay"));
        assert!(missing.unwrap_err().contains("/nonexistent/relay"));
        fs::write(&file, "#!/bin/sh\n").unwrap();
        assert!(script("other", &file).unwrap_err().contains("chmod"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        script("other", &file).unwrap();
        for name in ["", "socat"] {
            assert!(script(name, &file).unwrap_err().contains("name"), "{name}");
        }
    }
}
