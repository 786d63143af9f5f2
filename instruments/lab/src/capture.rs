//! Packets on a wire, captured by tcpdump and decoded by tshark: a second opinion on headers and
//! checksums that shares no code with MCR.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::link::{self, End};
use crate::process::{self, Process};
use crate::{mark, wait};

/// A file that has not grown for this long is complete.
const QUIET: Duration = Duration::from_millis(100);

/// A running capture of one interface.
#[derive(Debug)]
pub struct Capture {
    directory: TempDir,
    process: Process,
}

/// A finished capture.
#[derive(Debug)]
pub struct Captured {
    // Contains the file.
    _directory: TempDir,
    file: PathBuf,
    decoded_as: Vec<String>,
}

impl Capture {
    /// Starts to capture what `filter` (tcpdump's language, may be empty) matches and returns once the
    /// capture runs.
    ///
    /// # Errors
    /// When tcpdump does not start.
    pub fn start(end: End<'_>, filter: &str) -> Result<Self> {
        // No frame is larger, and the default is four times as much.
        Self::start_with(end, filter, 65_600)
    }

    /// As [`Capture::start`], but with only the first 256 bytes of each frame: until its filter is
    /// installed tcpdump's ring receives everything, and so it has room for the load meanwhile.
    ///
    /// # Errors
    /// When tcpdump does not start.
    pub fn start_beside_load(end: End<'_>, filter: &str) -> Result<Self> {
        Self::start_with(end, filter, 256)
    }

    fn start_with((namespace, interface): End<'_>, filter: &str, frame_bytes: u32) -> Result<Self> {
        let directory = mark::directory()?;
        let mut command = namespace.command("tcpdump");
        command.args([
            "-i",
            interface,
            "-Z",
            "root",
            "-U",
            "--immediate-mode",
            // Each frame takes a slot of the maximum size: 2 MiB, the default, hold only eight.
            "-B",
            "32768",
        ]);
        command
            .args(["-s", &frame_bytes.to_string()])
            .arg("-w")
            .arg(directory.path().join("capture.pcap"))
            .arg(filter);
        let process = Process::start(command)?;
        wait::until("tcpdump listens", || {
            process.stderr().contains("listening on")
        })
        .with_context(|| process.stderr())?;
        Ok(Self { directory, process })
    }

    /// Ends the capture once it contains everything that passed before this call.
    ///
    /// # Errors
    /// When tcpdump fails, or its kernel buffer overflowed.
    pub fn finish(self) -> Result<Captured> {
        let file = self.directory.path().join("capture.pcap");
        // At SIGINT tcpdump does not read what is still in its ring.
        let size = || std::fs::metadata(&file).map_or(0, |file| file.len());
        let (mut last, mut quiet_since) = (size(), Instant::now());
        wait::until("tcpdump has written everything", || {
            let now = size();
            if now != last {
                (last, quiet_since) = (now, Instant::now());
            }
            quiet_since.elapsed() >= wait::scaled(QUIET)
        })?;
        let finished = self.process.stop(Signal::SIGINT)?;
        ensure!(
            finished.stderr.contains("\n0 packets dropped by kernel"),
            "the capture is not whole: {}",
            finished.stderr
        );
        Ok(Captured {
            _directory: self.directory,
            file,
            decoded_as: Vec::new(),
        })
    }
}

impl Captured {
    /// The capture itself, in pcap's format.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Decodes ports as a protocol, in Wireshark's syntax: `udp.port==6001,rtp`.
    #[must_use]
    pub fn decoded_as(mut self, rule: &str) -> Self {
        self.decoded_as.extend(["-d".to_owned(), rule.to_owned()]);
        self
    }

    /// Reads fields of every packet that `filter` (Wireshark's display language) matches, one row
    /// per packet. IPv4 and UDP checksums are verified: see `udp.checksum.status` (1 good, 0 bad,
    /// 3 absent).
    ///
    /// # Errors
    /// When tshark fails, for instance at an unknown field.
    pub fn fields(&self, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&self.file).args(&self.decoded_as);
        command.args([
            "-o",
            "udp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ]);
        command.args(["-n", "-Y", filter, "-T", "fields"]);
        command.args(fields.iter().flat_map(|field| ["-e", *field]));
        let text = process::run(command, Duration::from_secs(60))?.success()?;
        let rows = text
            .lines()
            .map(|line| line.split('\t').map(str::to_owned).collect());
        Ok(rows.collect())
    }

    /// Counts the packets that `filter` matches.
    ///
    /// # Errors
    /// When tshark fails.
    pub fn count(&self, filter: &str) -> Result<usize> {
        Ok(self.fields(filter, &["frame.number"])?.len())
    }
}

/// Waits until an interface has received `packets` more than `before`; a capture on it has then seen
/// them.
///
/// # Errors
/// When they do not arrive in time.
pub fn wait_for_received(end: End<'_>, before: u64, packets: u64) -> Result<()> {
    wait::until(&format!("{} has received {packets} packets", end.1), || {
        link::statistics(end).is_ok_and(|now| now.received >= before + packets)
    })
}
