//! Many relays at once, without their daemons.

use std::time::Duration;

use lab::fleet::etcd::Storage;
use lab::fleet::simulation::{Options, run};

use crate::{is_skipped, turn};

#[test]
fn twenty_relays_share_rules_and_take_over() {
    if is_skipped() {
        return;
    }
    let _turn = turn();
    let options = Options {
        relays: 20,
        rules: 400,
        shares: 100,
        hold: Duration::from_millis(2400),
        rest: Duration::from_secs(2),
        stopped: 2,
        storage: Storage::Memory,
    };
    let report = run(&options, |step| println!("{step}")).unwrap();
    println!("{report:?}");
    assert_eq!((report.overlaps, report.flaps), (0, 0));
    assert!(report.bereft > 0 && report.takeover_ms.is_some());
    assert!(report.held.0 > 0, "a relay has nothing");
}
