//! A third executor: it only has to provide its memory and its hot path. The owners of counters, limits, gates,
//! failovers and all readings are the control side's.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bpf::layout::{Choice, Gate, Line};
use bpf::merge_layout::Merge;
use compile::table::{FailoverLegs, LocalDelivery, Output, OutputState, RateLimit, RateUnit};
use packet::verdict::DropReason;
use rules::failover::Failover as Times;
use sys::field;
use sys::shared_memory::Region;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::gates::{GateMemory, Gates};
use crate::merge::tests::NoBlocks;
use crate::owners::registry::Progress;

/// Owners that there is room for, and queues that packets arrive by, each of which counts by itself.
const SLOTS: usize = 8;
const QUEUES: usize = 2;

sys::region! {
    /// Its memory.
    struct Third as c"mcr-test" {
        /// Those of the first queue, then those of the second.
        counted: [Counted; QUEUES * SLOTS],
        limits: [Limit; SLOTS],
        failovers: [Failover; SLOTS],
        lines: [Line; SLOTS],
        choices: [Choice; SLOTS],
        gates: [Gate; bpf::layout::GATES],
        opened: [u64; bpf::layout::GATES],
        merges: [Merge; 1],
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes)]
struct Counted {
    traffic: Traffic,
    drops: bpf::layout::Drops,
}

impl Third {
    fn new() -> Self {
        Self::create().unwrap().1
    }

    fn control(self) -> Control<Self> {
        let (lines, choices) = (self.lines.clone(), self.choices.clone());
        let failovers = Failovers::new(lines, choices, Clock::Process);
        let merges = Merges::new(self.merges.clone(), NoBlocks, Clock::Process);
        Control::new(self, failovers, merges)
    }

    /// Its hot path: relays a packet that arrives by a queue.
    fn relay(&self, queue: usize, slots: &Slots, bytes: u64) {
        let now_ns = Clock::Process.now_ns();
        self.count(queue, slots.rule, bytes);
        self.count(queue, slots.input, bytes);
        let until = self.gates.load(slots.gate.into(), field!(Gate, until));
        if until <= sys::clock::kernel_boottime_ns() {
            return self.drop(queue, slots.rule, DropReason::Standby);
        }
        let failover = self.failovers.read(slots.rule);
        let choice = self.choices.words(slots.rule).first_chunk().unwrap();
        let line = |line: u32| self.lines.words(line).first_chunk();
        let when = crate::failover::when(&failover);
        if !when.passes(slots.input, now_ns, choice, line) {
            return self.drop(queue, slots.rule, DropReason::Standby);
        }
        let limit = self.limits.read(slots.output);
        let mut due_ns = limit.due_ns;
        if !limits::schedule(&limit).admit(&mut due_ns, now_ns, 1) {
            return self.drop(queue, slots.output, DropReason::RateLimited);
        }
        self.limits
            .store(slots.output, field!(Limit, due_ns), due_ns);
        self.count(queue, slots.output, bytes);
    }

    fn count(&self, queue: usize, slot: u32, bytes: u64) {
        let words = self.counted.words(at(queue, slot));
        for (word, count) in words.iter().zip([1, bytes]) {
            word.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn drop(&self, queue: usize, slot: u32, reason: DropReason) {
        let word = field!(Counted, drops).skip(reason as usize);
        self.counted.add(at(queue, slot), word, 1);
    }
}

const fn at(queue: usize, slot: u32) -> u32 {
    (queue * SLOTS) as u32 + slot
}

impl Memory for Third {
    const PATH: Path = Path::Userspace;
    const FIRST: First = First::Freed;
    const IS_ONE_ROW: bool = true;
    type Base = Traffic;
    type Lanes = ();
    type Blocks = NoBlocks;
    type Error = Infallible;

    fn slots(&self, _: Kind) -> u32 {
        self.limits.len()
    }

    fn begin(&mut self, owner: &Owner<'_>, slot: u32, _: bool) -> Result<Traffic, Infallible> {
        let place = (owner.name.kind(), slot);
        let before = self.traffic(&(), place, None);
        for queue in 0..QUEUES {
            for word in &self.counted.words(at(queue, slot))[Traffic::WORDS..] {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.limits.write(slot, &Limit::default());
        Ok(before.unwrap_or_default().0)
    }

    fn end(&mut self, _: Kind, _: u32) {}

    fn limit(&self, limiter: Limiter) -> Limit {
        match limiter {
            Limiter::Slot(_, slot) => self.limits.read(slot),
            Limiter::Budget => Limit::default(),
        }
    }

    fn set_limit(&mut self, limiter: Limiter, limit: Limit) {
        if let Limiter::Slot(_, slot) = limiter {
            self.limits.write(slot, &limit);
        }
    }

    fn fail_over(&mut self, rule: u32, how: Option<&Failover>) -> Result<(), Infallible> {
        self.failovers
            .write(rule, &how.copied().unwrap_or_default());
        Ok(())
    }

    fn traffic(
        &self,
        (): &(),
        (_, slot): (Kind, u32),
        base: Option<&Traffic>,
    ) -> Option<(Traffic, Drops)> {
        let (mut traffic, mut drops) = (Traffic::default(), Drops::default());
        for queue in 0..QUEUES {
            let counted = self.counted.read(at(queue, slot));
            traffic.add(counted.traffic);
            drops.add(&Drops(counted.drops.packets));
        }
        Some((traffic.since(base.copied().unwrap_or_default()), drops))
    }

    fn of_rule(&self, (): &(), _: u32, _: Option<&Traffic>) -> (HealthCounters, Latency) {
        Default::default()
    }
}

/// The counters and the gate of a route's packets.
struct Slots {
    rule: u32,
    input: u32,
    output: u32,
    gate: u16,
}

const INPUTS: [&str; 2] = ["239.1.1.1%eth0:5001", "239.1.1.2%eth0:5001"];

fn route(input: &str) -> Route {
    Route {
        rule: "news".to_owned(),
        input: Some(input.to_owned()),
        path: Path::Userspace,
        local: LocalDelivery::Auto,
        limit: None,
        failover: Some(Box::new(FailoverLegs {
            when: Times {
                silence: Duration::from_secs(60),
                ..Times::default()
            },
            lines: INPUTS.map(str::to_owned).into(),
        })),
        merge: None,
        share: Some("x".to_owned()),
        inspect: None,
        outputs: vec![Output {
            index: 0,
            to: "239.10.1.1%eth1:6001".to_owned(),
            state: OutputState::Down(compile::table::DownReason::InterfaceDown),
            limit: Some(RateLimit {
                unit: RateUnit::Packets,
                rate: 1,
                burst: 5,
            }),
        }],
    }
}

/// Takes a rule's two routes into use.
fn acquire(control: &mut Control<Third>, gates: &Gates) -> [Slots; 2] {
    let slots = INPUTS.map(|at| {
        let route = route(at);
        control.register(&route);
        let mut slot = |name: Name<'_>| match control.acquire(&name.into()) {
            Ok(slot) => slot.expect("there is room"),
        };
        let slots = Slots {
            rule: slot(Name::Rule(&route.rule)),
            input: slot(Name::Input(&route.rule, at)),
            output: slot(Name::output(&route.rule, &route.outputs[0])),
            gate: gates.acquire(Path::Userspace, "x").expect("there is one"),
        };
        let limiter = Limiter::Slot(Kind::Output, slots.output);
        control.set_limit(
            limiter,
            route.outputs[0].limit.map(limits::new).unwrap_or_default(),
        );
        slots
    });
    let lines = slots.iter().map(|slots| slots.input);
    let failover = crate::failover::of_route(&route(INPUTS[0]), lines);
    let Ok(()) = control.set_failover(slots[0].rule, failover);
    slots
}

fn read(control: &Control<Third>) -> crate::counters::RuleCounters {
    let mut counters = Counters::default();
    control.read(&(), &mut Progress::default(), &mut counters);
    counters.rules.remove("news").expect("it is known")
}

#[test]
fn a_third_executor_provides_its_hot_path_and_its_memory() {
    let gates = Gates::default();
    let third = Third::new();
    let memory = GateMemory {
        gates: third.gates.clone(),
        since: third.opened.clone(),
    };
    gates.adopt(Path::Userspace, memory);
    let mut control = third.control();
    let [first, second] = acquire(&mut control, &gates);

    control.memory.relay(0, &first, 100);
    gates.set("x", u64::MAX);
    for queue in [0, 1, 0] {
        control.memory.relay(queue, &first, 100);
        control.memory.relay(queue, &second, 100);
    }
    assert!(control.switch("news", INPUTS[1]));
    assert!(!control.switch("news", "239.1.1.3%eth0:5001"));
    for queue in [0, 1, 0, 1] {
        control.memory.relay(queue, &second, 50);
    }

    let rule = read(&control);
    assert_eq!((rule.received.packets, rule.received.bytes), (11, 900));
    let inputs = rule.inputs.values().map(|input| input.received.packets);
    assert_eq!(inputs.collect::<Vec<_>>(), [4, 7]);
    let dropped: Vec<_> = rule.dropped.occurred().collect();
    assert_eq!(dropped, [(DropReason::Standby, 4)]);
    let output = &rule.outputs[&0];
    assert_eq!((output.sent.packets, output.sent.bytes), (5, 400));
    let limited: Vec<_> = output.dropped.occurred().collect();
    assert_eq!(limited, [(DropReason::RateLimited, 2)]);
    let failover = rule.failover.expect("its inputs stand by");
    assert_eq!((&*failover.active, failover.changes), (INPUTS[1], 1));
    assert_eq!(control.rules_of([first.rule]).count(), 1);

    // A new one of that name starts from zero, in the memory that the former one counted in.
    for at in INPUTS {
        for name in Name::all_of(&route(at)).take(2) {
            control.owners_mut(name.kind()).release(&name.hash());
        }
        let output = Name::output("news", &route(at).outputs[0]).hash();
        control.owners_mut(Kind::Output).release(&output);
    }
    control.forget("news");
    assert_eq!(control.failovers.active(first.rule), None);
    let [again, _] = acquire(&mut control, &gates);
    assert_eq!(read(&control).received, Traffic::default());
    control.memory.relay(1, &again, 10);
    let rule = read(&control);
    assert_eq!((rule.received.packets, rule.dropped.total()), (1, 0));
    assert_eq!(rule.outputs[&0].sent.bytes, 10);
}

#[test]
fn an_unchanged_limit_continues_and_another_starts_full() {
    let mut control = Third::new().control();
    let limiter = Limiter::Slot(Kind::Rule, 3);
    let limit = |rate| {
        limits::new(RateLimit {
            unit: RateUnit::Packets,
            rate,
            burst: 5,
        })
    };
    control.set_limit(limiter, limit(1));
    let booked = field!(Limit, due_ns);
    control.memory.limits.store(3, booked, 77);
    control.set_limit(limiter, limit(1));
    assert_eq!(control.memory.limits.load(3, booked), 77);
    control.set_limit(limiter, limit(2));
    assert_eq!(control.memory.limits.load(3, booked), 0);
    control.set_limit(limiter, Limit::default());
    assert_eq!(control.memory.limits.read(3), Limit::default());
}
