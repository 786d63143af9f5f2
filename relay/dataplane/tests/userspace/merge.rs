//! Rules whose lines are merged: everything that any line delivers leaves once, whichever worker takes it, and
//! however workers and supervisors are replaced meanwhile.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, ensure};
use compile::table::{MergeLegs, Table};
use dataplane::counters::{DropReason, RuleCounters};
use lab::socket::{Datagram, Receiver, Sender, number, payload};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rules::merge::{By, ByteOrder, Field, Merge, Sequence};

use crate::bed::{Bed, Rule};

mod payload;
mod pieces;
mod stalled;

const PATIENCE: Duration = Duration::from_secs(5);
const PORT: u16 = 5001;
/// What a rule shares with others in memory.
const PAGES: u64 = 2 * 4096;
/// The lines' groups.
const LINES: [&str; 3] = ["239.1.1.1", "239.1.1.2", "239.1.1.3"];

/// By the number that payloads of the lab carry.
fn how(window: Duration, packets: u32) -> Merge {
    let number = Field {
        offset: 4,
        bytes: 8,
    };
    Merge {
        by: By::Sequence(Sequence {
            number,
            order: ByteOrder::Big,
            session: None,
            count: None,
        }),
        window,
        packets,
        ..Merge::default()
    }
}

/// A window that is longer than any test.
fn long() -> Merge {
    how(Duration::from_secs(5), 2_048)
}

/// A rule that merges these of [`LINES`].
fn merged(bed: &Bed, name: &str, how: Merge, lines: &[usize]) -> Vec<Rule> {
    let all: Vec<String> = lines.iter().map(|line| LINES[*line].to_owned()).collect();
    let rule = |line: &usize| {
        let outputs = vec![bed.output(0, "239.10.1.1", 6001)];
        let (key, mut route) = bed.rule(name, LINES[*line], PORT, outputs);
        route.input = Some(LINES[*line].to_owned());
        let lines = all.clone();
        route.merge = Some(Box::new(MergeLegs { how, lines }));
        (key, route)
    };
    lines.iter().map(rule).collect()
}

/// A bed with a rule, and who sends and receives.
struct Stream {
    bed: Bed,
    sender: Sender,
    receiver: Receiver,
    sent: u64,
}

impl Stream {
    fn new(workers: usize, how: Merge) -> Result<Self> {
        let mut bed = Bed::new(workers)?;
        bed.apply(merged(&bed, "cam1", how, &[0, 1]))?;
        let address = bed.address("10.0.0.1");
        let sender = Sender::open((&bed.chain.sender, "veth0"), address)?;
        let end = (&bed.chain.sink, "veth3");
        let receiver = Receiver::join(end, bed.address("239.10.1.1"), 6001)?;
        Ok(Self {
            bed,
            sender,
            receiver,
            sent: 0,
        })
    }

    /// Ends the counters of the rule, which has been removed.
    fn forget(&mut self) -> Result<()> {
        self.sent = 0;
        self.bed.with(|dataplane| {
            dataplane.forget(["cam1"]);
            Ok(())
        })
    }

    /// Sends on a line.
    fn send(&mut self, line: usize, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        let group = self.bed.address(LINES[line]);
        for number in numbers {
            self.sender.send(group, PORT, &payload(number, 100))?;
            self.sent += 1;
        }
        Ok(())
    }

    /// What is counted when everything sent so far is.
    fn settled(&mut self) -> Result<RuleCounters> {
        let counters = self.bed.settled("cam1", self.sent)?;
        assert_lawful(&counters);
        Ok(counters)
    }

    /// Checks that all of `numbers` were received once, in any order, and nothing else.
    fn expect(&mut self, numbers: Range<u64>) -> Result<()> {
        self.settled()?;
        let count = (numbers.end - numbers.start) as usize;
        let received = numbers_of(&self.receiver.collect(count, PATIENCE)?)?;
        let distinct: BTreeSet<u64> = received.iter().copied().collect();
        ensure!(distinct.len() == received.len(), "something came twice");
        ensure!(distinct.into_iter().eq(numbers), "{received:?}");
        self.receiver.expect_nothing(Duration::from_millis(50))
    }

    /// Kills a worker and waits for its successor, by packets of another rule.
    fn kill_worker(&mut self, worker: usize) -> Result<()> {
        let victim = self.bed.counters()?.workers[worker].pid;
        // To signal process 0 is to signal oneself.
        ensure!(victim > 0, "the worker has died before");
        kill(Pid::from_raw(victim as i32), Signal::SIGKILL)?;
        self.bed.wait_for("the worker has a successor", |counters| {
            !matches!(counters.workers[worker].pid, 0) && counters.workers[worker].pid != victim
        })
    }

    /// Sends probes until the workers relay.
    fn wait_for_workers(&mut self) -> Result<()> {
        let group = self.bed.address("239.3.3.3");
        let received = |counters: &dataplane::counters::Counters| {
            counters
                .rules
                .get("probe")
                .map_or(0, |rule| rule.received.packets)
        };
        let before = received(&self.bed.counters()?);
        let sender = &self.sender;
        self.bed.wait_for("probes are relayed", |counters| {
            sender.send_numbered(group, PORT, 1, 100).is_ok() && received(counters) > before
        })
    }

    /// The rule, and one for probes.
    fn with_probe(&mut self) -> Result<()> {
        let probe = self.bed.rule("probe", "239.3.3.3", PORT, Vec::new());
        let rules: Vec<_> = self.bed.rules().chain([probe]).collect();
        self.bed.apply(rules)
    }
}

/// The numbers of received datagrams.
fn numbers_of(datagrams: &[Datagram]) -> Result<Vec<u64>> {
    let numbers = datagrams.iter().map(|one| number(&one.payload));
    numbers.collect()
}

/// What all lines received is what was dropped for them, and what each output judged.
fn assert_lawful(counters: &RuleCounters) {
    let inputs = counters.inputs.values();
    let (received, dropped) = inputs.fold((0, 0), |(received, dropped), input| {
        let packets = received + input.received.packets;
        (packets, dropped + input.dropped.total())
    });
    assert_eq!(received, counters.received.packets);
    let of_lines = [DropReason::Duplicate, DropReason::Late, DropReason::Stray];
    let by_line = of_lines.map(|reason| counters.dropped.0[reason as usize]);
    assert_eq!(dropped, by_line.iter().sum::<u64>());
    let output = &counters.outputs[&0];
    let judged = output.sent.packets + output.dropped.total();
    assert_eq!(received, counters.dropped.total() + judged);
}

fn dropped(counters: &RuleCounters, reason: DropReason) -> u64 {
    counters.dropped.0[reason as usize]
}

/// The merge that a change begins is at another index than the former, beyond the slots of the rules.
#[test]
fn what_is_remembered_outlives_a_supervisor_that_changed_how_much() -> Result<()> {
    let mut stream = Stream::new(1, long())?;
    let larger = how(Duration::from_secs(5), 4_096);
    let rules = merged(&stream.bed, "cam1", larger, &[0, 1]);
    stream.bed.apply(rules)?;
    stream.send(0, 0..50)?;
    stream.expect(0..50)?;
    stream.bed.succeed()?;
    stream.send(1, 0..50)?;
    stream.send(0, 50..60)?;
    stream.expect(50..60)?;
    let merge = stream.settled()?.merge;
    let first: u64 = merge
        .iter()
        .flat_map(|it| it.lines.values())
        .map(|line| line.first)
        .sum();
    ensure!(first == 60, "{merge:?}");
    Ok(())
}

#[test]
fn two_lines_that_both_lose_are_merged_whole() -> Result<()> {
    const PACKETS: u64 = 6_000;
    let mut stream = Stream::new(2, how(Duration::from_millis(500), 2_048))?;
    let lost_by = [|n: u64| n % 7 == 3, |n: u64| n % 7 == 5];
    // The second lags.
    for start in (0..PACKETS).step_by(100) {
        stream.send(0, (start..start + 100).filter(|n| !lost_by[0](*n)))?;
        let late = start.saturating_sub(30)..(start + 70);
        stream.send(1, late.filter(|n| !lost_by[1](*n)))?;
        stream.settled()?;
    }
    stream.send(1, (PACKETS - 30..PACKETS).filter(|n| !lost_by[1](*n)))?;
    stream.expect(0..PACKETS)?;
    let counters = stream.settled()?;
    assert_eq!(counters.outputs[&0].sent.packets, PACKETS);
    assert_eq!(
        dropped(&counters, DropReason::Duplicate),
        stream.sent - PACKETS
    );
    let shares = stream.bed.counters()?.workers;
    println!(
        "shares: {:?}",
        shares.iter().map(|w| w.matched).collect::<Vec<_>>()
    );
    let missed = [0, 1].map(|line| (0..PACKETS).filter(|n| lost_by[line](*n)).count() as u64);
    stream
        .bed
        .wait_for("what lines missed is told", |counters| {
            let rule = &counters.rules["cam1"];
            let Some(merge) = &rule.merge else {
                return false;
            };
            let lines = [0, 1].map(|line| merge.lines[LINES[line]]);
            let first: u64 = lines.iter().map(|line| line.first).sum();
            lines.map(|line| line.missed) == missed && first == PACKETS && merge.together.lost == 0
        })
}

/// Lines of RTP of which packets are lost on one and, once, on both: checks the counted losses.
fn lost_of_rtp(workers: usize) -> Result<()> {
    let rtp = Merge {
        by: By::Rtp,
        ..how(Duration::from_millis(100), 2_048)
    };
    let mut bed = Bed::new(workers)?;
    let mut rules = merged(&bed, "cam1", rtp, &[0, 1]);
    for (_, route) in &mut rules {
        route.inspect = Some(rules::health::Inspect::default());
    }
    bed.apply(rules)?;
    let sender = Sender::open((&bed.chain.sender, "veth0"), bed.address("10.0.0.1"))?;
    let mut sent = 0;
    for number in 0..200u16 {
        let mut packet = vec![0x80, 96];
        packet.extend(number.to_be_bytes());
        packet.extend([0, 0, 0, 0, 0, 0, 0, 7, 1, 2, 3, 4]);
        let loses = [number % 10 == 3, number % 20 == 4];
        for (line, _) in (0..)
            .zip(loses)
            .filter(|(_, loses)| !loses && number != 100)
        {
            sender.send(bed.address(LINES[line]), PORT, &packet)?;
            sent += 1;
        }
        if number % 10 == 9 {
            bed.settled("cam1", sent)?;
        }
    }
    bed.wait_for("what both lost is told", |counters| {
        let rule = &counters.rules["cam1"];
        let health = rule.health.as_ref();
        let counts = health.map(|health| (health.rtp_packets, health.lost, health.restarts));
        let merge = rule.merge.as_ref();
        counts == Some((199, 1, 0)) && merge.is_some_and(|merge| merge.together.lost == 1)
    })
}

#[test]
fn a_stream_loses_only_what_no_line_delivered() -> Result<()> {
    lost_of_rtp(1)?;
    lost_of_rtp(2)
}

#[test]
fn nothing_is_sent_twice_when_a_worker_is_replaced() -> Result<()> {
    let mut stream = Stream::new(1, long())?;
    stream.with_probe()?;
    stream.send(0, 0..100)?;
    stream.expect(0..100)?;
    stream.kill_worker(0)?;
    stream.wait_for_workers()?;
    stream.send(1, 0..110)?;
    stream.send(0, 100..120)?;
    stream.expect(100..120)?;
    let counters = stream.settled()?;
    assert_eq!(dropped(&counters, DropReason::Duplicate), 110);
    Ok(())
}

#[test]
fn nothing_is_sent_twice_while_workers_die() -> Result<()> {
    let mut stream = Stream::new(2, long())?;
    let mut next = 0;
    for worker in [0, 1] {
        let victim = stream.bed.counters()?.workers[worker].pid;
        ensure!(victim > 0, "the worker has died before");
        for round in 0..60 {
            if round == 20 {
                kill(Pid::from_raw(victim as i32), Signal::SIGKILL)?;
            }
            stream.send(0, next..next + 20)?;
            stream.send(1, (next..next + 20).map(|n: u64| n.saturating_sub(30)))?;
            next += 20;
            stream.bed.counters()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        stream
            .bed
            .wait_for("the worker has a successor", |counters| {
                !matches!(counters.workers[worker].pid, 0) && counters.workers[worker].pid != victim
            })?;
    }
    let datagrams = stream
        .receiver
        .collect(usize::MAX, Duration::from_millis(500))?;
    let received = numbers_of(&datagrams)?;
    let mut distinct = BTreeSet::new();
    let twice = received.iter().filter(|number| !distinct.insert(**number));
    assert_eq!(
        twice.collect::<Vec<_>>(),
        [&0; 0],
        "came twice; all: {received:?}"
    );
    println!("{} of {next} came", received.len());
    let count = received.len() as u64;
    assert!(count > next / 2, "{count} of {next}");
    Ok(())
}

/// A line repeats a packet while workers are stopped: time that they do not see is no pause of the stream.
#[test]
fn a_stream_continues_however_long_workers_are_stopped() -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(2);
    for workers in [1, 2] {
        let mut stream = Stream::new(workers, how(WINDOW, 2_048))?;
        for line in [0, 1] {
            stream.send(line, 0..100)?;
        }
        stream.expect(0..100)?;
        let groups = [0, 1].map(|line| stream.bed.address(LINES[line]));
        let sender = &stream.sender;
        stream.bed.while_workers_sleep(|| {
            sender.send(groups[1], PORT, &payload(90, 100))?;
            for n in 100..120 {
                for group in groups {
                    sender.send(group, PORT, &payload(n, 100))?;
                }
            }
            std::thread::sleep(WINDOW * 3 / 2);
            Ok(())
        })?;
        stream.sent += 41;
        stream.expect(100..120)?;
    }
    Ok(())
}

#[test]
fn the_next_supervisor_knows_what_has_passed() -> Result<()> {
    let mut stream = Stream::new(1, long())?;
    stream.send(0, 0..100)?;
    stream.expect(0..100)?;
    stream.bed.succeed()?;
    stream.send(1, 0..110)?;
    stream.expect(100..110)?;
    let counters = stream.settled()?;
    assert_eq!(dropped(&counters, DropReason::Duplicate), 100);
    let merge = counters.merge.unwrap();
    assert_eq!(merge.lines[LINES[0]].first, 100);
    assert_eq!(merge.lines[LINES[1]].duplicate, 100);
    Ok(())
}

#[test]
fn a_window_that_the_next_supervisor_does_not_need_is_given_back() -> Result<()> {
    let mut stream = Stream::new(1, how(Duration::from_millis(1), 65_536))?;
    let empty = stream.bed.held_bytes("merges")?;
    stream.send(0, (0..60_000).step_by(100))?;
    stream.settled()?;
    assert!(stream.bed.held_bytes("merges")? > empty);
    stream.bed.succeed_with(Table::default())?;
    assert!(stream.bed.held_bytes("merges")? <= PAGES);
    Ok(())
}

#[test]
fn lines_are_added_and_removed_seamlessly() -> Result<()> {
    let mut stream = Stream::new(1, long())?;
    stream.send(0, 0..50)?;
    stream.expect(0..50)?;
    // Another second line, and another window.
    let wider = how(Duration::from_secs(6), 2_048);
    stream
        .bed
        .apply(merged(&stream.bed, "cam1", wider, &[2, 0]))?;
    stream.send(2, 0..60)?;
    stream.expect(50..60)?;
    // The first is removed.
    stream
        .bed
        .apply(merged(&stream.bed, "cam1", wider, &[1, 2]))?;
    stream.send(1, 0..70)?;
    stream.expect(60..70)?;
    let lines = stream.settled()?.merge.unwrap().lines;
    let counts: Vec<_> = lines
        .iter()
        .map(|(at, l)| (&**at, l.first, l.duplicate))
        .collect();
    assert_eq!(counts, [(LINES[1], 10, 60), (LINES[2], 10, 50)]);
    // A merge that records other numbers begins anew, as does a rule that is added again.
    let other = how(Duration::from_secs(6), 4_096);
    stream
        .bed
        .apply(merged(&stream.bed, "cam1", other, &[1, 2]))?;
    stream.send(2, 60..70)?;
    stream.expect(60..70)?;
    stream.bed.apply([])?;
    stream.forget()?;
    stream
        .bed
        .apply(merged(&stream.bed, "cam1", other, &[1, 2]))?;
    stream.send(1, 60..70)?;
    stream.expect(60..70)?;
    // Not merged any more.
    let mut rules: Vec<_> = stream.bed.rules().collect();
    for (_, route) in &mut rules {
        route.merge = None;
    }
    stream.bed.apply(rules)?;
    stream.send(1, 60..70)?;
    stream.expect(60..70)?;
    assert_eq!(stream.settled()?.merge, None);
    Ok(())
}

#[test]
fn a_removed_rule_gives_its_memory_back() -> Result<()> {
    let mut stream = Stream::new(1, how(Duration::from_secs(5), 65_536))?;
    for round in 0..3 {
        stream.send(0, (0..60_000).step_by(100))?;
        stream.settled()?;
        assert!(stream.bed.held_bytes("merges")? > 50_000, "round {round}");
        let rules: Vec<_> = stream.bed.rules().collect();
        stream.bed.apply([])?;
        stream.forget()?;
        assert!(stream.bed.held_bytes("merges")? <= PAGES, "round {round}");
        stream.bed.apply(rules)?;
    }
    Ok(())
}

#[test]
fn a_rule_without_room_is_refused_by_name() -> Result<()> {
    let mut bed = Bed::new(1)?;
    let large = how(Duration::from_secs(1), 65_536);
    let rules = |count: u16| {
        let mut all = Vec::new();
        for number in 0..count {
            for (mut key, route) in merged(&bed, &format!("r{number}"), large, &[0, 1]) {
                key.ports = rules::net::Ports::single(1_000 + number);
                all.push((key, route));
            }
        }
        all
    };
    let (all, too_many) = (rules(2_048), rules(2_049));
    bed.apply(all)?;
    let refused = bed.apply(too_many).unwrap_err().to_string();
    assert!(
        refused.contains("\"r2048\"") && refused.contains("packets"),
        "{refused}"
    );
    assert_eq!(bed.rules().count(), 4_096);
    Ok(())
}
