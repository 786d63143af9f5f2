//! What one supervisor leaves to the next: the counters, the file of their owners, and workers that
//! go on forwarding although the supervisor that started them was killed.
//!
//! A keeper holds duplicates of the descriptors, the workers' control sockets among them, so that
//! no worker sees its supervisor's end. The next supervisor starts workers of its own, sets the time since
//! which packets are theirs, and makes the old ones stand down then by closing their sockets: nothing
//! of their conversation has to be understood, not even half a message.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bpf::merge::Windows;
use sys::descriptor::ProcessHandle;
use sys::shared_memory::{self, Held, Region};

use super::owner_file::OwnerFile;
use crate::userspace::shared::counters::SharedCounters;
use crate::userspace::shared::gates::SharedGates;
use crate::userspace::shared::layout::WorkerWord;
use crate::userspace::shared::state::SharedState;

/// Longest a worker may take to forward what is in its rings.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is checked meanwhile.
const STEP: Duration = Duration::from_micros(50);

/// Names a descriptor, with the layout of what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// A worker's counters.
    Region(RegionId),
    /// The owners of the counters.
    Owners,
    /// The state by which workers decide.
    State,
    /// The windows of merged rules.
    Merges,
    /// The gates of shares.
    Gates,
    /// The supervisor's end of a worker's control socket.
    Control(RegionId, u32),
    /// A worker's process, by its pidfd.
    Process(RegionId, u32),
}

/// A worker's number, and which of its regions it counts in: workers of two supervisors that run
/// at the same time do not write to the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionId {
    pub worker: u32,
    pub region: u32,
}

/// The counters of a worker and those before it in the same region.
#[derive(Debug)]
pub(super) struct CounterRegion {
    pub id: RegionId,
    pub fd: OwnedFd,
    pub counters: Arc<SharedCounters>,
}

/// A worker of an earlier supervisor.
#[derive(Debug)]
pub(super) struct Predecessor {
    id: RegionId,
    pid: u32,
    control: Option<UnixStream>,
    process: Option<ProcessHandle>,
}

/// All that an earlier supervisor left.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    pub regions: Vec<Arc<CounterRegion>>,
    pub owners: Option<Held<OwnerFile>>,
    pub state: Option<Held<SharedState>>,
    pub merges: Option<Held<Windows>>,
    /// The merges of the previous version, which had fewer blocks.
    pub former_merges: Option<File>,
    pub gates: Option<Held<SharedGates>>,
    pub predecessors: Vec<Predecessor>,
}

impl Inheritance {
    /// Sorts the held descriptors. Those that cannot be read are logged and dropped: their counters start
    /// anew.
    pub(super) fn sort(held: Vec<(String, OwnedFd)>) -> Self {
        let mut sorted = Self::default();
        for (text, fd) in held {
            let result = match text.parse() {
                Ok(label) => sorted.take(label, fd),
                Err(Unknown) => Err(io::Error::other("of another version's layout")),
            };
            if let Err(error) = result {
                tracing::warn!("counters of an earlier run ({text}) are not taken over: {error}");
            }
        }
        sorted
    }

    fn take(&mut self, label: Label, fd: OwnedFd) -> io::Result<()> {
        match label {
            Label::Region(id) => {
                let (fd, counters) = open(fd)?;
                let counters = Arc::new(counters);
                self.regions
                    .push(Arc::new(CounterRegion { id, fd, counters }));
            }
            Label::Owners => self.owners = Some(open(fd)?),
            Label::State => self.state = Some(open(fd)?),
            Label::Merges => {
                let file = File::from(fd);
                if file.metadata()?.len() == (FORMER_WINDOWS * size_of::<u64>()) as u64 {
                    self.former_merges = Some(file)
                } else {
                    self.merges = Some(open(file.into())?)
                }
            }
            Label::Gates => self.gates = Some(open(fd)?),
            Label::Control(id, pid) => {
                self.predecessor(id, pid).control = Some(UnixStream::from(fd));
            }
            Label::Process(id, pid) => {
                self.predecessor(id, pid).process = Some(ProcessHandle::from(fd));
            }
        }
        Ok(())
    }

    fn predecessor(&mut self, id: RegionId, pid: u32) -> &mut Predecessor {
        let existing = self.predecessors.iter().position(|other| other.pid == pid);
        let index = existing.unwrap_or(self.predecessors.len());
        if existing.is_none() {
            self.predecessors.push(Predecessor {
                id,
                pid,
                control: None,
                process: None,
            });
        }
        &mut self.predecessors[index]
    }
}

/// Makes workers of an earlier supervisor stop taking packets and returns once they have.
pub(super) fn stand_down(predecessors: Vec<Predecessor>, regions: &[Arc<CounterRegion>]) {
    let start = Instant::now();
    let stopping: Vec<_> = predecessors
        .into_iter()
        .map(|worker| {
            let region = regions.iter().find(|region| region.id == worker.id);
            let before = region.map(|region| {
                let counters = &region.counters;
                (counters, counters.worker(WorkerWord::StoodDown))
            });
            // This shuts the duplicates that the keeper holds as well.
            if let Some(control) = &worker.control {
                let _ = control.shutdown(Shutdown::Both);
            }
            (worker, before)
        })
        .collect();
    for (worker, before) in &stopping {
        let has_stood_down = || {
            let has_changed = |(counters, before): &(&Arc<SharedCounters>, u64)| {
                counters.worker(WorkerWord::StoodDown) != *before
            };
            before.as_ref().is_some_and(has_changed) || worker.has_ended()
        };
        while !has_stood_down() {
            if start.elapsed() > PATIENCE {
                tracing::warn!("worker process {} of an earlier run is killed", worker.pid);
                worker.kill();
                break;
            }
            sleep(STEP);
        }
    }
    tracing::info!(
        "{} workers of an earlier run stood down within {:?}",
        stopping.len(),
        start.elapsed()
    );
}

impl Predecessor {
    /// The region in which it counts.
    pub(super) const fn id(&self) -> RegionId {
        self.id
    }

    /// Its descriptors, with their labels.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (Label, BorrowedFd<'_>)> {
        let (id, pid) = (self.id, self.pid);
        let (controls, processes) = (self.control.iter(), self.process.iter());
        let control = controls.map(move |fd| (Label::Control(id, pid), fd.as_fd()));
        control.chain(processes.map(move |fd| (Label::Process(id, pid), fd.as_fd())))
    }

    /// Returns whether the process has ended; an unknown one has.
    pub(super) fn has_ended(&self) -> bool {
        let Some(process) = &self.process else {
            return self.control.is_none();
        };
        sys::wait::readable(process.as_fd(), Duration::ZERO).unwrap_or(true)
    }

    fn kill(&self) {
        if let Some(process) = &self.process {
            let _ = process.kill();
            let _ = sys::wait::readable(process.as_fd(), PATIENCE);
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region(RegionId { worker, region }) => {
                write!(f, "region-{}-{worker}-{region}", SharedCounters::WORDS)
            }
            Self::Owners => write!(f, "book-{}", OwnerFile::WORDS),
            Self::State => write!(f, "state-{}", SharedState::WORDS),
            Self::Gates => write!(f, "gates-{}", SharedGates::WORDS),
            Self::Merges => write!(f, "merges-{}-{}", Windows::WORDS, merges_layout()),
            Self::Control(RegionId { worker, region }, pid) => {
                write!(f, "control-{worker}-{region}-{pid}")
            }
            Self::Process(RegionId { worker, region }, pid) => {
                write!(f, "process-{worker}-{region}-{pid}")
            }
        }
    }
}

/// A label that this version does not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unknown;

impl FromStr for Label {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let mut words = text.split('-');
        let kind = words.next().ok_or(Unknown)?;
        let numbers: Vec<u32> = words
            .map(|word| word.parse().map_err(|_| Unknown))
            .collect::<Result<_, _>>()?;
        let id = |worker, region| RegionId { worker, region };
        match (kind, numbers.as_slice()) {
            ("region", &[words, worker, region]) if words as usize == SharedCounters::WORDS => {
                Ok(Self::Region(id(worker, region)))
            }
            ("book", &[words]) if words as usize == OwnerFile::WORDS => Ok(Self::Owners),
            ("state", &[words]) if words as usize == SharedState::WORDS => Ok(Self::State),
            ("gates", &[words]) if words as usize == SharedGates::WORDS => Ok(Self::Gates),
            ("merges", &[words, layout])
                if [Windows::WORDS, FORMER_WINDOWS].contains(&(words as usize))
                    && layout == merges_layout() =>
            {
                Ok(Self::Merges)
            }
            ("control", &[worker, region, pid]) => Ok(Self::Control(id(worker, region), pid)),
            ("process", &[worker, region, pid]) => Ok(Self::Process(id(worker, region), pid)),
            _ => Err(Unknown),
        }
    }
}

/// Words of the merges before there were more blocks behind them.
const FORMER_WINDOWS: usize = 44_040_192;

/// Distinguishes layouts of the merges that have the same length.
fn merges_layout() -> u32 {
    let hash = u64::from_str_radix(bpf::layout::HASH, 16).unwrap_or_default();
    (hash ^ hash >> 32) as u32
}

/// The merges of the previous version, with as many blocks as there are now: its region cannot grow.
/// Nothing may write to it any more.
///
/// # Errors
/// When there is no memory.
pub(super) fn grown(former: &File) -> io::Result<Held<Windows>> {
    let held = Windows::create()?;
    shared_memory::copy(former, held.0.as_fd())?;
    Ok(held)
}

/// Maps a region, whose length identifies its layout.
fn open<R: Region>(fd: OwnedFd) -> io::Result<Held<R>> {
    let file = File::from(fd);
    let bytes = file.metadata()?.len();
    if bytes != R::BYTES as u64 {
        return Err(io::Error::other(format!("{bytes} bytes long")));
    }
    let region = R::map(file.as_fd())?;
    Ok((file.into(), region))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionId = RegionId {
        worker: 3,
        region: 1,
    };

    #[test]
    fn labels_are_read_as_they_were_written() {
        for label in [
            Label::Region(REGION),
            Label::Owners,
            Label::State,
            Label::Merges,
            Label::Gates,
            Label::Control(REGION, 4711),
            Label::Process(REGION, 4711),
        ] {
            assert_eq!(label.to_string().parse(), Ok(label));
        }
    }

    /// Each as in the previous version: a change of one of them must carry over what is counted there.
    #[test]
    fn an_upgrade_takes_over_existing_regions() {
        let words = [
            SharedCounters::WORDS,
            OwnerFile::WORDS,
            SharedState::WORDS,
            SharedGates::WORDS,
            FORMER_WINDOWS,
        ];
        assert_eq!(
            words,
            [24_010_816, 43_515_968, 1_224_712, 40_960, 44_040_192]
        );
    }

    #[test]
    fn another_layout_is_not_taken_over() {
        assert_eq!("region-17-0-0".parse::<Label>(), Err(Unknown));
        assert_eq!("book".parse::<Label>(), Err(Unknown));
        let layout = merges_layout().wrapping_add(1);
        let merges = format!("merges-{}-{layout}", Windows::WORDS);
        assert_eq!(merges.parse::<Label>(), Err(Unknown));
        let short = sys::shared_memory::create(c"mcr-test", 4096).unwrap();
        let held = vec![(Label::Region(REGION).to_string(), short)];
        assert!(Inheritance::sort(held).regions.is_empty());
    }

    #[test]
    fn counters_and_their_owners_are_recovered() {
        let (region, counters) = SharedCounters::create().unwrap();
        counters.add(WorkerWord::Received, 5);
        let (owners, _) = OwnerFile::create().unwrap();
        let held = vec![
            (Label::Region(REGION).to_string(), region),
            (Label::Owners.to_string(), owners),
        ];
        let sorted = Inheritance::sort(held);
        let region = &sorted.regions[0];
        assert_eq!(region.id, REGION);
        assert_eq!(region.counters.worker(WorkerWord::Received), 5);
        assert!(sorted.owners.is_some());
    }

    #[test]
    fn a_worker_stands_down_at_the_end_of_its_socket() {
        let (region, counters) = SharedCounters::create().unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let held = vec![
            (Label::Region(REGION).to_string(), region),
            (Label::Control(REGION, 1).to_string(), here.into()),
        ];
        let worker = std::thread::spawn(move || {
            let mut byte = [0];
            let ended = io::Read::read(&mut &there, &mut byte).unwrap();
            counters.add(WorkerWord::StoodDown, 1);
            ended
        });
        let sorted = Inheritance::sort(held);
        assert!(!sorted.predecessors[0].has_ended());
        stand_down(sorted.predecessors, &sorted.regions);
        assert_eq!(worker.join().unwrap(), 0);
        let counters = &sorted.regions[0].counters;
        assert_eq!(counters.worker(WorkerWord::StoodDown), 1);
    }
}
