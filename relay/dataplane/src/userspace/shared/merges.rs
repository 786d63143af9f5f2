//! The windows of rules that merge: which packets of a stream have passed. All workers share them, those of
//! an earlier supervisor too, because each leg may reach another worker, and no packet may pass again when a
//! process is replaced.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use bpf::merge::Windows;
use bpf::merge_layout::{Merge, MergeBlock};
use sys::memory::Array;
use sys::shared_memory::{self, Held};

use crate::clock::Clock;
use crate::merge::{BlockMemory, Merges};
use crate::userspace::supervisor::error::Error;

/// The merges in a region; none yet.
pub(crate) fn of_region((region, windows): Held<Windows>) -> SharedMerges {
    let blocks = SharedBlocks {
        region,
        blocks: windows.blocks,
    };
    Merges::new(windows.rules, blocks, Clock::Process)
}

/// Takes over the memory of an earlier supervisor with the merges of the first `rules` rules. A merge may
/// be at any index: one that a change of its parameters began is beside the former.
///
/// # Errors
/// When the memory cannot be read.
pub(crate) fn inherit(held: Held<Windows>, rules: u32) -> io::Result<SharedMerges> {
    // Touching mapped memory would allocate it; reading the file does not.
    let file = File::from(held.0.try_clone()?);
    let mut indices = Vec::new();
    for index in 0..held.1.rules.len() {
        let mut owner = [0; size_of::<u64>()];
        let at = held.1.rules.bytes(index..index + 1).start + offset_of!(Merge, owner);
        file.read_exact_at(&mut owner, at as u64)?;
        if owner != [0; size_of::<u64>()] {
            indices.push(index);
        }
    }
    let mut merges = of_region(held);
    merges.adopt(indices.into_iter(), |rule| rule < rules);
    Ok(merges)
}

/// The merges of this path.
pub(crate) type SharedMerges = Merges<SharedBlocks>;

/// The blocks, as the supervisor gives them to rules and takes them back.
#[derive(Debug)]
pub(crate) struct SharedBlocks {
    /// The memory, for workers and for the next supervisor.
    pub(crate) region: OwnedFd,
    blocks: Array<MergeBlock>,
}

impl SharedBlocks {
    fn clear(&self, blocks: Range<u32>) {
        let bytes = self.blocks.bytes(blocks.clone());
        if let Err(error) = shared_memory::clear(self.region.as_fd(), bytes) {
            tracing::warn!("memory of a merged rule stays in use: {error}");
            for block in blocks {
                self.blocks.write(block, &MergeBlock::default());
            }
        }
    }
}

impl BlockMemory for SharedBlocks {
    type Error = Error;

    /// A supervisor that was killed may have left data there.
    fn take(&mut self, blocks: Range<u32>) -> Result<(), Error> {
        self.clear(blocks);
        Ok(())
    }

    fn give_back(&self, blocks: Range<u32>) -> Result<(), Error> {
        self.clear(blocks);
        Ok(())
    }

    fn read(&self, block: u32) -> Option<MergeBlock> {
        Some(self.blocks.read(block))
    }
}
