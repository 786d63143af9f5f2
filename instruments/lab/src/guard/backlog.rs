//! The queue between the cores while a bench runs (`net.core.netdev_max_backlog`): on the beds it stands
//! for the wire and the receive ring of a network card, and with the kernel's 1,000 packets a disturbance
//! of one millisecond would count as a relay's loss.
//!
//! The setting is the machine's: the first running bench changes it, the last one to end restores it.
//! Each holds a shared lock meanwhile, which its guard releases however it ends; a bench that gets the
//! lock exclusively is the first or the last.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const SETTING: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Holds the original value and the one that a bench set, while one runs. The file stays, empty.
const LOCK: &str = "/run/mcr-bench.lock";
/// Packets per core: 30 ms at the highest rate of any case, 1,000,000 a second.
const PACKETS: u64 = 30_000;

/// Holds the longer queue. Dropping it restores the machine's own setting, unless another bench holds it.
#[derive(Debug)]
pub(super) struct Backlog {
    setting: PathBuf,
    /// The shared lock, if the setting was changed.
    held: Option<Flock<File>>,
}

impl Backlog {
    /// Makes the queue long enough. Where that is not permitted, or could not be undone, it stays
    /// unchanged, and the report shows its length.
    pub(super) fn lengthen() -> Self {
        Self::lengthen_in(Path::new(SETTING), Path::new(LOCK))
    }

    fn lengthen_in(setting: &Path, lock: &Path) -> Self {
        Self {
            setting: setting.to_owned(),
            held: acquire(setting, lock).ok().flatten(),
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        let Some(held) = &self.held else { return };
        // Refused while another bench holds it, which then restores the setting.
        if held.relock(FlockArg::LockExclusiveNonblock).is_ok() {
            let _ = restore(&self.setting, held);
        }
    }
}

/// Takes the shared lock and ensures that the queue is long; `None` if it was before.
fn acquire(setting: &Path, lock: &Path) -> io::Result<Option<Flock<File>>> {
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let shared = match Flock::lock(options.open(lock)?, FlockArg::LockExclusiveNonblock) {
            Ok(exclusive) => {
                let is_changed = change(setting, &exclusive)?;
                exclusive.relock(FlockArg::LockShared)?;
                return Ok(is_changed.then_some(exclusive));
            }
            Err((file, Errno::EWOULDBLOCK)) => Flock::lock(file, FlockArg::LockShared),
            Err(refused) => Err(refused),
        };
        let held = shared.map_err(|(_, errno)| io::Error::from(errno))?;
        if read_record(&held)?.is_some() {
            return Ok(Some(held));
        }
        // The holder has restored the setting, or did not have to change it: once more, as the first.
    }
}

/// Makes the queue long, unless it is, and records its original length.
fn change(setting: &Path, lock: &File) -> io::Result<bool> {
    let now = read(setting)?;
    // The record is of guards that were killed with their benches, unless the setting was changed by
    // others since.
    if read_record(lock)?.is_some_and(|record| record.raised == now) {
        return Ok(true);
    }
    if now >= PACKETS {
        lock.set_len(0)?;
        return Ok(false);
    }
    // Before the change: from here on it can be undone whatever happens.
    lock.set_len(0)?;
    lock.write_all_at(format!("{now} {PACKETS}").as_bytes(), 0)?;
    let changed = fs::write(setting, PACKETS.to_string());
    if changed.is_err() {
        lock.set_len(0)?;
    }
    changed.map(|()| true)
}

/// Restores the recorded setting, unless it was changed by others since.
fn restore(setting: &Path, lock: &File) -> io::Result<()> {
    if let Some(record) = read_record(lock)?
        && read(setting)? == record.raised
    {
        fs::write(setting, record.original.to_string())?;
    }
    lock.set_len(0)
}

/// The first bench's record of the setting; another version of it may raise it to another value.
struct Record {
    original: u64,
    raised: u64,
}

fn read_record(lock: &File) -> io::Result<Option<Record>> {
    let mut bytes = [0; 64];
    let length = lock.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..length]);
    let mut numbers = text.split(' ').map_while(|word| word.parse().ok());
    let original = numbers.next();
    Ok(original.map(|original| Record {
        original,
        raised: numbers.next().unwrap_or(PACKETS),
    }))
}

fn read(setting: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(setting)?;
    text.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A setting, and a lock of its own.
    struct Machine(TempDir);

    impl Machine {
        fn with(packets: u64) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            fs::write(machine.setting(), format!("{packets}\n")).unwrap();
            machine
        }

        fn setting(&self) -> PathBuf {
            self.0.path().join("setting")
        }

        fn lock(&self) -> PathBuf {
            self.0.path().join("lock")
        }

        fn packets(&self) -> u64 {
            read(&self.setting()).unwrap()
        }

        fn lengthen(&self) -> Backlog {
            Backlog::lengthen_in(&self.setting(), &self.lock())
        }
    }

    #[test]
    fn the_setting_is_restored_at_the_end() {
        let machine = Machine::with(1000);
        for _ in 0..2 {
            let held = machine.lengthen();
            assert_eq!(machine.packets(), PACKETS);
            drop(held);
            assert_eq!(machine.packets(), 1000);
            assert_eq!(fs::read_to_string(machine.lock()).unwrap(), "");
        }
    }

    #[test]
    fn a_queue_that_is_long_enough_stays_unchanged() {
        let machine = Machine::with(30_000);
        let held = machine.lengthen();
        assert_eq!(machine.packets(), 30_000);
        drop(held);
        assert_eq!(machine.packets(), 30_000);
    }

    #[test]
    fn the_last_of_several_restores_the_setting() {
        let machine = Machine::with(1000);
        let (first, second) = (machine.lengthen(), machine.lengthen());
        drop(first);
        assert_eq!(machine.packets(), PACKETS);
        let third = machine.lengthen();
        drop(second);
        assert_eq!(machine.packets(), PACKETS);
        drop(third);
        assert_eq!(machine.packets(), 1000);
    }

    #[test]
    fn many_concurrent_benches_restore_the_setting() {
        let machine = Machine::with(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _held = machine.lengthen();
                        assert_eq!(machine.packets(), PACKETS);
                    }
                });
            }
        });
        assert_eq!(machine.packets(), 1000);
    }

    #[test]
    fn the_setting_of_killed_guards_is_restored_by_the_next() {
        let machine = Machine::with(9000);
        fs::write(machine.lock(), "1000 9000").unwrap();
        let (first, second) = (machine.lengthen(), machine.lengthen());
        assert_eq!(machine.packets(), 9000);
        drop(first);
        drop(second);
        assert_eq!(machine.packets(), 1000);
    }

    #[test]
    fn a_change_by_others_is_preserved() {
        let machine = Machine::with(1000);
        let held = machine.lengthen();
        fs::write(machine.setting(), "2000").unwrap();
        drop(held);
        assert_eq!(machine.packets(), 2000);
        // And the former record no longer counts.
        let held = machine.lengthen();
        assert_eq!(machine.packets(), PACKETS);
        drop(held);
        assert_eq!(machine.packets(), 2000);
    }
}
