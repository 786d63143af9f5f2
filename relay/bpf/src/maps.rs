//! The memory that the program and user space share: its layout, and each kind of map as a type.

pub mod flows;
pub mod layout;
pub mod map;
pub mod merge_layout;

use sys::memory::Array;

use self::flows::Flows;
use self::layout::{
    Activity, Address, Candidate, Choice, Drops, Failover, Gate, GroupKey, Health, Identity,
    Latency, Limit, Line, Output, PastHealth, Pids, Range, RangeKey, Route, RouteKey, RouteKey6,
    Settings,
};
use self::map::{Counters, HashMap};
use self::merge_layout::{Merge, MergeBlock};
use crate::object::Object;
use crate::{Error, merge};

/// Flows of ranges that are kept.
const FLOWS: u32 = 4096;

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

impl Capacity {
    /// What so many rules of one input and output each need, with room for a change of each; less than
    /// the default never.
    pub fn for_rules(rules: u32) -> Self {
        let default = Self::default();
        Self {
            routes: default.routes.max(rules),
            outputs: default.outputs.max(rules.saturating_mul(2)),
        }
    }

    /// Counters, drop counters and limits, which are indexed alike.
    pub(crate) fn counters(self) -> u32 {
        self.routes + self.outputs
    }

    /// Rules whose legs are merged: each has two routes at least. They are few among many.
    pub(crate) fn merges(self) -> u32 {
        (self.routes / 2).clamp(1, 8_192)
    }

    /// Routes for ranges, by each length of their prefixes, likewise.
    pub(crate) fn candidates(self) -> u32 {
        (self.routes * 4).min(65_536)
    }
}

/// Everything the program and user space share.
#[derive(Debug)]
pub struct Maps {
    /// Key to index in `route_table`.
    pub routes: HashMap<RouteKey, u32>,
    /// The same for IPv6.
    pub routes6: HashMap<RouteKey6, u32>,
    /// What each route's packets obey.
    pub route_table: Array<Route>,
    /// Blocks of outputs.
    pub outputs: Array<Output>,
    /// Packets and bytes of rules and outputs.
    pub counters: Counters,
    /// When which of them were counted in, [`layout::ACTIVITY_TICKS`] counters in an entry.
    pub activity: Array<Activity>,
    /// Drops of rules and outputs, indexed alike.
    pub drops: Array<Drops>,
    /// Rate limits of rules and outputs, indexed alike.
    pub limits: Array<Limit>,
    /// What is known of the streams of routes, by index in `route_table`.
    pub health: Array<Health>,
    /// The continuity counters of those whose payload is inspected, by the same index.
    pub pids: HashMap<u32, Pids>,
    /// What was found in packets of rules' former routes, by the rule's counter.
    pub past_health: HashMap<u32, PastHealth>,
    /// How long packets of rules stay, by the rule's counter.
    pub latency: HashMap<u32, Latency>,
    /// When which of a rule's inputs passes, by the rule's counter.
    pub failovers: HashMap<u32, Failover>,
    /// When packets of those inputs came, by the input's counter.
    pub lines: Array<Line>,
    /// Which of a rule's inputs passes, by the rule's counter.
    pub choices: Array<Choice>,
    /// What is known of legs that are merged, by the number of the merge.
    pub merges: Array<Merge>,
    /// The numbers that they brought.
    pub merge_blocks: HashMap<u32, MergeBlock>,
    /// Until when packets of each share pass. Whoever opens and shuts them does so from any thread.
    pub gates: Array<Gate>,
    /// Whose each counter is, indexed alike.
    pub identities: Array<Identity>,
    /// What concerns all packets.
    pub settings: Array<Settings>,
    /// Group prefix to its block in `candidates`.
    pub ranges: HashMap<RangeKey, Range>,
    /// Blocks of routes for ranges.
    pub candidates: Array<Candidate>,
    /// Exact keys without ports to index in `route_table`, for fragments whose ports are not known.
    pub group_routes: HashMap<GroupKey, u32>,
    /// What was seen of ranges.
    pub flows: Flows,
    /// This host's addresses, and which VRF its interfaces are in.
    pub own_sources: HashMap<Address, u32>,
}

impl Maps {
    /// How many maps the object has.
    pub(crate) const COUNT: usize = 28;

    /// The number of entries of each, on a host with so many CPUs.
    pub(crate) fn sizes(capacity: Capacity, cpus: usize) -> [(&'static str, u32); Self::COUNT] {
        let counters = capacity.counters();
        [
            ("routes", capacity.routes),
            ("routes6", capacity.routes),
            ("route_table", capacity.routes * 2),
            ("outputs", capacity.outputs),
            ("counters", counters),
            ("activity", layout::activity_entries(counters)),
            ("drops", counters),
            ("limits", counters),
            ("health", capacity.routes * 2),
            ("pids", capacity.routes * 2),
            ("past_health", capacity.routes),
            ("latency", capacity.routes),
            ("failovers", capacity.routes),
            ("lines", counters),
            ("choices", counters),
            ("merges", capacity.merges()),
            ("merge_blocks", merge::BLOCKS_MAX),
            ("gates", layout::GATES),
            ("cuts", cpus as u32),
            ("identities", counters),
            ("settings", 1),
            ("ranges", capacity.routes),
            ("candidates", capacity.candidates()),
            ("group_routes", capacity.routes),
            ("own_sources", 65_536),
            ("flows", FLOWS),
            ("fragments", packet::fragment_cache::DATAGRAMS as u32),
            ("askers", layout::ASKERS),
        ]
    }

    /// Checks that maps that are indexed alike are as long as one another, and others as they have to
    /// be, which pinned ones may not be.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] with the name of one that is not.
    pub fn check(&self) -> Result<(), Error> {
        let problem = "has another length than the maps that it belongs to";
        let counters = self.identities.len();
        let lengths = [
            ("health", self.health.len(), self.route_table.len()),
            ("counters", self.counters.len(), counters),
            (
                "activity",
                self.activity.len(),
                layout::activity_entries(counters),
            ),
            ("drops", self.drops.len(), counters),
            ("limits", self.limits.len(), counters),
            ("lines", self.lines.len(), counters),
            ("choices", self.choices.len(), counters),
            ("gates", self.gates.len(), layout::GATES),
        ];
        match lengths
            .into_iter()
            .find(|(_, length, wanted)| length != wanted)
        {
            Some((name, ..)) => Err(Error::Map { name, problem }),
            None => Ok(()),
        }
    }

    pub(crate) fn take(object: &mut Object) -> Result<Self, Error> {
        Ok(Self {
            routes: object.hash_map("routes")?,
            routes6: object.hash_map("routes6")?,
            route_table: object.array("route_table")?,
            outputs: object.array("outputs")?,
            counters: object.counters("counters")?,
            activity: object.array("activity")?,
            drops: object.array("drops")?,
            limits: object.array("limits")?,
            health: object.array("health")?,
            pids: object.hash_map("pids")?,
            past_health: object.hash_map("past_health")?,
            latency: object.hash_map("latency")?,
            failovers: object.hash_map("failovers")?,
            lines: object.array("lines")?,
            choices: object.array("choices")?,
            merges: object.array("merges")?,
            merge_blocks: object.hash_map("merge_blocks")?,
            gates: object.array("gates")?,
            identities: object.array("identities")?,
            settings: object.array("settings")?,
            ranges: object.hash_map("ranges")?,
            candidates: object.array("candidates")?,
            group_routes: object.hash_map("group_routes")?,
            own_sources: object.hash_map("own_sources")?,
            flows: object.flows("flows")?,
        })
    }
}
