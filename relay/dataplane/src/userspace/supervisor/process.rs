//! One worker process from its start to its end: its control socket, its taps and its heartbeat.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sys::descriptor::ProcessHandle;
use sys::packet_socket::PacketSocket;

use super::taps::Taps;
use super::worker_spec::Options;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::layout::WorkerWord;
use crate::userspace::shared::messages::{self, Channel, FromWorker, TableChange, ToWorker, Way};
use crate::userspace::shared::routed;

/// Bytes of an egress socket's send buffer: one submission of full super-packets.
const SEND_BUFFER: usize = 16 << 20;
/// Longest a worker may take to read or to confirm: it is between two batches in well under 10 ms.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest a worker may take to start, with taps at all interfaces: on an emulated machine it is seconds.
pub(super) const START: Duration = Duration::from_secs(10);
/// How often a worker that gets no processor time is waited for.
const TURNS: usize = 3;
/// Longest a worker's heartbeat may stand still while packets wait for it.
const HANG: Duration = Duration::from_millis(1000);

/// The memory that all workers share.
#[derive(Debug)]
pub(super) struct SharedRegions {
    /// What they decide with.
    pub state: OwnedFd,
    /// The windows of merged rules.
    pub merges: OwnedFd,
    /// The gates of shares.
    pub gates: OwnedFd,
}

/// A running worker.
#[derive(Debug)]
pub(super) struct Process {
    /// Process id.
    pub pid: u32,
    /// When it was started.
    pub started: Instant,
    handle: ProcessHandle,
    channel: Channel,
    taps: Arc<Mutex<Taps>>,
    egress: Vec<Way>,
    ended: Arc<AtomicBool>,
    reaper: Option<JoinHandle<()>>,
    requested: u64,
    confirmed: u64,
    heartbeat: (u64, Instant),
    /// When its heartbeat was first seen to stand still, and the processor time used by then.
    stalled: Option<(Instant, Duration)>,
    counters: Arc<SharedCounters>,
}

impl Process {
    /// Starts a worker and says hello.
    ///
    /// # Errors
    /// The program cannot be run, or the conversation fails.
    pub(super) fn start(
        options: &Options,
        (worker, cpu): (u32, u32),
        (region, shared): (&OwnedFd, &SharedRegions),
        counters: &Arc<SharedCounters>,
    ) -> Result<Self, messages::Error> {
        let (here, there) = UnixStream::pair()?;
        here.set_write_timeout(Some(PATIENCE))?;
        let (program, arguments) = options
            .worker_command
            .split_first()
            .ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null());
        if let Some(user) = &options.worker_user {
            user.run(&mut command);
        }
        let child = command.spawn().map_err(messages::Error::Socket)?;
        let pid = child.id();
        let handle = ProcessHandle::open(pid)?;
        let taps = Arc::new(Mutex::new(Taps::new(Arc::clone(counters), options.workers)));
        let ended = Arc::new(AtomicBool::new(false));
        let attention = options.attention.clone();
        let reaper = reap(child, Arc::clone(&taps), Arc::clone(&ended), attention)?;
        let mut process = Self {
            pid,
            started: Instant::now(),
            handle,
            channel: Channel::new(here, messages::MAX_CONFIRMATION),
            taps,
            egress: Vec::new(),
            ended,
            reaper: Some(reaper),
            requested: 0,
            confirmed: 0,
            heartbeat: (counters.worker(WorkerWord::Heartbeat), Instant::now()),
            stalled: None,
            counters: Arc::clone(counters),
        };
        let hello = ToWorker::Hello {
            worker,
            cpu,
            means: options.means,
        };
        process.channel.send(&hello, Some(region.as_fd()))?;
        for (what, region) in [
            (ToWorker::State, &shared.state),
            (ToWorker::Merges, &shared.merges),
            (ToWorker::Gates, &shared.gates),
        ] {
            process.channel.send(&what, Some(region.as_fd()))?;
        }
        Ok(process)
    }

    /// The supervisor's end of the conversation.
    #[must_use]
    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.channel.stream().as_fd()
    }

    /// The process, as others may wait for it and kill it.
    #[must_use]
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Leaves the worker running without this process; another process holds its control socket. What its
    /// taps have lost so far is counted; what they lose from now on is for the worker to count.
    pub(super) fn leave(self) {
        self.taps().read_statistics();
    }

    /// Returns whether the process has ended.
    #[must_use]
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Gives the worker sockets for the ways in `wanted` that it cannot send by yet.
    ///
    /// # Errors
    /// The conversation's, or a socket cannot be opened.
    pub(super) fn add_egress(
        &mut self,
        wanted: impl Iterator<Item = Way>,
    ) -> Result<(), messages::Error> {
        for way in wanted {
            if !self.egress.contains(&way) {
                let socket = match way {
                    Way::Link(_) => PacketSocket::egress(SEND_BUFFER)?.into(),
                    Way::Framed(_) => PacketSocket::framed(SEND_BUFFER)?.into(),
                    Way::HostIpv4 => sys::host_socket::open(true, SEND_BUFFER)?,
                    Way::HostIpv6 => sys::host_socket::open(false, SEND_BUFFER)?,
                    Way::Routed => routed::supply(SEND_BUFFER)?,
                };
                self.channel
                    .send(&ToWorker::Egress(way), Some(socket.as_fd()))?;
                self.egress.push(way);
            }
        }
        Ok(())
    }

    /// Takes back the sockets for ways that `wanted` does not name.
    ///
    /// # Errors
    /// The conversation's.
    pub(super) fn drop_egress(
        &mut self,
        wanted: impl Fn(Way) -> bool,
    ) -> Result<(), messages::Error> {
        let ways = self.egress.iter().copied();
        let unwanted: Vec<Way> = ways.filter(|way| !wanted(*way)).collect();
        for way in unwanted {
            self.channel.send(&ToWorker::DropEgress(way), None)?;
            self.egress.retain(|other| *other != way);
        }
        Ok(())
    }

    /// Sends the worker a change of its table.
    ///
    /// # Errors
    /// The conversation's.
    pub(super) fn change(&mut self, change: TableChange) -> Result<(), messages::Error> {
        self.channel.send(&ToWorker::Change(change), None)
    }

    /// Gives the worker taps, still closed, for the interfaces in `wanted` it has none for. An
    /// interface that no longer exists is skipped.
    ///
    /// # Errors
    /// The conversation's, or a socket cannot be opened.
    pub(super) fn add_taps(
        &mut self,
        wanted: impl Iterator<Item = u32>,
    ) -> Result<(), messages::Error> {
        let taps = Arc::clone(&self.taps);
        let mut taps = taps.lock();
        for interface in wanted {
            if taps.interfaces().any(|other| other == interface) {
                continue;
            }
            let tap = match taps.prepare(interface) {
                Ok(tap) => tap,
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(error.into()),
            };
            let message = ToWorker::Tap {
                interface,
                ethernet: tap.ethernet,
                frames: tap.size.frames,
                frame_bytes: tap.size.frame_bytes,
            };
            self.channel.send(&message, Some(tap.socket.as_fd()))?;
        }
        Ok(())
    }

    /// Takes back the taps of interfaces that `wanted` does not name; what is in their rings is
    /// still forwarded.
    ///
    /// # Errors
    /// The conversation's.
    pub(super) fn drop_taps(
        &mut self,
        wanted: impl Fn(u32) -> bool,
    ) -> Result<(), messages::Error> {
        let taps = Arc::clone(&self.taps);
        let mut taps = taps.lock();
        let unwanted: Vec<_> = taps.interfaces().filter(|i| !wanted(*i)).collect();
        for interface in unwanted {
            taps.drop_tap(interface);
            self.channel.send(&ToWorker::DropTap { interface }, None)?;
        }
        Ok(())
    }

    /// The supervisor's copies of the taps.
    pub(super) fn taps(&self) -> MutexGuard<'_, Taps> {
        self.taps.lock()
    }

    /// Asks the worker to confirm all messages so far.
    ///
    /// # Errors
    /// The conversation's.
    pub(super) fn request_confirmation(&mut self) -> Result<(), messages::Error> {
        self.requested += 1;
        self.channel.send(&ToWorker::Confirm(self.requested), None)
    }

    /// Returns whether all requests are confirmed, waiting up to `time`.
    ///
    /// # Errors
    /// The conversation's.
    pub(super) fn is_confirmed(&mut self, time: Duration) -> Result<bool, messages::Error> {
        let deadline = Instant::now() + time;
        let mut is_over = false;
        loop {
            while let Some(FromWorker::Done(number)) = self.channel.next()? {
                self.confirmed = number;
            }
            if self.confirmed >= self.requested {
                return Ok(true);
            }
            // Even if the worker keeps sending.
            if is_over {
                return Ok(false);
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            is_over = remaining.is_zero();
            // A limit of zero would mean none.
            let limit = remaining.max(Duration::from_micros(1));
            self.channel.stream().set_read_timeout(Some(limit))?;
            self.channel.fill()?;
        }
    }

    /// Waits for the confirmation of all requests.
    ///
    /// # Errors
    /// The conversation's; `TimedOut` from a worker that hangs.
    pub(super) fn await_confirmation(&mut self) -> Result<(), messages::Error> {
        let (_, used) = run_state(self.pid).unwrap_or_default();
        let patience = match self.confirmed {
            0 => START,
            _ => PATIENCE,
        };
        for _ in 0..TURNS {
            if self.is_confirmed(patience)? {
                return Ok(());
            }
            if !self.is_starved(used, patience) {
                break;
            }
        }
        Err(io::Error::from(ErrorKind::TimedOut).into())
    }

    /// Returns whether the worker wants to run and got little of `time` since its processor time was `before`:
    /// on an overloaded host it does not hang, and a new one would fare no better.
    fn is_starved(&self, before: Duration, time: Duration) -> bool {
        run_state(self.pid).is_some_and(|(runs, now)| runs && now.saturating_sub(before) < time / 4)
    }

    /// Returns whether packets wait and the worker's heartbeat has stopped, though it is not starved.
    pub(super) fn hangs(&mut self) -> bool {
        let (beat, since) = self.heartbeat;
        let now = self.counters.worker(WorkerWord::Heartbeat);
        if now != beat || !self.has_waiting() {
            self.heartbeat = (now, Instant::now());
            self.stalled = None;
            return false;
        }
        if self.stalled.is_none() {
            // A worker that only sleeps answers, should the kernel's count of waiting packets be wrong.
            let _ = self.request_confirmation();
        }
        let (_, time) = run_state(self.pid).unwrap_or_default();
        let (seen, used) = *self.stalled.get_or_insert((Instant::now(), time));
        // The last check may have been long ago: what waits now may have arrived just now.
        since.elapsed() > HANG && seen.elapsed() > HANG / 2 && !self.is_starved(used, HANG)
    }

    /// Returns whether packets waited in the worker's rings when their statistics were read last.
    pub(super) fn has_waiting(&self) -> bool {
        self.taps().has_waiting()
    }

    /// Kills the process; its end is handled like any other.
    pub(super) fn kill(&self) {
        // It may have ended by itself meanwhile.
        let _ = self.handle.kill();
    }

    /// Lets the worker forward what is in its rings and end, kills it if it does not, and waits.
    pub(super) fn end(mut self) {
        let confirmed = self
            .drop_taps(|_| false)
            .and_then(|()| self.request_confirmation())
            .and_then(|()| self.await_confirmation());
        if confirmed.is_err() {
            self.kill();
        }
        let shut = self.channel.stream().shutdown(std::net::Shutdown::Both);
        // The worker sees the closed channel at once, and has nothing left to forward.
        if shut.is_err() || !self.ends_soon() {
            self.kill();
        }
        // The reaper's end is the worker's.
        match self.reaper.take() {
            Some(reaper) if self.ends_soon() => drop(reaper.join()),
            _ => tracing::warn!("worker process {} does not end, though killed", self.pid),
        }
    }

    fn ends_soon(&self) -> bool {
        sys::wait::readable(self.handle(), PATIENCE).unwrap_or(true)
    }
}

/// Whether a thread of a process runs or wants to, and the processor time that all have had
/// (proc_pid_stat(5)).
fn run_state(pid: u32) -> Option<(bool, Duration)> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(path.join("stat")).ok()?;
        // The name in brackets may hold anything.
        text.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
    };
    let process = Path::new("/proc").join(pid.to_string());
    let text = read(process.clone())?;
    let mut times = text
        .split(' ')
        .skip(11)
        .map_while(|word| word.parse::<u64>().ok());
    let ticks = times.next()? + times.next()?;
    let mut threads = process.join("task").read_dir().ok()?.flatten();
    let runs = threads.any(|thread| read(thread.path()).is_some_and(|text| text.starts_with('R')));
    // USER_HZ is 100 on every architecture MCR runs on.
    Some((runs, Duration::from_millis(ticks * 10)))
}

/// Waits for the child's end on a thread of its own, so that its taps are closed at once and the
/// kernel gives its share to the other workers.
fn reap(
    mut child: Child,
    taps: Arc<Mutex<Taps>>,
    ended: Arc<AtomicBool>,
    attention: Waker,
) -> io::Result<JoinHandle<()>> {
    let name = format!("mcr-reaper-{}", child.id());
    std::thread::Builder::new().name(name).spawn(move || {
        let status = child.wait();
        taps.lock().close();
        ended.store(true, Ordering::Release);
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => tracing::warn!("worker process {} ended: {status}", child.id()),
            Err(error) => tracing::warn!("worker process {}: {error}", child.id()),
        }
        attention.wake();
    })
}

#[cfg(test)]
mod tests {
    use sys::shared_memory::Region;

    use super::*;
    use crate::userspace::shared::messages::Means;

    /// This test does not run in the process's first thread.
    #[test]
    fn reads_its_own_state() {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {}
        let (runs, time) = run_state(std::process::id()).unwrap();
        assert!(runs);
        assert!(time < Duration::from_secs(3600), "{time:?}");
        assert_eq!(run_state(u32::MAX), None);
    }

    /// A worker that is a script, with its control socket as standard input.
    fn scripted(script: &str) -> Process {
        let (region, counters) = SharedCounters::create().unwrap();
        let shared = SharedRegions {
            state: region.try_clone().unwrap(),
            merges: region.try_clone().unwrap(),
            gates: region.try_clone().unwrap(),
        };
        let options = Options {
            workers: 1,
            worker_command: ["sh", "-c", script].map(Into::into).to_vec(),
            worker_user: None,
            attention: Waker::noop().clone(),
            means: Means {
                super_packets: false,
                io_uring: false,
                landlock: false,
            },
        };
        let regions = (&region, &shared);
        Process::start(&options, (0, 0), regions, &Arc::new(counters)).unwrap()
    }

    #[test]
    fn one_that_confirms_and_does_not_end_is_killed() {
        let process = scripted("printf '\\2\\0\\0\\0\\0\\1' >&0; exec sleep 1000");
        let pid = process.pid;
        process.end();
        assert_eq!(run_state(pid), None);
    }

    #[test]
    fn one_that_keeps_confirming_something_else_is_waited_for_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("said");
        std::fs::write(&path, [2, 0, 0, 0, 0, 0].repeat(100_000)).unwrap();
        let file = path.display();
        let mut process = scripted(&format!("while :; do cat {file} >&0; done"));
        process.request_confirmation().unwrap();
        assert!(!process.is_confirmed(Duration::from_millis(200)).unwrap());
        process.kill();
    }
}
