//! What waits in the ring of a stopped worker has arrived: its line has not missed it, nor is it lost.

use std::time::Instant;

use super::*;

const WINDOW: Duration = Duration::from_millis(100);

fn what_is_missing(counters: &RuleCounters) -> ([u64; 2], u64) {
    let merge = counters.merge.as_ref().expect("it is merged");
    let lines = [0, 1].map(|line| merge.lines[LINES[line]].missed);
    (lines, merge.together.lost)
}

/// Each line has a worker of its own; one of these is stopped for several windows, while the counters are read.
fn is_not_missed(how: Merge) -> Result<()> {
    for asleep in [0, 1] {
        let mut stream = Stream::new(2, how)?;
        for line in [0, 1] {
            stream.send(line, 0..100)?;
        }
        stream.expect(0..100)?;
        // By payload nothing that passes within two windows of the merge's beginning counts as missed.
        std::thread::sleep(4 * WINDOW);
        let groups = [0, 1].map(|line| stream.bed.address(LINES[line]));
        let sender = &stream.sender;
        stream.bed.while_asleep(
            |number| number == asleep,
            |bed| {
                let begun = Instant::now();
                for n in (100..).take_while(|_| begun.elapsed() < 6 * WINDOW) {
                    for group in groups {
                        sender.send(group, PORT, &payload(n, 100))?;
                        stream.sent += 1;
                    }
                    let counters = bed.with(|dataplane| Ok(dataplane.counters()?))?;
                    let missing = what_is_missing(&counters.rules["cam1"]);
                    ensure!(
                        missing == ([0, 0], 0),
                        "{missing:?} after {:?}",
                        begun.elapsed()
                    );
                    std::thread::sleep(WINDOW / 10);
                }
                Ok(())
            },
        )?;
        let end = stream.sent / 2;
        stream.expect(100..end)?;
        // What is missed is still counted.
        stream.send(0, [end])?;
        for line in [0, 1] {
            stream.send(line, [end + 1])?;
        }
        stream.expect(end..end + 2)?;
        stream
            .bed
            .wait_for("what a line misses is told", |counters| {
                what_is_missing(&counters.rules["cam1"]) == ([0, 1], 0)
            })?;
    }
    Ok(())
}

#[test]
fn numbers_that_wait_for_a_worker_are_not_missed() -> Result<()> {
    is_not_missed(how(WINDOW, 2_048))
}

#[test]
fn payloads_that_wait_for_a_worker_are_not_missed() -> Result<()> {
    is_not_missed(Merge {
        by: By::Payload,
        ..how(WINDOW, 2_048)
    })
}
