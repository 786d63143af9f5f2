//! The program passes this kernel's verifier with room to spare, whatever the tables hold: routes and
//! outputs are data, so the verifier's effort does not depend on their number.

use bpf::Capacity;
use bpf::program::Program;
use bpf::xdp::Xdp;

/// The kernel's own limit is a million.
const INSTRUCTIONS_MAX: u32 = 120_000;

#[test]
fn the_verifier_has_room_to_spare_whatever_the_number_of_outputs() {
    if let Err(reason) = bpf::probe::probe() {
        eprintln!("skipped: no kernel path: {reason}");
        return;
    }
    if lacks_loop() {
        return;
    }
    let walked = |outputs| {
        let capacity = Capacity {
            routes: 64,
            outputs,
        };
        let program = Program::load(None, capacity).expect("the program loads");
        let facts = program.facts().expect("the kernel tells");
        facts.verified_instructions
    };
    let (few, many) = (walked(64), walked(65_536));
    println!("{few} instructions verified");
    assert!((1..INSTRUCTIONS_MAX).contains(&few), "{few}");
    assert_eq!(few, many);
}

#[test]
fn the_verifier_has_room_to_spare_for_the_hook_at_xdp() {
    if let Err(reason) = bpf::probe::probe() {
        eprintln!("skipped: no kernel path: {reason}");
        return;
    }
    if lacks_loop() {
        return;
    }
    let capacity = Capacity {
        routes: 64,
        outputs: 64,
    };
    let verified = Xdp::verify(capacity);
    if let Err(bpf::Error::Refused { log, .. }) = &verified {
        println!("{log}");
    }
    for (name, facts) in verified.expect("the programs load") {
        println!(
            "{name}: {} instructions verified",
            facts.verified_instructions
        );
        assert!((1..INSTRUCTIONS_MAX).contains(&facts.verified_instructions));
    }
}

fn lacks_loop() -> bool {
    let lacks = bpf::probe::has_loop() == Some(false);
    if lacks {
        eprintln!("skipped: no bpf_loop before Linux 5.17: no kernel path");
    }
    lacks
}
