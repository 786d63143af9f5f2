//! The windows of rules whose lines are merged: which rule has which blocks, which line which place.
//!
//! What packets may still be judged by is given back when no worker judges by it any more
//! ([`Merges::settle`]), so what comes finds room beside what goes or is refused.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use bpf::merge::{BLOCKS, Reading, counts};
use model::table::Route;
use sys::shared_memory;

use super::error::Error;
use crate::counters::MergeCounters;
use crate::merge::{self, How, Space, Words};
use crate::userspace::shared::layout::RuleSlot;
use crate::userspace::shared::merges::{SharedMerges, block_bytes, owner_at, rule_bytes};
use crate::userspace::shared::messages::CountedRoute;

/// The windows, and whose they are.
#[derive(Debug)]
pub(super) struct Merges {
    region: OwnedFd,
    shared: SharedMerges,
    space: Space,
    running: BTreeMap<RuleSlot, Running>,
    /// Rules that changed since workers confirmed anything.
    changed: BTreeSet<RuleSlot>,
    /// Blocks that rules had before they changed.
    outdated: Vec<(u32, u32)>,
}

/// A rule that has a window.
#[derive(Debug)]
struct Running {
    how: How,
    first_block: u32,
    /// Its lines, by the inputs' slots.
    lines: Vec<u32>,
    /// Routes that lead here.
    uses: u32,
    /// What was read of it before.
    reading: Mutex<Reading>,
}

impl Merges {
    /// Makes the memory; no rule has a window yet.
    ///
    /// # Errors
    /// The system call's.
    pub(super) fn create() -> io::Result<Self> {
        let region = SharedMerges::create()?;
        let shared = SharedMerges::map(region.as_fd())?;
        Ok(Self::new(region, shared))
    }

    fn new(region: OwnedFd, shared: SharedMerges) -> Self {
        Self {
            region,
            shared,
            space: Space::new(BLOCKS),
            running: BTreeMap::new(),
            changed: BTreeSet::new(),
            outdated: Vec::new(),
        }
    }

    /// Takes over the memory of an earlier supervisor with the windows of the rules that count in
    /// `rules`, so that nothing passes again that has passed. Those that no route needs by the next
    /// [`Merges::settle`] are given back then.
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub(super) fn inherit(
        (region, shared): (OwnedFd, SharedMerges),
        rules: impl Iterator<Item = RuleSlot>,
    ) -> io::Result<Self> {
        // Mapped memory that is looked at is there from then on; what is read is not.
        let file = File::from(region.try_clone()?);
        let mut merges = Self::new(region, shared);
        let now_ns = sys::clock::monotonic_ns();
        for rule in rules {
            let mut owner = [0; size_of::<u64>()];
            file.read_exact_at(&mut owner, owner_at(rule) as u64)?;
            if owner != [0; size_of::<u64>()] {
                merges.adopt(rule, now_ns);
            }
        }
        Ok(merges)
    }

    fn adopt(&mut self, rule: RuleSlot, now_ns: u64) {
        let mut words = &self.shared;
        let found = merge::find(&mut words, rule.0, now_ns).filter(|found| found.owner == rule.0);
        let Some(found) = found else {
            return;
        };
        if !self.space.occupy(found.first_block, found.how.blocks()) {
            return;
        }
        let lines = merge::lines(&words.merge(rule.0));
        let running = Running {
            how: found.how,
            first_block: found.first_block,
            lines: lines.into_iter().flatten().collect(),
            uses: 0,
            reading: Mutex::default(),
        };
        self.running.insert(rule, running);
        self.changed.insert(rule);
    }

    /// The memory, for workers and for the next supervisor.
    pub(super) fn region(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }

    /// What the lines of a route's rule brought.
    pub(super) fn read(&self, counted: &CountedRoute) -> Option<MergeCounters> {
        let running = self.running.get(&counted.rule)?;
        let running = Some(running).filter(|running| running.how.format.has_lines())?;
        let windows = self.shared.windows();
        let rule = counted.rule.0;
        let places = merge::lines(&windows.rule(rule));
        let mut reading = running.reading.lock();
        let reading = reading.as_mut().unwrap_or_else(|error| error.get_mut());
        let block = |number| Some(windows.block(number));
        let now_ns = sys::clock::monotonic_ns();
        let counts = counts(|| windows.rule(rule), reading, block, now_ns);
        let lines = counted.lines_by_name();
        let places = lines.filter_map(|(at, line)| {
            let place = places.iter().position(|owner| *owner == Some(line.0))?;
            Some((at, place))
        });
        Some(MergeCounters::of(&counts, places))
    }

    /// Makes sure that there is room for the windows of `routes`, each with its rule's slot if that has
    /// one, while nothing else goes.
    ///
    /// # Errors
    /// [`Error::MergeRoom`].
    pub(super) fn check_room<'a>(
        &self,
        routes: impl Iterator<Item = (Option<RuleSlot>, &'a Route)>,
    ) -> Result<(), Error> {
        let mut space = None;
        let mut seen = HashSet::new();
        for (slot, route) in routes {
            let Some(lines) = &route.merge else {
                continue;
            };
            let how = How::of(&lines.how);
            let running = slot.and_then(|slot| self.running.get(&slot));
            if running.is_some_and(|running| running.how.keeps_memory_of(how))
                || !seen.insert(&route.rule)
            {
                continue;
            }
            let space = space.get_or_insert_with(|| self.space.clone());
            space.take(how.blocks()).ok_or_else(|| no_room(route))?;
        }
        Ok(())
    }

    /// Gives a route that comes into use its rule's window, and its line a place there.
    ///
    /// # Errors
    /// [`Error::MergeRoom`].
    pub(super) fn acquire(&mut self, counted: &mut CountedRoute) -> Result<(), Error> {
        counted.place = None;
        let Some(lines) = &counted.route.merge else {
            return Ok(());
        };
        let how = How::of(&lines.how);
        self.open(counted.rule, how)
            .ok_or_else(|| no_room(&counted.route))?;
        self.changed.insert(counted.rule);
        let wanted: Vec<u32> = counted.lines.iter().map(|line| line.0).collect();
        let (mut words, rule) = (&self.shared, counted.rule.0);
        if let Some(running) = self.running.get_mut(&counted.rule) {
            running.uses += 1;
            if !how.format.has_lines() {
                counted.place = Some(0);
                return Ok(());
            }
            if running.lines != wanted {
                let now_ns = sys::clock::monotonic_ns();
                for line in &wanted {
                    merge::join(&mut words, rule, (*line, &wanted), now_ns);
                }
                running.lines = wanted;
            }
        }
        let mut places = merge::lines(&words.merge(rule)).into_iter();
        let place = counted
            .input
            .and_then(|input| places.position(|line| line == Some(input.0)));
        counted.place = place.map(|place| place as u32);
        Ok(())
    }

    /// Notes that a route is no longer used.
    pub(super) fn release(&mut self, counted: &CountedRoute) {
        if counted.route.merge.is_none() {
            return;
        }
        self.changed.insert(counted.rule);
        if let Some(running) = self.running.get_mut(&counted.rule) {
            running.uses = running.uses.saturating_sub(1);
        }
    }

    /// Gives back what nothing leads to any more. To be called when every worker, those of an earlier
    /// supervisor too, goes by the latest routes or has ended.
    pub(super) fn settle(&mut self) {
        for rule in std::mem::take(&mut self.changed) {
            let mut words = &self.shared;
            let Some(running) = self.running.get(&rule) else {
                continue;
            };
            if running.uses > 0 {
                merge::part_with_others(&mut words, rule.0, &running.lines);
                continue;
            }
            self.outdated
                .push((running.first_block, running.how.blocks()));
            self.running.remove(&rule);
            merge::tear_down(&mut words, rule.0);
            self.clear(rule_bytes(rule));
        }
        for (first, count) in std::mem::take(&mut self.outdated) {
            self.clear(block_bytes(first, count));
            self.space.give_back(first);
        }
    }

    /// Opens a rule's window, or changes the one that it has; one that keeps other numbers begins anew
    /// where it stands, and packets that are being judged meanwhile may come twice. `None` where there
    /// is no room.
    fn open(&mut self, rule: RuleSlot, how: How) -> Option<()> {
        let mut words = &self.shared;
        let running = self.running.get_mut(&rule);
        if let Some(running) = running
            && running.how.keeps_memory_of(how)
        {
            if running.how.window_ns != how.window_ns {
                merge::set_window(&mut words, rule.0, how.window_ns);
                running.how = how;
            }
            return Some(());
        }
        let first_block = self.space.take(how.blocks())?;
        // A supervisor that was killed may have left something there.
        self.clear(block_bytes(first_block, how.blocks()));
        let mut words = &self.shared;
        merge::set_up(&mut words, rule.0, rule.0, (how, first_block));
        let before = self.running.remove(&rule);
        self.outdated
            .extend({ before.as_ref() }.map(|before| (before.first_block, before.how.blocks())));
        let running = Running {
            how,
            first_block,
            lines: Vec::new(),
            uses: before.map_or(0, |before| before.uses),
            reading: Mutex::default(),
        };
        self.running.insert(rule, running);
        Some(())
    }

    /// Zeroes part of the memory.
    fn clear(&self, bytes: Range<usize>) {
        if let Err(error) = shared_memory::clear(self.region(), bytes.clone()) {
            tracing::warn!("memory of a merged rule stays in use: {error}");
            self.shared.zero(bytes);
        }
    }
}

fn no_room(route: &Route) -> Error {
    let packets = { route.merge.as_ref() }.map_or(0, |lines| lines.how.packets);
    Error::MergeRoom {
        rule: route.rule.clone(),
        packets,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::merge::Merge;
    use model::table::{LocalDelivery, MergeLines, Path};

    use super::*;
    use crate::userspace::shared::flows::FlowOwner;
    use crate::userspace::shared::layout::InputSlot;

    /// A route of a rule with two lines, for packets of one of them.
    fn counted(rule: u32, packets: u32, line: u32) -> CountedRoute {
        let lines = ["a", "b"].map(str::to_owned);
        let how = Merge {
            packets,
            window: Duration::from_secs(1),
            ..Merge::default()
        };
        CountedRoute {
            route: Route {
                rule: format!("r{rule}"),
                input: lines.get(line as usize).cloned(),
                path: Path::Userspace,
                local: LocalDelivery::Auto,
                limit: None,
                failover: None,
                merge: Some(Box::new(MergeLines {
                    how,
                    lines: lines.into(),
                })),
                share: None,
                inspect: None,
                outputs: Vec::new(),
            },
            rule: RuleSlot(rule),
            input: Some(InputSlot(10 * rule + line)),
            lines: [0, 1].map(|line| InputSlot(10 * rule + line)).into(),
            place: None,
            gate: None,
            is_seen_whole: true,
            flows: FlowOwner::new(RuleSlot(rule), 0),
            outputs: Vec::new(),
        }
    }

    fn inherit(merges: Merges, rules: u32) -> Merges {
        let Merges { region, shared, .. } = merges;
        Merges::inherit((region, shared), (0..rules).map(RuleSlot)).unwrap()
    }

    #[test]
    fn a_successor_keeps_what_its_routes_need_and_gives_back_the_rest() {
        let mut merges = Merges::create().unwrap();
        for rule in [1, 3] {
            merges.acquire(&mut counted(rule, 65_536, 0)).unwrap();
        }
        let mut merges = inherit(merges, 5);
        assert_eq!(merges.running.len(), 2);
        let mut second = counted(3, 65_536, 1);
        merges.acquire(&mut second).unwrap();
        assert_eq!(second.place, Some(1));
        let first_block = merges.running[&RuleSlot(3)].first_block;
        merges.settle();
        assert_eq!(merges.running.keys().collect::<Vec<_>>(), [&RuleSlot(3)]);
        assert_eq!(merges.running[&RuleSlot(3)].first_block, first_block);
        assert_eq!(merges.space.take(1), Some(0), "the other's are free");
    }

    #[test]
    fn a_successor_believes_no_two_rules_that_claim_the_same() {
        let mut merges = Merges::create().unwrap();
        merges.acquire(&mut counted(0, 4_096, 0)).unwrap();
        let mut words = &merges.shared;
        let stolen = words.merge(0);
        words.set_merge(1, &stolen);
        let how = merges.running[&RuleSlot(0)].how;
        merge::set_up(&mut words, 2, 2, (how, 1));
        let merges = inherit(merges, 5);
        assert_eq!(merges.running.keys().collect::<Vec<_>>(), [&RuleSlot(0)]);
    }

    #[test]
    fn another_number_of_packets_needs_room_beside_the_former() {
        let mut merges = Merges::create().unwrap();
        let mut route = counted(0, 65_536, 0);
        merges.acquire(&mut route).unwrap();
        let before = merges.running[&RuleSlot(0)].first_block;
        let mut other = counted(0, 32_768, 0);
        merges.acquire(&mut other).unwrap();
        merges.release(&route);
        assert_eq!(other.place, Some(0));
        assert_ne!(merges.running[&RuleSlot(0)].first_block, before);
        assert_eq!(merges.running[&RuleSlot(0)].uses, 1);
        merges.settle();
        assert_eq!(merges.space.take(1), Some(before));
        merges.release(&other);
        merges.settle();
        assert!(merges.running.is_empty());
    }
}
