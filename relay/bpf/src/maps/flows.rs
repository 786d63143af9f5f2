//! The flows of ranges: a per-CPU hash map of the most recently seen.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use aya_obj::generated::bpf_cmd;

use crate::Error;
use crate::layout::{Flow, FlowKey};
use crate::map::HashMap;
use crate::syscall::{attr, bpf};

/// The map.
#[derive(Clone, Debug)]
pub struct Flows {
    map: HashMap<FlowKey, Flow>,
    cpus: usize,
}

impl Flows {
    pub(crate) fn new(map: OwnedFd, capacity: u32, cpus: usize) -> Self {
        let map = HashMap::new("flows", map, capacity);
        Self { map, cpus }
    }

    /// Reads all flows, each summed over all CPUs.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read(&self) -> Result<BTreeMap<FlowKey, Flow>, Error> {
        let size = self.map.capacity() as usize;
        let mut keys = vec![FlowKey::default(); size];
        let mut values = vec![Flow::default(); size * self.cpus];
        let mut flows = BTreeMap::new();
        let mut position = 0u32;
        let mut first = true;
        loop {
            let mut attr = attr();
            attr.batch.in_batch = if first { 0 } else { &raw const position as u64 };
            attr.batch.out_batch = &raw mut position as u64;
            attr.batch.keys = keys.as_mut_ptr() as u64;
            attr.batch.values = values.as_mut_ptr() as u64;
            attr.batch.count = self.map.capacity();
            attr.batch.map_fd = self.map.as_fd().as_raw_fd() as u32;
            // SAFETY: `keys` has room for `count` keys and `values` for as many values on each
            // possible CPU, 16 bytes each; a hash map's position is a u32.
            let result = unsafe { bpf(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr) };
            // SAFETY: reads the union member that was passed.
            let count = unsafe { attr.batch.count } as usize;
            let end = match result {
                Ok(_) => count == 0,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(failed(error)),
            };
            let counted = values.chunks_exact(self.cpus).map(sum);
            flows.extend(keys[..count].iter().copied().zip(counted));
            if end {
                return Ok(flows);
            }
            first = false;
        }
    }

    /// Removes the flows of a counter that gets another owner.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn forget(&mut self, counter: u32) -> Result<(), Error> {
        let keys = self.read()?.into_keys();
        let stale: Vec<FlowKey> = keys.filter(|key| key.counter == counter).collect();
        self.map.remove(&stale)
    }
}

fn sum(per_cpu: &[Flow]) -> Flow {
    per_cpu.iter().fold(Flow::default(), |sum, one| Flow {
        packets: sum.packets.wrapping_add(one.packets),
        bytes: sum.bytes.wrapping_add(one.bytes),
    })
}

fn failed(error: io::Error) -> Error {
    Error::MapOperation {
        name: "flows",
        operation: "lookup",
        error,
    }
}
