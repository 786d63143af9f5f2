//! Changes around a rule: it recovers without help, reports its state, counts the reason, and no
//! other rule is affected. In a random order whose seed is printed.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::{Duration, Instant};

use crate::faults::Random;
use crate::faults::world::{Fault, World};

lab::on_both_paths!(every_change_once);

fn every_change_once(path: &str) {
    let mut random = Random::new();
    let mut remaining = Fault::ALL.to_vec();
    let world = World::new(path).unwrap();
    while !remaining.is_empty() {
        let fault = remaining.swap_remove(random.below(remaining.len() as u64) as usize);
        world.suffer(fault).unwrap();
    }
    world.finish().unwrap();
}

/// For `MCR_TEST_SECONDS`, 600 if it is not set, half of them on each path.
#[test]
#[ignore = "long: make world"]
fn changes_without_end() {
    let given = std::env::var("MCR_TEST_SECONDS").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(600);
    for path in ["kernel", "userspace"] {
        let mut random = Random::new();
        let world = World::new(path).unwrap();
        let end = Instant::now() + Duration::from_secs(seconds) / 2;
        let mut count = 0;
        while Instant::now() < end {
            world.suffer(random.choose(&Fault::ALL)).unwrap();
            count += 1;
        }
        println!("{path} path: {count} changes");
        world.finish().unwrap();
    }
}
