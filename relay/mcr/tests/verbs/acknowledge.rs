//! `mcr acknowledge`.

use lab::link;
use lab::wait;
use serde_json::Value;

use crate::bed::Bed;

fn acknowledged(bed: &Bed) -> Value {
    bed.json(&["stats", "--json"])["rules"][0]["acknowledged"].clone()
}

#[test]
fn an_acknowledgement_is_shown_until_the_trouble_is_over_and_over_restarts() {
    let Some(mut bed) = Bed::new(None, &[]) else {
        return;
    };
    bed.add();
    bed.refuses(&["acknowledge", "cam9"], 3, &["cam9"]);
    bed.refuses(&["acknowledge", "cam1"], 1, &["cam1", "no trouble"]);
    link::down((&bed.chain.relay, "veth2")).unwrap();
    let is =
        |bed: &Bed, word: &str| bed.json(&["stats", "--json"])["rules"][0]["condition"] == word;
    wait::until("it is down", || is(&bed, "down")).unwrap();
    assert_eq!(acknowledged(&bed), Value::Null);
    let acknowledge = ["acknowledge", "cam1", "--message", "ticket 7"];
    bed.daemon.mcr(&acknowledge).unwrap();
    let reported = acknowledged(&bed);
    assert_eq!(
        (&reported["by"]["user"], &reported["message"]),
        (&"root".into(), &"ticket 7".into())
    );
    for command in [&["show", "cam1"][..], &["status"]] {
        let text = bed.daemon.mcr(command).unwrap();
        assert!(
            text.contains("acknowledged by root") && text.contains("ticket 7"),
            "{text}"
        );
    }
    bed.daemon.mcr(&["acknowledge", "cam1", "--undo"]).unwrap();
    assert_eq!(acknowledged(&bed), Value::Null);
    bed.daemon.mcr(&acknowledge).unwrap();
    let before = acknowledged(&bed);
    bed.daemon.kill().unwrap();
    bed.daemon.start_again().unwrap();
    wait::until("it is down", || is(&bed, "down")).unwrap();
    assert_eq!(acknowledged(&bed), before);
    // A new failure is not acknowledged.
    link::up((&bed.chain.relay, "veth2")).unwrap();
    wait::until("it is well", || !is(&bed, "down")).unwrap();
    link::down((&bed.chain.relay, "veth2")).unwrap();
    wait::until("it is down again", || is(&bed, "down")).unwrap();
    wait::until("that is forgotten", || acknowledged(&bed) == Value::Null).unwrap();
}
