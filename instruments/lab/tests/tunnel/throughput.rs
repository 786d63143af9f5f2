//! 200 groups at 100,000 packets a second in all through two relays: how many are lost. Measured, and
//! only the loss is judged.

use std::time::{Duration, Instant};

use lab::link;
use lab::load::{Load, Plan};

use super::{Bed, GROUPS};

const SECONDS: Duration = Duration::from_secs(20);

fn carried(path: &str) {
    let bed = Bed::new();
    let [near, far] = bed.relays(path);
    let plan = Plan {
        output: Plan::new(1, 1, 1).input,
        generators: 1,
        burst: 4,
        ..Plan::new(GROUPS, 500, 1024)
    };
    let from = (&bed.sender, "veth0");
    let links = [
        from,
        (&bed.near, "net"),
        (&bed.router, "far"),
        (&bed.far, "out"),
    ];
    let load = Load::start(plan, from, (&bed.sink, "veth3"), &links).unwrap();
    let sent = || link::statistics(from).unwrap().sent;
    let (start, before) = (Instant::now(), sent());
    std::thread::sleep(SECONDS);
    let rate = (sent() - before) as f64 / start.elapsed().as_secs_f64();
    let account = load.finish().unwrap();
    let counted = [(&near, "out"), (&far, "in")]
        .map(|(daemon, rule)| daemon.rule(rule).unwrap().received.packets);
    println!(
        "{path}: {GROUPS} groups, {rate:.0} packets/s: {} of {} lost, {} twice, {} out of order, {} \
         dropped by the bed; the relays received {counted:?}; load {}",
        account.missing(),
        account.sent,
        account.duplicated,
        account.reordered,
        account.bed_dropped,
        std::fs::read_to_string("/proc/loadavg").unwrap().trim()
    );
    account.check_nothing_lost().unwrap();
}

#[test]
#[ignore = "long: make tunnel"]
fn the_kernel_path_loses_nothing() {
    carried("kernel");
}

#[test]
#[ignore = "long: make tunnel"]
fn the_userspace_path_loses_nothing() {
    carried("userspace");
}
