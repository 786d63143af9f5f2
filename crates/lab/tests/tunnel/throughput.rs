//! 200 groups at 100,000 packets a second in all through two relays: how many are lost. Measured, and
//! only the loss is judged.

use lab::link;
use lab::load::{Load, Plan};

use super::{Bed, GROUPS};

const SECONDS: std::time::Duration = std::time::Duration::from_secs(20);

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
    std::thread::sleep(SECONDS);
    let account = load.finish().unwrap();
    for (daemon, rule) in [(&near, "out"), (&far, "in")] {
        let rule = daemon.rule(rule).unwrap();
        println!(
            "{path}: {} received {} dropped {:?}",
            rule.name, rule.received.packets, rule.outputs[0].dropped
        );
    }
    let sent = link::statistics((&bed.near, "wan")).unwrap();
    println!(
        "{path}: {} of {} lost, {} twice, {} of the bed, {} out of order; {sent:?}",
        account.missing(),
        account.sent,
        account.duplicated,
        account.bed_dropped,
        account.reordered
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
