//! Loads the embedded object: the program and its maps, fresh or from pins.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use aya::maps::Map;
use aya::programs::SchedClassifier;
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader};

use super::interface;
use crate::flows::Flows;
use crate::layout::{
    Address, Candidate, Drops, Flow, FlowKey, Found, GroupKey, Health, Identity, Limit, Output,
    Pids, Plain, Range, RangeKey, Residence, Route, RouteKey, RouteKey6, Settings, Tally, Word,
};
use crate::map::{Counters, HashMap};
use crate::mapped::Mapped;
use crate::{Error, syscall};

/// The compiled program, an ELF file.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/relay.bpf.o"));

/// How much the maps hold. Counters number `routes + outputs`: a rule and an output need one each,
/// and so does an input of a rule with several, which has slots of its own for the rule's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Routes, the placeholders of source-specific ones included. Their table has twice as many
    /// entries, so that all of them can be exchanged in one transaction.
    pub routes: u32,
    /// Outputs of all routes; a change needs room for old and new.
    pub outputs: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            routes: 16_384,
            outputs: 65_536,
        }
    }
}

/// Flows of ranges that are kept.
const FLOWS: u32 = 4096;

/// The program, loaded, with its maps.
#[derive(Debug)]
pub struct Program {
    ebpf: Ebpf,
    ethernet: OwnedFd,
    bare: OwnedFd,
    /// Its maps.
    pub maps: Maps,
}

/// Everything the program and user space share.
#[derive(Debug)]
pub struct Maps {
    /// Key to index in `route_table`.
    pub routes: HashMap<RouteKey, u32>,
    /// The same for IPv6.
    pub routes6: HashMap<RouteKey6, u32>,
    /// What each route's packets obey.
    pub route_table: Mapped<Route>,
    /// Blocks of outputs.
    pub outputs: Mapped<Output>,
    /// Packets and bytes of rules and outputs.
    pub counters: Counters,
    /// Drops of rules and outputs, indexed alike.
    pub drops: Mapped<Drops>,
    /// Rate limits of rules and outputs, indexed alike.
    pub limits: Mapped<Limit>,
    /// What is known of the streams of routes, by index in `route_table`.
    pub health: Mapped<Health>,
    /// The continuity counters of those whose payload is looked at, by the same index.
    pub pids: HashMap<u32, Pids>,
    /// What was found in packets of rules' former routes, by the rule's counter.
    pub found: HashMap<u32, Found>,
    /// How long packets of rules stay, by the rule's counter.
    pub residence: HashMap<u32, Residence>,
    /// Whose each counter is, indexed alike.
    pub identities: Mapped<Identity>,
    /// What concerns all packets.
    pub settings: Mapped<Settings>,
    /// Group prefix to its block in `candidates`.
    pub ranges: HashMap<RangeKey, Range>,
    /// Blocks of routes for ranges.
    pub candidates: Mapped<Candidate>,
    /// Exact keys without ports to index in `route_table`, for fragments whose ports are not known.
    pub group_routes: HashMap<GroupKey, u32>,
    /// What was seen of ranges.
    pub flows: Flows,
    /// This host's addresses.
    pub own_sources: HashMap<Address, u32>,
}

/// What the kernel says of the loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Instructions the verifier walked; its limit is a million.
    pub verified_instructions: u32,
    /// Bytes of the program after verification.
    pub translated_bytes: u32,
    /// Bytes of machine code.
    pub native_bytes: u32,
}

impl Program {
    /// How many maps are pinned.
    pub(crate) const MAPS: usize = 19;

    /// Loads the object. With `pins`, maps pinned in that directory are taken as they are, others
    /// are made with `capacity` and pinned there.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] with the verifier's last words; [`Error::Map`] if a pinned map has another
    /// shape.
    pub fn load(pins: Option<&Path>, capacity: Capacity) -> Result<Self, Error> {
        let counters = capacity.routes + capacity.outputs;
        if counters > Word::COUNTER_LIMIT {
            return Err(Error::Load(format!(
                "{counters} counters asked for, {} are possible",
                Word::COUNTER_LIMIT
            )));
        }
        let sizes: [(&str, u32); Self::MAPS] = [
            ("routes", capacity.routes),
            ("routes6", capacity.routes),
            ("route_table", capacity.routes * 2),
            ("outputs", capacity.outputs),
            ("counters", counters),
            ("drops", counters),
            ("limits", counters),
            ("health", capacity.routes * 2),
            ("pids", capacity.routes * 2),
            ("found", capacity.routes),
            ("residence", capacity.routes),
            ("identities", counters),
            ("settings", 1),
            ("ranges", capacity.routes),
            ("candidates", capacity.routes * 4),
            ("group_routes", capacity.routes),
            ("own_sources", 4096),
            ("flows", FLOWS),
            ("fragments", packet::memory::DATAGRAMS as u32),
        ];
        let mut loader = EbpfLoader::new();
        for (name, size) in sizes {
            loader.map_max_entries(name, size);
            if let Some(directory) = pins {
                loader.map_pin_path(name, directory.join(name));
            }
        }
        let mut ebpf = loader.load(OBJECT).map_err(load_error)?;
        verify_all(&mut ebpf)?;
        let ethernet = descriptor(&mut ebpf, "relay")?;
        let bare = descriptor(&mut ebpf, "relay_bare")?;
        let maps = Maps::take(&mut ebpf)?;
        Ok(Self {
            ebpf,
            ethernet,
            bare,
            maps,
        })
    }

    /// The variant for an interface.
    pub(crate) fn variant(&self, ifindex: u32) -> BorrowedFd<'_> {
        if interface::has_link_header(ifindex) {
            self.ethernet.as_fd()
        } else {
            self.bare.as_fd()
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.ethernet.as_fd()
    }

    /// Asks the kernel for the program's size and the verifier's effort.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell.
    pub fn facts(&mut self) -> Result<Facts, Error> {
        let info = classifier(&mut self.ebpf, "relay")?
            .info()
            .map_err(load_error)?;
        Ok(Facts {
            verified_instructions: info.verified_instruction_count().unwrap_or(0),
            translated_bytes: info.size_translated().unwrap_or(0),
            native_bytes: info.size_jitted(),
        })
    }
}

/// Hands the programs to the kernel side by side: its verifier takes some tenths of a second for each.
fn verify_all(ebpf: &mut Ebpf) -> Result<(), Error> {
    thread::scope(|scope| {
        let mut verifying = Vec::new();
        for (_, program) in ebpf.programs_mut() {
            let program: &mut SchedClassifier = program.try_into().map_err(load_error)?;
            verifying.push(scope.spawn(|| program.load().map_err(load_error)));
        }
        let mut verified = verifying.into_iter().map(|one| one.join());
        verified.try_for_each(|one| one.expect("the load of a program does not panic"))
    })
}

fn descriptor(ebpf: &mut Ebpf, name: &str) -> Result<OwnedFd, Error> {
    let fd = classifier(ebpf, name)?.fd().map_err(load_error)?.as_fd();
    fd.try_clone_to_owned().map_err(load_error)
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Error> {
    let program = ebpf.program_mut(name).expect("the object defines it");
    program.try_into().map_err(load_error)
}

pub(crate) fn load_error(error: impl std::error::Error) -> Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Error::Load(text)
}

impl Maps {
    fn take(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let cpus = nr_cpus().map_err(|(path, error)| Error::Load(format!("{path}: {error}")))?;
        Ok(Self {
            routes: hash_map(ebpf, "routes")?,
            routes6: hash_map(ebpf, "routes6")?,
            route_table: array(ebpf, "route_table")?,
            outputs: array(ebpf, "outputs")?,
            counters: {
                let (map, length) = take::<u32, Tally>(ebpf, "counters")?;
                Counters::new(map, length, cpus)
            },
            drops: array(ebpf, "drops")?,
            limits: array(ebpf, "limits")?,
            health: array(ebpf, "health")?,
            pids: hash_map(ebpf, "pids")?,
            found: hash_map(ebpf, "found")?,
            residence: hash_map(ebpf, "residence")?,
            identities: array(ebpf, "identities")?,
            settings: array(ebpf, "settings")?,
            ranges: hash_map(ebpf, "ranges")?,
            candidates: array(ebpf, "candidates")?,
            group_routes: hash_map(ebpf, "group_routes")?,
            own_sources: hash_map(ebpf, "own_sources")?,
            flows: {
                let (map, capacity) = take::<FlowKey, Flow>(ebpf, "flows")?;
                Flows::new(map, capacity, cpus)
            },
        })
    }
}

fn hash_map<K: Plain, V: Plain>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<HashMap<K, V>, Error> {
    let (map, capacity) = take::<K, V>(ebpf, name)?;
    Ok(HashMap::new(name, map, capacity))
}

pub(crate) fn array<T: Plain>(ebpf: &mut Ebpf, name: &'static str) -> Result<Mapped<T>, Error> {
    let (map, length) = take::<u32, T>(ebpf, name)?;
    Mapped::new(name, map.as_fd(), length)
}

/// Takes a map out of the object, after checking that its sizes are those of `K` and `V`: every
/// later access relies on that.
pub(crate) fn take<K, V>(ebpf: &mut Ebpf, name: &'static str) -> Result<(OwnedFd, u32), Error> {
    let problem = |problem| Error::Map { name, problem };
    let data = match ebpf.take_map(name) {
        Some(
            Map::Array(data)
            | Map::HashMap(data)
            | Map::LpmTrie(data)
            | Map::PerCpuArray(data)
            | Map::PerCpuLruHashMap(data),
        ) => data,
        Some(_) => return Err(problem("has another type")),
        None => return Err(problem("is missing")),
    };
    let failed = |operation| {
        move |error: io::Error| Error::MapOperation {
            name,
            operation,
            error,
        }
    };
    let map = data.fd().as_fd().try_clone_to_owned();
    let map = map.map_err(failed("duplicate"))?;
    let info = syscall::map_info(map.as_fd()).map_err(failed("info"))?;
    if info.key_size as usize != size_of::<K>() || info.value_size as usize != size_of::<V>() {
        return Err(problem("has entries of another size"));
    }
    Ok((map, info.max_entries))
}
