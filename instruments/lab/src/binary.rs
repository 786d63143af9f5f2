//! Locates the `mcr` binary under test: the one of the same target directory, built if need be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// The path of the `mcr` binary that the lab runs.
///
/// Inside `mcr` itself (demo, bench) it is the running binary. In a test it is `mcr` in the test's
/// own target directory, which cargo brings up to date first, once per test process: `cargo test`
/// does not build binaries of other crates. Without cargo an existing binary is used unchanged, and so
/// is one that `MCR_TEST_BINARY` names, for a run of hours beside builds.
///
/// # Errors
/// When it does not compile, or does not exist and cannot be built.
pub fn mcr() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match BINARY.get_or_init(|| locate().map_err(|error| format!("{error:#}"))) {
        Ok(path) => Ok(path),
        Err(message) => bail!("the mcr binary: {message}"),
    }
}

/// Copies a program to where it is to be executed, also over one that is running.
///
/// A separate process copies: a file that this one holds open for writing is also open in a child that
/// another thread forks, until that executes something, and until then cannot be executed (ETXTBSY).
///
/// # Errors
/// When `cp` cannot be started or fails.
#[cfg(feature = "test-support")]
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let options = ["--remove-destination", "--"];
    let mut cp = Command::new("cp");
    let output = cp.args(options).args([from, to]).output().context("cp")?;
    if !output.status.success() {
        bail!("cp: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}

fn locate() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MCR_TEST_BINARY") {
        let path = PathBuf::from(path);
        let binary = path.canonicalize();
        return binary.with_context(|| format!("MCR_TEST_BINARY={}", path.display()));
    }
    let this = std::env::current_exe().context("own executable")?;
    let own_directory = this.parent().context("own directory")?;
    if !own_directory.ends_with("deps") {
        return Ok(this);
    }
    let directory = own_directory.parent().context("target directory")?;
    let binary = directory.join("mcr");
    match build(directory) {
        Ok(()) => Ok(binary),
        Err(error) if cargo_is_missing(&error) && binary.exists() => Ok(binary),
        Err(error) => Err(error),
    }
}

fn build(directory: &Path) -> Result<()> {
    let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    command.args(["build", "--quiet", "--package", "mcr", "--bin", "mcr"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    if directory.ends_with("release") {
        command.arg("--release");
    }
    let mut above = directory.ancestors().skip(1);
    if let Some(triple) = option_env!("CARGO_BUILD_TARGET") {
        command.args(["--target", triple]);
        // A directory of that name lies in between.
        above.next();
    }
    if let Some(target) = above.next() {
        command.arg("--target-dir").arg(target);
    }
    let output = command.output().context("cargo build")?;
    if !output.status.success() {
        bail!("cargo build: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn cargo_is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_copy_can_be_executed_while_other_threads_start_programs() {
        let directory = tempfile::tempdir().unwrap();
        let copied = directory.path().join("true");
        let done = AtomicBool::new(false);
        let start_programs = || {
            while !done.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(start_programs);
            }
            for _ in 0..200 {
                copy(Path::new("/bin/true"), &copied).unwrap();
                let status = Command::new(&copied).status();
                done.store(status.is_err(), Ordering::Relaxed);
                assert!(status.unwrap().success());
                std::fs::remove_file(&copied).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
