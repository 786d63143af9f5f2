//! What runs inside a booted kernel, beside the packet cases.

use std::thread;
use std::time::{Duration, Instant};

use api::reply::State;
use lab::bed::{Bed, PORT, RULE};
use lab::socket::payload;

/// Emulation on a machine that does other things too may send at a twentieth of the rate.
const PATIENCE: Duration = Duration::from_secs(300);
const BURST: u64 = 20_000;

macro_rules! inside {
    ($($name:ident),+ $(,)?) => {
        mod kernel {
            $(#[test] #[ignore = "runs inside a booted kernel"] fn $name() { super::$name("kernel"); })+
        }
        mod userspace {
            $(#[test] #[ignore = "runs inside a booted kernel"] fn $name() { super::$name("userspace"); })+
        }
    };
}
inside!(burst, adoption);

/// A bed on that path, unless this kernel has none.
fn bed(path: &str) -> Option<Bed> {
    let bed = Bed::new(path).unwrap();
    let rule = bed.daemon.rule(RULE).unwrap();
    if rule.state == State::Down {
        println!("skipped: {}", rule.path_reason);
        return None;
    }
    Some(bed)
}

/// 20,000 packets at 4,000 packets a second: all arrive.
fn burst(path: &str) {
    let Some(bed) = bed(path) else { return };
    let received = thread::scope(|scope| {
        scope.spawn(|| send(&bed));
        bed.sink.expect(BURST, PATIENCE)
    });
    let rule = bed.daemon.rule(RULE).unwrap();
    let output = &rule.outputs[0];
    println!(
        "burst: {} of {BURST} sent, dropped {:?} {:?}",
        output.sent.packets, rule.dropped, output.dropped
    );
    received.unwrap();
    assert_eq!(output.sent.packets, BURST);
}

/// Sends a burst, four packets a millisecond.
fn send(bed: &Bed) {
    let start = Instant::now();
    for number in 0..BURST {
        let due = start + Duration::from_millis(number / 4);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let packet = payload(number, 200);
        bed.sender.send(bed.group(), PORT, &packet).unwrap();
    }
}

/// The daemon is killed; packets go on meanwhile, and counters afterwards.
fn adoption(path: &str) {
    let Some(mut bed) = bed(path) else { return };
    bed.relay(300, 200).unwrap();
    bed.daemon.kill().unwrap();
    bed.relay(300, 200).unwrap();
    bed.daemon.start_again().unwrap();
    bed.relay(300, 200).unwrap();
    let rule = bed.daemon.settled(RULE, 900).unwrap();
    assert_eq!(rule.outputs[0].sent.packets, 900);
}
