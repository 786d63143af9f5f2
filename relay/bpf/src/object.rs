//! A compiled object in the kernel: its programs verified, its maps made or taken from pins.
//!
//! Programs and maps are taken out by name, maps only with the right size of entries: every later access relies
//! on that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use aya::maps::Map;
use aya::programs::{Program, ProgramError};
use aya::util::nr_cpus;
use aya::{Btf, Ebpf, EbpfLoader};
use sys::memory::Array;

use crate::flows::Flows;
use crate::layout::{Flow, FlowKey, Plain, Tally};
use crate::map::{Counters, HashMap};
use crate::{Error, syscall};

/// An object whose programs are tc classifiers, XDP programs and tracepoints that are called as they are.
#[derive(Debug)]
pub struct Object {
    ebpf: Ebpf,
}

impl Object {
    /// Loads an ELF file, with maps of the given numbers of entries. With `pins`, those maps are
    /// taken from that directory where they exist, and pinned in it where they do not.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] with the verifier's last words.
    pub fn load(elf: &[u8], sizes: &[(&str, u32)], pins: Option<&Path>) -> Result<Self, Error> {
        let mut object = Self::make(elf, sizes, pins)?;
        let names: Vec<String> = object
            .ebpf
            .programs()
            .map(|(name, _)| name.to_owned())
            .collect();
        names.iter().try_for_each(|name| object.verify(name))?;
        Ok(object)
    }

    /// The same without verifying its programs.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] where the file or its maps are invalid.
    pub(crate) fn make(
        elf: &[u8],
        sizes: &[(&str, u32)],
        pins: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut loader = EbpfLoader::new();
        for (name, size) in sizes {
            loader.map_max_entries(name, *size);
            if let Some(directory) = pins {
                loader.map_pin_path(name, directory.join(name));
            }
        }
        let ebpf = loader.load(elf).map_err(load_error)?;
        Ok(Self { ebpf })
    }

    /// Has the kernel verify the program of that name, which the object must define.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the verifier's last words.
    pub(crate) fn verify(&mut self, name: &str) -> Result<(), Error> {
        let loaded = syscall::persist(was_interrupted, || match self.named(name) {
            Program::SchedClassifier(program) => program.load(),
            Program::Xdp(program) => program.load(),
            Program::BtfTracePoint(program) => program.load(name, &Btf::from_sys_fs()?),
            _ => unreachable!("the objects have no other programs"),
        });
        loaded.map_err(|error| refused(name, error))
    }

    /// The program of that name, which the object must define.
    ///
    /// # Errors
    ///
    /// When its descriptor cannot be duplicated.
    pub fn program(&mut self, name: &str) -> Result<OwnedFd, Error> {
        let fd = self.named(name).fd().map_err(load_error)?.as_fd();
        fd.try_clone_to_owned().map_err(load_error)
    }

    fn named(&mut self, name: &str) -> &mut Program {
        self.ebpf.program_mut(name).expect("the object defines it")
    }

    /// Takes out a hash map or prefix trie.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] if there is none of that name and entry size.
    pub fn hash_map<K: Plain, V: Plain>(
        &mut self,
        name: &'static str,
    ) -> Result<HashMap<K, V>, Error> {
        let (map, capacity) = self.take::<K, V>(name)?;
        Ok(HashMap::new(name, map, capacity))
    }

    /// Takes out an array and maps it into memory.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] if there is none of that name and entry size.
    pub fn array<T: Plain>(&mut self, name: &'static str) -> Result<Array<T>, Error> {
        let (map, length) = self.take::<u32, T>(name)?;
        syscall::map_array(map.as_fd(), length).map_err(|error| Error::MapOperation {
            name,
            operation: "mmap",
            error,
        })
    }

    pub(crate) fn counters(&mut self, name: &'static str) -> Result<Counters, Error> {
        let (map, length) = self.take::<u32, Tally>(name)?;
        Ok(Counters::new(map, length, cpus()?))
    }

    pub(crate) fn flows(&mut self, name: &'static str) -> Result<Flows, Error> {
        let (map, capacity) = self.take::<FlowKey, Flow>(name)?;
        Ok(Flows::new(map, capacity, cpus()?))
    }

    /// Takes out a map as it is.
    pub(crate) fn map<K, V>(&mut self, name: &'static str) -> Result<OwnedFd, Error> {
        Ok(self.take::<K, V>(name)?.0)
    }

    fn take<K, V>(&mut self, name: &'static str) -> Result<(OwnedFd, u32), Error> {
        let problem = |problem| Error::Map { name, problem };
        let Some(map) = self.ebpf.take_map(name) else {
            return Err(problem("is missing"));
        };
        let data = match &map {
            Map::Array(data)
            | Map::HashMap(data)
            | Map::LpmTrie(data)
            | Map::DevMapHash(data)
            | Map::PerCpuArray(data)
            | Map::PerCpuHashMap(data)
            | Map::PerCpuLruHashMap(data) => data,
            _ => return Err(problem("has another type")),
        };
        let failed = |operation| {
            move |error: io::Error| Error::MapOperation {
                name,
                operation,
                error,
            }
        };
        let cloned = data.fd().as_fd().try_clone_to_owned();
        let duplicate = cloned.map_err(failed("duplicate"))?;
        let info = syscall::map_info(duplicate.as_fd()).map_err(failed("info"))?;
        if info.key_size as usize != size_of::<K>() || info.value_size as usize != size_of::<V>() {
            return Err(problem("has entries of another size"));
        }
        Ok((duplicate, info.max_entries))
    }
}

fn was_interrupted(error: &ProgramError) -> bool {
    let ProgramError::LoadError { io_error, .. } = error else {
        return false;
    };
    io_error.raw_os_error() == Some(libc::EAGAIN)
}

/// Why a program does not load: one line, and the verifier's log beside it.
fn refused(program: &str, error: ProgramError) -> Error {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            let reason = verdict(&log).map_or_else(|| io_error.to_string(), str::to_owned);
            Error::Refused {
                program: program.to_owned(),
                reason,
                log,
            }
        }
        other => load_error(other),
    }
}

/// The line of the log that says why: the last, but for the statistics behind it.
fn verdict(log: &str) -> Option<&str> {
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    let lines = log.lines().map(str::trim).rev();
    let mut said = lines.filter(|line| !line.is_empty());
    said.find(|line| !STATISTICS.iter().any(|start| line.starts_with(start)))
}

pub(crate) fn cpus() -> Result<usize, Error> {
    nr_cpus().map_err(|(path, error)| Error::Load(format!("{path}: {error}")))
}

fn load_error(error: impl std::error::Error) -> Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    Error::Load(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_the_last_line_before_the_statistics() {
        let log = "2114: (85) call bpf_map_lookup_elem#1\nR2 type=mem expected=fp\n\
                   processed 4945 insns (limit 1000000) max_states_per_insn 10\n\n";
        assert_eq!(verdict(log), Some("R2 type=mem expected=fp"));
        assert_eq!(verdict("\n"), None);
    }
}
