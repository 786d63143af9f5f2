//! What runs inside a booted kernel, in addition to the packet cases.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use lab::bed::{Bed, PORT, RULE};
use lab::socket::{self, Sender, payload};

/// Emulation may send at a fraction of the rate, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
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
inside!(burst, adoption, leaving, refused);

/// The daemon's message where the kernel cannot run the kernel path.
const REFUSAL: &str = "no bpf_loop before Linux 5.17: no kernel path";

/// A bed on that path; `None` if the kernel does not support it and the daemon says so.
fn bed(path: &str) -> Option<Bed> {
    let refuses = path == "kernel" && release() < (5, 17);
    match Bed::new(path) {
        Ok(bed) => {
            assert!(!refuses, "a kernel path before Linux 5.17");
            Some(bed)
        }
        Err(error) => {
            let message = format!("{error:#}");
            assert!(refuses && message.contains(REFUSAL), "{message}");
            println!("refused: {REFUSAL}");
            None
        }
    }
}

/// Version and patch level of the kernel.
pub(crate) fn release() -> (u32, u32) {
    let names = nix::sys::utsname::uname().unwrap();
    let release = names.release().to_string_lossy();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
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
        "burst: {} of {BURST} sent, dropped {:?} {:?}, at the sink {:?}",
        output.sent.packets,
        rule.dropped,
        output.dropped,
        socket::udp_counters(&bed.chain.sink).unwrap(),
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

/// The daemon is killed: packets are relayed meanwhile, and counters continue afterwards.
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

/// What this host itself sends to the group on the input's interface is not received.
fn leaving(path: &str) {
    let Some(bed) = bed(path) else { return };
    let here = Sender::open((&bed.chain.relay, "veth1"), IpAddr::from([10, 0, 0, 2])).unwrap();
    here.send_numbered(bed.group(), PORT, 50, 200).unwrap();
    bed.relay(50, 200).unwrap();
    let rule = bed.daemon.settled(RULE, 50).unwrap();
    assert_eq!(rule.received.packets, 50);
}

/// What the queue of an output's device refuses is counted: sends and clones report it on every kernel.
fn refused(path: &str) {
    let Some(bed) = bed(path) else { return };
    let outputs = ["239.10.2.1%veth2:6001", "239.10.2.2%veth2:6002"];
    let input = "239.1.2.1%veth1:5001";
    bed.daemon.add("two", input, &outputs).unwrap();
    let full = "qdisc add dev veth2 root pfifo limit 0";
    bed.chain.relay.tool("tc", full).unwrap();
    let group = IpAddr::from([239, 1, 2, 1]);
    bed.sender.send_numbered(group, PORT, 20, 200).unwrap();
    let rule = bed.daemon.settled("two", 20).unwrap();
    assert_eq!(rule.outputs[0].dropped["egress_full"], 20, "{rule:?}");
}
