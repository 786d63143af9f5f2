//! Allocates entries of arrays, singly and in blocks. What is given back waits for a grace period: a packet
//! may still be reading it.

use std::collections::BTreeMap;

/// Single entries of an array: of `route_table`, gates, merges.
#[derive(Debug)]
pub(crate) struct Indices {
    free: Vec<u32>,
    unused: u32,
    limit: u32,
    waiting: Vec<u32>,
}

impl Indices {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            free: Vec::new(),
            unused: 0,
            limit,
            waiting: Vec::new(),
        }
    }

    /// Rebuilds from the indices in use.
    pub(crate) fn occupy(&mut self, used: impl IntoIterator<Item = u32>) {
        let mut taken = vec![false; self.limit as usize];
        for index in used {
            taken[index as usize] = true;
            self.unused = self.unused.max(index + 1);
        }
        self.free = (0..self.unused)
            .filter(|index| !taken[*index as usize])
            .collect();
    }

    /// How many can be taken, including those that still wait.
    pub(crate) fn room(&self) -> usize {
        self.free.len() + self.waiting.len() + (self.limit - self.unused) as usize
    }

    /// How many can be taken without waiting.
    pub(crate) fn ready(&self) -> usize {
        self.room() - self.waiting.len()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        (self.unused < self.limit).then(|| {
            self.unused += 1;
            self.unused - 1
        })
    }

    /// Gives an index back, to be reused after a grace period.
    pub(crate) fn release(&mut self, index: u32) {
        self.waiting.push(index);
    }

    pub(crate) fn grace_period_passed(&mut self) {
        self.free.append(&mut self.waiting);
    }
}

/// Runs of entries of an array: of `outputs`, `candidates`, the blocks of merges.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Free runs by their start; neighbours are always merged.
    free: BTreeMap<u32, u32>,
    waiting: Vec<(u32, u32)>,
}

impl Blocks {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            free: BTreeMap::from([(0, limit)]),
            waiting: Vec::new(),
        }
    }

    /// Marks a block as in use; parts of it that are already in use stay so.
    fn occupy(&mut self, start: u32, length: u32) {
        let end = start + length;
        // Runs are disjoint, so the ones that overlap the block precede, in reverse, those that end before it.
        let before_end = self.free.range(..end).rev();
        let overlapping: Vec<(u32, u32)> = before_end
            .take_while(|(run, size)| **run + **size > start)
            .map(|(run, size)| (*run, *size))
            .collect();
        for (run, size) in overlapping {
            self.free.remove(&run);
            if run < start {
                self.free.insert(run, start - run);
            }
            if run + size > end {
                self.free.insert(end, run + size - end);
            }
        }
    }

    /// The same for an adopted block, if it exists and no part of it is in use; returns whether that is so: no
    /// two owners may share a block.
    pub(crate) fn occupy_free(&mut self, start: u32, length: u32) -> bool {
        if length == 0 {
            return true;
        }
        let before = self.free.range(..=start).next_back();
        let end = start.checked_add(length);
        let is_free = before.is_some_and(|(run, size)| end.is_some_and(|end| end <= run + size));
        if is_free {
            self.occupy(start, length);
        }
        is_free
    }

    /// Takes a run of `length` slots; the lowest that fits, so that large runs stay large.
    pub(crate) fn take(&mut self, length: u32) -> Option<u32> {
        if length == 0 {
            return Some(0);
        }
        let (start, size) = self
            .free
            .iter()
            .find(|(_, size)| **size >= length)
            .map(|(start, size)| (*start, *size))?;
        self.free.remove(&start);
        if size > length {
            self.free.insert(start + length, size - length);
        }
        Some(start)
    }

    /// Gives a block back, to be reused after a grace period.
    pub(crate) fn release(&mut self, start: u32, length: u32) {
        if length > 0 {
            self.waiting.push((start, length));
        }
    }

    /// Gives a block back that no packet has seen.
    pub(crate) fn put_back(&mut self, start: u32, length: u32) {
        if length == 0 {
            return;
        }
        let mut merged = (start, length);
        if let Some((run, size)) = self.free.range(..start).next_back()
            && *run + *size == start
        {
            merged = (*run, *size + length);
            self.free.remove(&merged.0);
        }
        let end = merged.0 + merged.1;
        if let Some(size) = self.free.remove(&end) {
            merged.1 += size;
        }
        self.free.insert(merged.0, merged.1);
    }

    pub(crate) fn grace_period_passed(&mut self) {
        for (start, length) in std::mem::take(&mut self.waiting) {
            self.put_back(start, length);
        }
    }

    /// Free slots, including those that still wait.
    pub(crate) fn room(&self) -> usize {
        let waiting = self.waiting.iter().map(|(_, length)| *length as usize);
        self.ready() + waiting.sum::<usize>()
    }

    /// Free slots that can be taken without waiting.
    pub(crate) fn ready(&self) -> usize {
        self.free.values().map(|length| *length as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuses_a_block_only_after_a_grace_period() {
        let mut blocks = Blocks::new(4);
        let block = blocks.take(4).expect("all are free");
        blocks.release(block, 4);
        assert_eq!(blocks.take(1), None);
        blocks.grace_period_passed();
        assert_eq!(blocks.take(4), Some(0));
    }

    #[test]
    fn merges_neighbouring_blocks() {
        let mut blocks = Blocks::new(10);
        let starts: Vec<u32> = (0..5).filter_map(|_| blocks.take(2)).collect();
        for start in [starts[0], starts[2], starts[4], starts[1], starts[3]] {
            blocks.put_back(start, 2);
        }
        assert_eq!(blocks.take(10), Some(0));
    }

    #[test]
    fn occupies_blocks_found_in_pinned_maps() {
        let mut blocks = Blocks::new(10);
        blocks.occupy(3, 2);
        blocks.occupy(4, 3);
        assert_eq!(blocks.take(4), None);
        assert_eq!(blocks.take(3), Some(0));
        assert_eq!(blocks.take(3), Some(7));
        assert_eq!(blocks.room(), 0);
    }

    #[test]
    fn blocks_are_taken_where_they_first_fit() {
        let mut blocks = Blocks::new(16);
        let all = [4, 4, 8].map(|length| blocks.take(length));
        assert_eq!(all, [Some(0), Some(4), Some(8)]);
        assert_eq!(blocks.take(4), None);
        blocks.put_back(4, 4);
        assert_eq!(blocks.take(8), None);
        assert_eq!(blocks.take(4), Some(4));
        blocks.put_back(8, 8);
        blocks.put_back(4, 4);
        assert_eq!(blocks.take(12), Some(4));
    }

    #[test]
    fn blocks_that_are_found_are_taken_once() {
        let mut blocks = Blocks::new(16);
        assert!(blocks.occupy_free(4, 4));
        assert!(blocks.occupy_free(5, 0), "that is nothing");
        for (first, count) in [(4, 4), (0, 5), (7, 1), (5, 1), (13, 4), (u32::MAX, 4)] {
            assert!(!blocks.occupy_free(first, count), "{first}, {count}");
        }
        assert!(blocks.occupy_free(8, 8));
        assert_eq!(blocks.take(8), None);
        assert_eq!(blocks.take(4), Some(0));
    }

    #[test]
    fn finds_free_indices_between_those_in_use() {
        let mut indices = Indices::new(4);
        indices.occupy([2]);
        let mut taken: Vec<u32> = std::iter::from_fn(|| indices.take()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 3]);
        assert_eq!(indices.room(), 0);
    }
}
