//! Kernels of other versions, booted under qemu's own emulation with an initramfs of the project's
//! binaries. No KVM; a disk and network cards only on request: a kernel is up after some seconds.
//!
//! Two scripts do the shell work: `fetch.sh` downloads kernels, `initramfs.sh` packs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::namespace::Namespace;
use crate::{process, wait};

const FETCH: &str = include_str!("vm/fetch.sh");
const INITRAMFS: &str = include_str!("vm/initramfs.sh");
const QEMU: &str = "qemu-system-x86_64";

/// All that qemu emulates except CMPXCHG16B: after it qemu 7.2 (Debian 12) can leave an operand in
/// EFLAGS, and the guest's kernel dies at its next interrupt. 6.12, whose allocator uses it all the time,
/// died at one boot of three.
const PROCESSOR: &str = "max,cx16=off";

/// How many times slower everything is under emulation; time limits grow with it.
const EMULATION: u32 = 8;

/// A requested kernel, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The requested version: `6.1`, `newest`, `6.1-rt`.
    pub version: String,
    /// Its release, or why it is not available.
    pub release: Result<String, String>,
}

/// One command to run inside.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, without spaces.
    pub name: String,
    /// How long it may take under emulation, on an otherwise idle machine.
    pub patience: Duration,
    /// Program and arguments, none of which needs quoting.
    pub command: String,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// Its name.
    pub name: String,
    /// Its exit status; `None` if the kernel ended before it did.
    pub status: Option<i32>,
    /// Its output.
    pub output: String,
}

/// A kind of network card that qemu emulates.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Its driver in Linux.
    pub driver: &'static str,
    /// Its device in qemu.
    pub device: &'static str,
    /// Prefix of its interfaces' names.
    pub prefix: &'static str,
}

/// All kinds.
pub const CARDS: [Card; 3] = [
    Card {
        driver: "virtio_net",
        device: "virtio-net-pci",
        prefix: "virtio",
    },
    Card {
        driver: "vmxnet3",
        device: "vmxnet3",
        prefix: "vmx",
    },
    Card {
        driver: "e1000e",
        device: "e1000e",
        prefix: "intel",
    },
];

/// A namespace with two bridges between four taps of several queues, for virtio's cards: qemu's hubs have
/// one queue.
fn wires() -> Result<Namespace> {
    let namespace = Namespace::new("wires")?;
    for bridge in 0..2 {
        namespace.ip(&format!(
            "link add br{bridge} up type bridge mcast_snooping 0"
        ))?;
    }
    for tap in 0..4 {
        let bridge = tap / 2;
        namespace.ip(&format!("tuntap add dev tap{tap} mode tap multi_queue"))?;
        namespace.ip(&format!("link set dev tap{tap} master br{bridge} up"))?;
    }
    Ok(namespace)
}

impl Card {
    /// qemu's arguments for one card.
    fn arguments(&self, number: usize, position: usize) -> [String; 4] {
        let (end, hub) = (4 * number + position, 2 * number + position / 2);
        let (device, mac) = (self.device, mac(number, position));
        // Two queues for packets and, for two processors, two for what XDP sends.
        let (at, queues) = match self.driver {
            "virtio_net" => (
                format!("tap,ifname=tap{position},script=no,downscript=no,vhost=off,queues=4"),
                ",mq=on,vectors=10",
            ),
            _ => (format!("hubport,hubid={hub}"), ""),
        };
        [
            "-netdev".to_owned(),
            format!("{at},id=end{end}"),
            "-device".to_owned(),
            format!("{device},netdev=end{end},mac={mac}{queues}"),
        ]
    }
}

/// The Ethernet address of one of a kind's four cards: the first two are the ends of one wire, the others
/// of another.
pub fn mac(kind: usize, position: usize) -> String {
    format!("52:54:00:00:{kind:02x}:{position:02x}")
}

/// A directory with kernels, reused from one run to the next.
#[derive(Debug)]
pub struct Kernels {
    directory: PathBuf,
    scripts: TempDir,
    disk: Option<PathBuf>,
    has_cards: bool,
}

impl Kernels {
    /// Stores kernels in `directory`.
    ///
    /// # Errors
    /// When it cannot be made, or a tool is missing; the message names it.
    pub fn open(directory: &Path) -> Result<Self> {
        for tool in [QEMU, "busybox", "cpio", "modprobe", "ldd", "strip", "xz"] {
            ensure!(
                is_installed(tool),
                "there is no {tool} here (dist/bootstrap kernels)"
            );
        }
        fs::create_dir_all(directory)?;
        let scripts = tempfile::Builder::new().prefix("mcrvm").tempdir()?;
        for (name, text) in [("fetch.sh", FETCH), ("initramfs.sh", INITRAMFS)] {
            let file = scripts.path().join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, Permissions::from_mode(0o755))?;
        }
        Ok(Self {
            directory: directory.canonicalize()?,
            scripts,
            disk: None,
            has_cards: false,
        })
    }

    /// Gives kernels booted from now on four cards of each kind.
    pub const fn add_cards(&mut self) {
        self.has_cards = true;
    }

    /// Gives kernels booted from now on a disk of their own, which is mounted at `/var` and outlives them.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn add_disk(&mut self) -> Result<()> {
        let disk = self.scripts.path().join("disk");
        fs::File::create(&disk)?.set_len(64 << 20)?;
        ensure!(
            is_installed("mkfs.ext4"),
            "there is no mkfs.ext4 here (dist/bootstrap kernels)"
        );
        let mut make = Command::new("sh");
        make.args(["-c", "PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q \"$0\""]);
        make.arg(&disk);
        process::run(make, Duration::from_secs(60))?.success()?;
        self.disk = Some(disk);
        Ok(())
    }

    /// Fetches kernels, those already present only if `newer` ones are requested.
    ///
    /// # Errors
    /// When the script fails; an unavailable kernel is no failure.
    pub fn fetch(&self, versions: &[&str], newer: bool) -> Result<Vec<Kernel>> {
        let mut command = Command::new(self.scripts.path().join("fetch.sh"));
        command
            .args(newer.then_some("--newer"))
            .arg(&self.directory);
        command.args(versions);
        let output = process::run(command, Duration::from_secs(600))?.success()?;
        Ok(output.lines().filter_map(parse_kernel).collect())
    }

    /// Boots a kernel, runs the steps one by one and returns their results. `programs` are what they
    /// need: each one's path here and its path inside. The console's output is stored beside the kernel.
    ///
    /// # Errors
    /// When the initramfs cannot be made or qemu not started, or the kernel does not come up.
    pub fn run(
        &self,
        release: &str,
        programs: &[(PathBuf, &str)],
        steps: &[Step],
    ) -> Result<Vec<StepResult>> {
        let image = self.scripts.path().join(format!("{release}.cpio.gz"));
        let script = self.scripts.path().join(format!("{release}.steps"));
        let lines = steps.iter().map(|step| {
            let seconds = wait::scaled(step.patience).as_secs();
            format!("step {} {seconds} {}\n", step.name, step.command)
        });
        fs::write(&script, lines.collect::<String>())?;
        let mut pack = Command::new(self.scripts.path().join("initramfs.sh"));
        pack.env("MCR_TEST_SCALE", scale().to_string());
        pack.args([&self.directory, Path::new(release), &image, &script]);
        for (from, to) in programs {
            pack.arg(format!("{}={to}", from.display()));
        }
        process::run(pack, Duration::from_secs(120))?.success()?;
        let patience = steps.iter().map(|step| step.patience).sum::<Duration>();
        let wires = self.has_cards.then(wires).transpose()?;
        let mut qemu = match &wires {
            Some(wires) => wires.command(QEMU),
            None => Command::new(QEMU),
        };
        qemu.args(["-machine", "q35,accel=tcg", "-cpu", PROCESSOR]);
        qemu.args("-smp 2 -m 2048".split(' '));
        qemu.args("-nodefaults -display none -serial stdio -no-reboot".split(' '));
        if let Some(disk) = &self.disk {
            let disk = disk.display();
            qemu.arg("-drive");
            qemu.arg(format!(
                "file={disk},format=raw,if=virtio,cache=writethrough"
            ));
        }
        for (number, card) in CARDS.iter().enumerate().filter(|_| self.has_cards) {
            for position in 0..4 {
                qemu.args(card.arguments(number, position));
            }
        }
        qemu.arg("-kernel")
            .arg(self.directory.join(release).join("vmlinuz"));
        qemu.arg("-initrd").arg(&image);
        // A busy host delays the guest's timer interrupts, which looks like a broken board to it.
        let arguments = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off \
                         random.trust_cpu=on no_timer_check";
        qemu.args(["-append", arguments]);
        let finished = process::run(qemu, patience + Duration::from_secs(120))?;
        let console = finished.stdout.replace('\r', "");
        fs::write(self.directory.join(release).join("console"), &console)?;
        let (boot, inside) = match console.split_once("@kernel ") {
            Some((boot, inside)) => (boot, Some(inside)),
            None => (&*console, None),
        };
        let inside = inside.with_context(|| format!("no init: {boot}{}", finished.stderr))?;
        fs::remove_file(&image)?;
        Ok(parse(inside, steps))
    }
}

/// By how much the time limits inside grow: with emulation, and with this machine's load.
fn scale() -> u64 {
    wait::scaled(Duration::from_secs(EMULATION.into())).as_secs()
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let mut files = directories.map(|directory| Path::new(directory).join(tool));
    files.any(|file| file.exists())
}

fn parse_kernel(line: &str) -> Option<Kernel> {
    let mut words = line.splitn(3, ' ');
    let (version, outcome, rest) = (words.next()?, words.next()?, words.next()?);
    let release = match outcome {
        "found" => Ok(rest.to_owned()),
        "missing" => Err(rest.to_owned()),
        _ => return None,
    };
    Some(Kernel {
        version: version.to_owned(),
        release,
    })
}

/// Parses the result of each step from the console.
fn parse(console: &str, steps: &[Step]) -> Vec<StepResult> {
    let result = |step: &Step| {
        let name = step.name.clone();
        let begin = format!("@begin {name}\n");
        let rest = console.split_once(&begin).map_or("", |(_, rest)| rest);
        let end = format!("@end {name} ");
        let (output, status) = match rest.split_once(&end) {
            Some((output, status)) => (output, status.lines().next()),
            None => (rest, None),
        };
        StepResult {
            name,
            status: status.and_then(|status| status.trim().parse().ok()),
            output: output.to_owned(),
        }
    };
    steps.iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn steps_end_with_their_status_or_without() {
        let step = |name: &str| Step {
            name: name.to_owned(),
            patience: Duration::from_secs(1),
            command: String::new(),
        };
        let console = "6.1\n@begin a\nhello\n@end a 0\n@begin b\nKernel panic";
        let results = parse(console, &[step("a"), step("b"), step("c")]);
        let status: Vec<_> = results.iter().map(|result| result.status).collect();
        assert_eq!(status, [Some(0), None, None]);
        assert_eq!(results[0].output, "hello\n");
        assert_eq!(results[1].output, "Kernel panic");
    }

    #[test]
    fn a_kernel_is_available_or_missing_for_a_reason() {
        let release = parse_kernel("6.1 found 6.1.0-50-cloud-amd64").map(|kernel| kernel.release);
        assert_eq!(release, Some(Ok("6.1.0-50-cloud-amd64".to_owned())));
        let missing = parse_kernel("5.15 missing Debian has no such kernel");
        let reason = missing.and_then(|kernel| kernel.release.err());
        assert_eq!(reason.as_deref(), Some("Debian has no such kernel"));
    }

    #[test]
    fn two_do_not_fetch_into_one_directory_at_the_same_time() -> Result<()> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("6.1.release"), "6.1.0-cloud")?;
        let Ok(kernels) = Kernels::open(directory.path()) else {
            eprintln!("skipped: what boots kernels is not here (dist/bootstrap kernels)");
            return Ok(());
        };
        let first = fs::File::create(directory.path().join("lock"))?;
        first.lock()?;
        let waiter = format!(":{} ", first.metadata()?.ino());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| kernels.fetch(&["6.1"], false));
            let waits = wait::until("the second waits", || {
                let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
                let mut waiting = locks.lines().filter(|line| line.contains("->"));
                waiting.any(|line| line.contains(&waiter))
            });
            first.unlock()?;
            let fetched = second.join().expect("the second panicked")?;
            assert_eq!(fetched[0].release.as_deref(), Ok("6.1.0-cloud"));
            waits
        })
    }
}
