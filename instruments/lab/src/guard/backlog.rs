//! The queue between the cores while a bench runs (`net.core.netdev_max_backlog`): on the beds it
//! stands for the wire and the receive ring of a network card, and at the kernel's 1,000 packets a
//! disturbance of one millisecond would be counted as a relay's loss.
//!
//! The setting is the machine's: the first bench that runs changes it, the last that ends puts back
//! what stood there. Each holds a shared lock meanwhile, which goes with its guard whatever ends that;
//! who gets it alone is the first, or the last.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const SETTING: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Holds what stood there before and what a bench made of it, while one runs. The file stays, empty.
const LOCK: &str = "/run/mcr-bench.lock";
/// Packets per core: what 30 ms bring at the highest rate of any case, 1,000,000 a second.
const PACKETS: u64 = 30_000;

/// Holds the longer queue. Dropping it puts the machine's own setting back, if no other bench holds it.
#[derive(Debug)]
pub(super) struct Backlog {
    setting: PathBuf,
    /// The shared lock, if the setting was changed.
    held: Option<Flock<File>>,
}

impl Backlog {
    /// Makes the queue long enough. Where that is not permitted, or could not be undone, it stays
    /// as it is, and the report says how long that was.
    pub(super) fn lengthen() -> Self {
        Self::lengthen_in(Path::new(SETTING), Path::new(LOCK))
    }

    fn lengthen_in(setting: &Path, lock: &Path) -> Self {
        Self {
            setting: setting.to_owned(),
            held: hold(setting, lock).ok().flatten(),
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        let Some(held) = &self.held else { return };
        // Refused while another bench holds it; the setting is that one's to put back then.
        if held.relock(FlockArg::LockExclusiveNonblock).is_ok() {
            let _ = put_back(&self.setting, held);
        }
    }
}

/// Takes the shared lock and sees to it that the queue is long; `None` if it was before.
fn hold(setting: &Path, lock: &Path) -> io::Result<Option<Flock<File>>> {
    loop {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let held = match Flock::lock(options.open(lock)?, FlockArg::LockExclusiveNonblock) {
            Ok(alone) => {
                let is_changed = change(setting, &alone)?;
                alone.relock(FlockArg::LockShared)?;
                return Ok(is_changed.then_some(alone));
            }
            Err((file, Errno::EWOULDBLOCK)) => Flock::lock(file, FlockArg::LockShared),
            Err(refused) => Err(refused),
        };
        let held = held.map_err(|(_, errno)| io::Error::from(errno))?;
        if noted(&held)?.is_some() {
            return Ok(Some(held));
        }
        // Who held it has put the setting back, or had no need to change it: once more, as the first.
    }
}

/// Makes the queue long, unless it is, and notes what it was before.
fn change(setting: &Path, lock: &File) -> io::Result<bool> {
    let now = read(setting)?;
    // What is noted was left by guards that were killed with their benches, unless somebody else has
    // changed the setting since.
    if noted(lock)?.is_some_and(|noted| noted.made == now) {
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

/// Puts back what is noted, unless somebody else has changed the setting since.
fn put_back(setting: &Path, lock: &File) -> io::Result<()> {
    if let Some(noted) = noted(lock)?
        && read(setting)? == noted.made
    {
        fs::write(setting, noted.before.to_string())?;
    }
    lock.set_len(0)
}

/// What the first bench noted of the setting; another version of it may make something else of it.
struct Noted {
    before: u64,
    made: u64,
}

fn noted(lock: &File) -> io::Result<Option<Noted>> {
    let mut bytes = [0; 64];
    let length = lock.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..length]);
    let mut numbers = text.split(' ').map_while(|word| word.parse().ok());
    let before = numbers.next();
    Ok(before.map(|before| Noted {
        before,
        made: numbers.next().unwrap_or(PACKETS),
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
    fn the_setting_is_put_back_at_the_end() {
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
    fn a_queue_that_is_long_enough_is_left_alone() {
        let machine = Machine::with(30_000);
        let held = machine.lengthen();
        assert_eq!(machine.packets(), 30_000);
        drop(held);
        assert_eq!(machine.packets(), 30_000);
    }

    #[test]
    fn the_last_of_several_puts_the_setting_back() {
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
    fn many_that_come_and_go_leave_the_setting_as_it_was() {
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
    fn what_killed_guards_left_is_put_back_by_the_next() {
        let machine = Machine::with(9000);
        fs::write(machine.lock(), "1000 9000").unwrap();
        let (first, second) = (machine.lengthen(), machine.lengthen());
        assert_eq!(machine.packets(), 9000);
        drop(first);
        drop(second);
        assert_eq!(machine.packets(), 1000);
    }

    #[test]
    fn a_change_by_somebody_else_stands() {
        let machine = Machine::with(1000);
        let held = machine.lengthen();
        fs::write(machine.setting(), "2000").unwrap();
        drop(held);
        assert_eq!(machine.packets(), 2000);
        // And nothing of before counts any more.
        let held = machine.lengthen();
        assert_eq!(machine.packets(), PACKETS);
        drop(held);
        assert_eq!(machine.packets(), 2000);
    }
}
