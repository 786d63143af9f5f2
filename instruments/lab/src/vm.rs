//! Kernels of other versions, booted under qemu's own emulation with an initramfs of the project's
//! binaries. No KVM; a disk and network cards only if asked for: a kernel is up after some seconds.
//!
//! Two scripts do what is a script's work: `fetch.sh` gets kernels, `initramfs.sh` packs.

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

/// All that qemu emulates but CMPXCHG16B: after it qemu 7.2 (Debian 12) can leave an operand in EFLAGS,
/// and the guest's kernel dies at its next interrupt. 6.12, whose allocator does it all the time, did
/// so at one boot of three.
const PROCESSOR: &str = "max,cx16=off";

/// How many times as long all takes under emulation as outside; time limits grow with it.
const EMULATION: u32 = 8;

/// A kernel that was asked for, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What was asked for: `6.1`, `newest`, `6.1-rt`.
    pub version: String,
    /// Its release, or why it cannot be had.
    pub release: Result<String, String>,
}

/// One thing to run inside.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name, without spaces.
    pub name: String,
    /// How long it may take under emulation, on a machine with nothing else to do.
    pub patience: Duration,
    /// Program and arguments, none of which needs quoting.
    pub command: String,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its name.
    pub name: String,
    /// Its exit status; `None` if the kernel ended before it did.
    pub status: Option<i32>,
    /// What it wrote.
    pub output: String,
}

/// A kind of network card that qemu emulates.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Its driver in Linux.
    pub driver: &'static str,
    /// What it is called in qemu.
    pub device: &'static str,
    /// How names of interfaces begin.
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

/// A namespace with two bridges between four taps of several queues, which virtio's cards are at: qemu's hubs
/// have one.
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
    /// What qemu makes one of.
    fn arguments(&self, number: usize, place: usize) -> [String; 4] {
        let (end, hub) = (4 * number + place, 2 * number + place / 2);
        let (device, mac) = (self.device, mac(number, place));
        // Two for packets and, for two processors, two for what XDP sends.
        let (at, queues) = match self.driver {
            "virtio_net" => (
                format!("tap,ifname=tap{place},script=no,downscript=no,vhost=off,queues=4"),
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

/// The Ethernet address of a kind's card, of four: the first two are the ends of one wire, the others of another.
pub fn mac(kind: usize, place: usize) -> String {
    format!("52:54:00:00:{kind:02x}:{place:02x}")
}

/// A directory with kernels, kept from one run to the next.
#[derive(Debug)]
pub struct Kernels {
    directory: PathBuf,
    scripts: TempDir,
    disk: Option<PathBuf>,
    has_cards: bool,
}

impl Kernels {
    /// Keeps kernels in `directory`.
    ///
    /// # Errors
    /// When it cannot be made, or a tool is missing; the message says which.
    pub fn open(directory: &Path) -> Result<Self> {
        for tool in [QEMU, "busybox", "cpio", "modprobe", "ldd", "strip", "xz"] {
            ensure!(
                is_there(tool),
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

    /// Gives what is booted from now on four cards of each kind.
    pub const fn add_cards(&mut self) {
        self.has_cards = true;
    }

    /// Gives what is booted from now on a disk of its own, which is mounted at `/var` and outlives it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn add_disk(&mut self) -> Result<()> {
        let disk = self.scripts.path().join("disk");
        fs::File::create(&disk)?.set_len(64 << 20)?;
        ensure!(
            is_there("mkfs.ext4"),
            "there is no mkfs.ext4 here (dist/bootstrap kernels)"
        );
        let mut make = Command::new("sh");
        make.args(["-c", "PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q \"$0\""]);
        make.arg(&disk);
        process::run(make, Duration::from_secs(60))?.success()?;
        self.disk = Some(disk);
        Ok(())
    }

    /// Fetches kernels, those that are here already only if `newer` are asked for.
    ///
    /// # Errors
    /// When the script fails; a kernel that cannot be had is no failure.
    pub fn fetch(&self, versions: &[&str], newer: bool) -> Result<Vec<Wanted>> {
        let mut command = Command::new(self.scripts.path().join("fetch.sh"));
        command
            .args(newer.then_some("--newer"))
            .arg(&self.directory);
        command.args(versions);
        let told = process::run(command, Duration::from_secs(600))?.success()?;
        Ok(told.lines().filter_map(parse_wanted).collect())
    }

    /// Boots a kernel, runs the steps one by one and says what became of each. `programs` are what
    /// they need: where each is, and where it is to be. All that the console said is kept beside the
    /// kernel.
    ///
    /// # Errors
    /// When the initramfs cannot be made or qemu not started, or the kernel does not come up.
    pub fn run(
        &self,
        release: &str,
        programs: &[(PathBuf, &str)],
        steps: &[Step],
    ) -> Result<Vec<Done>> {
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
            for place in 0..4 {
                qemu.args(card.arguments(number, place));
            }
        }
        qemu.arg("-kernel")
            .arg(self.directory.join(release).join("vmlinuz"));
        qemu.arg("-initrd").arg(&image);
        // A busy host keeps timer interrupts from the guest, which takes that for a broken board.
        let arguments = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off \
                         random.trust_cpu=on no_timer_check";
        qemu.args(["-append", arguments]);
        let said = process::run(qemu, patience + Duration::from_secs(120))?;
        let console = said.stdout.replace('\r', "");
        let kept = self.directory.join(release).join("console");
        fs::write(kept, &console)?;
        let mut console = console.splitn(2, "@kernel ");
        let (before, inside) = (console.next().unwrap_or_default(), console.next());
        let inside = inside.with_context(|| format!("no init: {before}{}", said.stderr))?;
        fs::remove_file(&image)?;
        Ok(parse(inside, steps))
    }
}

/// By how much the time limits inside grow: with emulation, and with what this machine has to do.
fn scale() -> u64 {
    wait::scaled(Duration::from_secs(EMULATION.into())).as_secs()
}

fn is_there(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let mut files = directories.map(|directory| Path::new(directory).join(tool));
    files.any(|file| file.exists())
}

fn parse_wanted(line: &str) -> Option<Wanted> {
    let mut words = line.splitn(3, ' ');
    let (version, what, rest) = (words.next()?, words.next()?, words.next()?);
    let release = match what {
        "found" => Ok(rest.to_owned()),
        "missing" => Err(rest.to_owned()),
        _ => return None,
    };
    Some(Wanted {
        version: version.to_owned(),
        release,
    })
}

/// What the console says of each step.
fn parse(console: &str, steps: &[Step]) -> Vec<Done> {
    let done = |step: &Step| {
        let name = step.name.clone();
        let begin = format!("@begin {name}\n");
        let rest = console.split_once(&begin).map_or("", |(_, rest)| rest);
        let end = format!("@end {name} ");
        let (output, status) = match rest.split_once(&end) {
            Some((output, status)) => (output, status.lines().next()),
            None => (rest, None),
        };
        Done {
            name,
            status: status.and_then(|status| status.trim().parse().ok()),
            output: output.to_owned(),
        }
    };
    steps.iter().map(done).collect()
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
        let done = parse(console, &[step("a"), step("b"), step("c")]);
        let status: Vec<_> = done.iter().map(|done| done.status).collect();
        assert_eq!(status, [Some(0), None, None]);
        assert_eq!(done[0].output, "hello\n");
        assert_eq!(done[1].output, "Kernel panic");
    }

    #[test]
    fn a_kernel_is_found_or_missing_for_a_reason() {
        let found = parse_wanted("6.1 found 6.1.0-50-cloud-amd64").map(|wanted| wanted.release);
        assert_eq!(found, Some(Ok("6.1.0-50-cloud-amd64".to_owned())));
        let missing = parse_wanted("5.15 missing Debian has no such kernel");
        let reason = missing.and_then(|wanted| wanted.release.err());
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
            let found = second.join().expect("the second panicked")?;
            assert_eq!(found[0].release.as_deref(), Ok("6.1.0-cloud"));
            waits
        })
    }
}
