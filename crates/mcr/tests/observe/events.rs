use lab::process::Process;
use lab::wait;
use serde_json::Value;

use crate::bed::Bed;

#[test]
fn events_are_told_as_they_happen() {
    let Some(bed) = Bed::new(&[], &[]) else {
        return;
    };
    let mut command = bed.chain.relay.command(lab::binary::mcr().unwrap());
    command.arg("--socket").arg(bed.daemon.socket());
    command.args(["events", "--json", "cam1"]);
    let events = Process::start(command).unwrap();
    // The follower may not follow yet: rules come and go until it has seen one.
    wait::until("an event is told", || {
        bed.add();
        bed.daemon.mcr(&["remove", "cam1"]).unwrap();
        events.stdout().contains("rule_removed")
    })
    .unwrap();
    let told = events.stdout();
    for line in told.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["subject"], "cam1", "{line}");
        assert!(event["at_ms"].as_u64().unwrap() > 1_600_000_000_000);
    }
    assert!(told.contains("rule_added"), "{told}");
}
