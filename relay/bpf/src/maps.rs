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

/// Flows of ranges that are recorded.
const FLOWS: u32 = 4096;

/// The capacity of the maps. There are `routes + outputs` counters: a rule and an output need one each, and so
/// does an input of a rule with several, which has slots of its own for the rule's outputs.
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
    /// What `rules` rules of one input and output each need, with room for a change of each; at least the
    /// default.
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

/// Declares the maps, each a row: its type in user space, how it is taken from the object, and its number of
/// entries; for those that only the program uses, the number of entries.
macro_rules! maps {
    (
        ($capacity:ident, $cpus:ident);
        shared { $($(#[$what:meta])+ $name:ident: $type:ty = $take:ident, $entries:expr;)+ }
        own { $($own:ident: $own_entries:expr;)+ }
    ) => {
        /// Everything the program and user space share.
        #[derive(Debug)]
        pub struct Maps {
            $($(#[$what])+ pub $name: $type,)+
        }

        impl Maps {
            /// The names of the object's maps.
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name),)+ $(stringify!($own)),+];

            /// The number of entries of each, on a host with so many CPUs.
            pub(crate) fn sizes(
                $capacity: Capacity,
                $cpus: usize,
            ) -> [(&'static str, u32); Self::NAMES.len()] {
                [
                    $((stringify!($name), $entries),)+
                    $((stringify!($own), $own_entries),)+
                ]
            }

            pub(crate) fn take(object: &mut Object) -> Result<Self, Error> {
                Ok(Self {
                    $($name: object.$take(stringify!($name))?,)+
                })
            }
        }
    };
}

maps! {
    (capacity, cpus);
    shared {
        /// Key to index in `route_table`.
        routes: HashMap<RouteKey, u32> = hash_map, capacity.routes;
        /// The same for IPv6.
        routes6: HashMap<RouteKey6, u32> = hash_map, capacity.routes;
        /// What each route's packets obey.
        route_table: Array<Route> = array, capacity.routes * 2;
        /// Blocks of outputs.
        outputs: Array<Output> = array, capacity.outputs;
        /// Packets and bytes of rules and outputs.
        counters: Counters = counters, capacity.counters();
        /// When each counter last changed, [`layout::ACTIVITY_TICKS`] counters in an entry.
        activity: Array<Activity> = array, layout::activity_entries(capacity.counters());
        /// Drops of rules and outputs, indexed alike.
        drops: Array<Drops> = array, capacity.counters();
        /// Rate limits of rules and outputs, indexed alike.
        limits: Array<Limit> = array, capacity.counters();
        /// The health of the streams of routes, by index in `route_table`.
        health: Array<Health> = array, capacity.routes * 2;
        /// The continuity counters of those whose payload is inspected, by the same index.
        pids: HashMap<u32, Pids> = hash_map, capacity.routes * 2;
        /// The health of rules' former routes, by the rule's counter.
        past_health: HashMap<u32, PastHealth> = hash_map, capacity.routes;
        /// The latency of rules, by the rule's counter.
        latency: HashMap<u32, Latency> = hash_map, capacity.routes;
        /// How a rule fails over between its inputs, by the rule's counter.
        failovers: HashMap<u32, Failover> = hash_map, capacity.routes;
        /// When packets of those inputs arrived, by the input's counter.
        lines: Array<Line> = array, capacity.counters();
        /// The input of a rule that passes, by the rule's counter.
        choices: Array<Choice> = array, capacity.counters();
        /// The state of merges, by the number of the merge.
        merges: Array<Merge> = array, capacity.merges();
        /// The numbers that their legs delivered.
        merge_blocks: HashMap<u32, MergeBlock> = hash_map, merge::BLOCKS_MAX;
        /// Until when packets of each share pass. They may be opened and shut from any thread.
        gates: Array<Gate> = array, layout::GATES;
        /// Since when each of them is open, by the same clock.
        opened: Array<u64> = array, layout::GATES;
        /// The owner of each counter, indexed alike.
        identities: Array<Identity> = array, capacity.counters();
        /// What concerns all packets.
        settings: Array<Settings> = array, 1;
        /// Group prefix to its block in `candidates`.
        ranges: HashMap<RangeKey, Range> = hash_map, capacity.routes;
        /// Blocks of routes for ranges.
        candidates: Array<Candidate> = array, capacity.candidates();
        /// Exact keys without ports to index in `route_table`, for fragments whose ports are not known.
        group_routes: HashMap<GroupKey, u32> = hash_map, capacity.routes;
        /// The flows of ranges.
        flows: Flows = flows, FLOWS;
        /// This host's addresses, and which VRF its interfaces are in.
        own_sources: HashMap<Address, u32> = hash_map, 65_536;
    }
    own {
        cuts: cpus as u32;
        fragments: packet::fragment_cache::DATAGRAMS as u32;
        askers: layout::ASKERS;
    }
}

impl Maps {
    /// Maps that former versions of this layout did not have. Where they are not pinned they begin empty.
    pub(crate) const LATER: &[&str] = &["opened"];

    /// Checks that maps that are indexed alike have equal lengths, and others the required one, which pinned ones
    /// may not have.
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
            ("opened", self.opened.len(), layout::GATES),
        ];
        match lengths
            .into_iter()
            .find(|(_, length, wanted)| length != wanted)
        {
            Some((name, ..)) => Err(Error::Map { name, problem }),
            None => Ok(()),
        }
    }
}
