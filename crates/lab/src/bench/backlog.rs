//! The queue between the cores while a bench runs (`net.core.netdev_max_backlog`): on the beds it
//! stands for the wire and the receive ring of a network card, and at the kernel's 1,000 packets a
//! disturbance of one millisecond would be counted as a relay's loss.
//!
//! The setting is the machine's and must not outlive the bench, however that ends: a guard process
//! puts it back when the pipe to it closes, which a SIGKILL does as well.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

const FILE: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Packets per core: what 10 ms bring at the highest rate of any case, 1,000,000 a second.
const PACKETS: u64 = 10_000;

/// The guard: `$0` is the file, `$1` what stood there. It ignores the signals that end a bench, says
/// when it does, and reads until the other end of the pipe is gone.
const GUARD: &str = "trap '' HUP INT TERM; echo ready; read -r _; echo \"$1\" > \"$0\"";

/// Holds the longer queue. Dropping it puts the machine's own setting back.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Who puts back what stood there, if it was changed.
    guard: Option<Child>,
}

impl Backlog {
    /// Makes the queue long enough. Where that is not permitted, or could not be undone, it stays
    /// as it is, and the report says how long that was.
    pub(super) fn lengthen() -> Self {
        Self::lengthen_in(Path::new(FILE))
    }

    fn lengthen_in(file: &Path) -> Self {
        let before = fs::read_to_string(file).unwrap_or_default();
        let is_short = before.trim().parse().is_ok_and(|now: u64| now < PACKETS);
        let guard = if is_short {
            // Before the change: from here on it is undone whatever happens.
            start_guard(file, before.trim()).ok()
        } else {
            None
        };
        if guard.is_some() {
            // The report says what is in force.
            let _ = fs::write(file, PACKETS.to_string());
        }
        Self { guard }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            // It writes one line and ends; nothing more can be done about it here.
            let _ = guard.wait();
        }
    }
}

/// Starts the guard in a process group of its own, which a signal to the bench's does not reach.
fn start_guard(file: &Path, before: &str) -> Result<Child> {
    let mut guard = Command::new("sh")
        .args(["-c", GUARD])
        .arg(file)
        .arg(before)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .context("cannot start sh")?;
    let stdout = guard.stdout.take().context("its output is a pipe")?;
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said)?;
    ensure!(said == "ready\n", "the guard said {said:?}");
    Ok(guard)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nix::sys::signal::{Signal, killpg};
    use nix::unistd::Pid;
    use tempfile::NamedTempFile;

    use super::*;
    use crate::wait;

    /// Names the file to the process that a test kills.
    const HELD_FILE: &str = "MCR_TEST_HELD_FILE";

    fn file_with(text: &str) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn wait_for(file: &NamedTempFile, text: &str) {
        let holds = || fs::read_to_string(file.path()).unwrap().trim() == text;
        wait::until(&format!("the setting is {text}"), holds).unwrap();
    }

    #[test]
    fn the_setting_is_put_back_at_the_end() {
        let file = file_with("1000\n");
        let held = Backlog::lengthen_in(file.path());
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "10000");
        drop(held);
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "1000\n");
    }

    #[test]
    fn a_queue_that_is_long_enough_is_left_alone() {
        let file = file_with("30000\n");
        drop(Backlog::lengthen_in(file.path()));
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "30000\n");
    }

    /// Kills this test's own program, started anew to hold the setting, with all of its group.
    #[test]
    fn the_setting_is_put_back_when_the_bench_is_killed() {
        for signal in [Signal::SIGKILL, Signal::SIGINT] {
            let file = file_with("1000\n");
            let name = "bench::backlog::tests::holds_until_killed";
            // Who runs the tests in the background of a script lets them ignore SIGINT.
            let mut holder = Command::new("env")
                .arg("--default-signal=INT")
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", name, "--ignored"])
                .env(HELD_FILE, file.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .process_group(0)
                .spawn()
                .unwrap();
            wait_for(&file, "10000");
            killpg(Pid::from_raw(holder.id() as i32), signal).unwrap();
            assert!(!holder.wait().unwrap().success());
            wait_for(&file, "1000");
        }
    }

    #[test]
    #[ignore = "is the process that another test kills"]
    fn holds_until_killed() {
        let Some(file) = std::env::var_os(HELD_FILE).map(PathBuf::from) else {
            return;
        };
        let _held = Backlog::lengthen_in(&file);
        // Until killed, or until the test that started it is gone.
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}
