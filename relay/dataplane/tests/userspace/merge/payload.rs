//! Lines merged by what is in their packets, whose packets several workers take.

use compile::table::OutputState;
use rules::net::Prefix;

use super::*;

/// A family's lines, sender, and the addresses of the output. Packets are shared by their addresses: of the lines of
/// each family, one is for each worker.
struct Family {
    lines: [&'static str; 2],
    sender: &'static str,
    source: &'static str,
    group: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        lines: ["239.1.1.1", "239.1.1.2"],
        sender: "10.0.0.1",
        source: "10.0.1.1",
        group: "239.10.1.1",
    },
    Family {
        lines: ["ff3e::1", "ff3e::3"],
        sender: "fd00::1",
        source: "fd00:1::1",
        group: "ff3e::77",
    },
];

fn of_payload(bed: &Bed, family: &Family, window: Duration) -> Vec<Rule> {
    let how = Merge {
        by: By::Payload,
        window,
        packets: 8_192,
        ..Merge::default()
    };
    let lines = family.lines.map(str::to_owned).to_vec();
    let rule = |line: &&str| {
        let mut output = bed.output(0, family.group, 6001);
        if let OutputState::Up(egress) = &mut output.state {
            egress.destination = Prefix::host(bed.address(family.group));
            egress.source = Some(bed.address(family.source));
        }
        let (key, mut route) = bed.rule("cam1", line, PORT, vec![output]);
        route.input = Some((*line).to_owned());
        let lines = lines.clone();
        route.merge = Some(Box::new(MergeLegs { how, lines }));
        (key, route)
    };
    family.lines.iter().map(rule).collect()
}

#[test]
fn each_payload_leaves_once_whichever_worker_takes_it() -> Result<()> {
    const PACKETS: u64 = 3_000;
    for family in &FAMILIES {
        let mut bed = Bed::new(2)?;
        bed.apply(of_payload(&bed, family, Duration::from_secs(5)))?;
        let address = bed.address(family.sender);
        let sender = Sender::open((&bed.chain.sender, "veth0"), address)?;
        let end = (&bed.chain.sink, "veth3");
        let receiver = Receiver::join(end, bed.address(family.group), 6001)?;
        let groups = family.lines.map(|line| bed.address(line));
        let lost_by = [|n: u64| n % 7 == 3, |n: u64| n % 7 == 5];
        let mut sent = 0;
        for start in (0..PACKETS).step_by(100) {
            // Both workers have all packets waiting, and meet at the same payloads.
            bed.while_workers_sleep(|| {
                for n in start..start + 100 {
                    for line in [0, 1].into_iter().filter(|line| !lost_by[*line](n)) {
                        sender.send(groups[line], PORT, &payload(n, 100))?;
                        sent += 1;
                    }
                }
                Ok(())
            })?;
            bed.settled("cam1", sent)?;
        }
        let datagrams = receiver.collect(PACKETS as usize, PATIENCE)?;
        let received: BTreeSet<u64> = numbers_of(&datagrams)?.into_iter().collect();
        assert!(received.into_iter().eq(0..PACKETS), "{}", family.group);
        receiver.expect_nothing(Duration::from_millis(50))?;
        let counters = bed.settled("cam1", sent)?;
        assert_eq!(counters.outputs[&0].sent.packets, PACKETS);
        assert_eq!(dropped(&counters, DropReason::Duplicate), sent - PACKETS);
        let workers = bed.counters()?.workers;
        let shares: Vec<u64> = workers.iter().map(|worker| worker.matched).collect();
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    }
    Ok(())
}

/// A line's worker is stopped for longer than the window, and then takes what has arrived meanwhile.
#[test]
fn each_payload_leaves_once_however_long_a_worker_is_stopped() -> Result<()> {
    const PACKETS: u64 = 500;
    const WINDOW: Duration = Duration::from_secs(2);
    for (worker, family) in FAMILIES.iter().enumerate() {
        let mut bed = Bed::new(2)?;
        bed.apply(of_payload(&bed, family, WINDOW))?;
        let address = bed.address(family.sender);
        let sender = Sender::open((&bed.chain.sender, "veth0"), address)?;
        let end = (&bed.chain.sink, "veth3");
        let receiver = Receiver::join(end, bed.address(family.group), 6001)?;
        let groups = family.lines.map(|line| bed.address(line));
        bed.while_asleep(
            |number| number == worker,
            |_| {
                for n in 0..PACKETS {
                    for group in groups {
                        sender.send(group, PORT, &payload(n, 100))?;
                    }
                }
                std::thread::sleep(WINDOW * 3 / 2);
                Ok(())
            },
        )?;
        let counters = bed.settled("cam1", 2 * PACKETS)?;
        assert_eq!(counters.outputs[&0].sent.packets, PACKETS);
        let datagrams = receiver.collect(PACKETS as usize, PATIENCE)?;
        let received: BTreeSet<u64> = numbers_of(&datagrams)?.into_iter().collect();
        assert!(received.into_iter().eq(0..PACKETS), "{}", family.group);
    }
    Ok(())
}
