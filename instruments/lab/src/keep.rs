//! Keeps a failed bed for inspection: with `KEEP=1` its namespaces and daemons stay, with all that
//! belongs to them. The next run without it removes the leftovers of processes that have ended.

use std::sync::Once;
use std::{env, thread};

use crate::{guard, mark};

/// Whether values dropped now belong to a failing test whose bed is to be kept.
pub(crate) fn is_failed_bed() -> bool {
    thread::panicking() && is_wanted()
}

/// Removes, once per process, the leftovers of dead processes: a kept bed, or one whose test was killed.
pub(crate) fn clean_up_once() {
    static CLEAN: Once = Once::new();
    CLEAN.call_once(|| {
        if !is_wanted() {
            let dead = sys::netns::abandoned_by(mark::PREFIX);
            dead.into_iter().for_each(guard::clean_up);
        }
    });
}

fn is_wanted() -> bool {
    env::var_os("KEEP").is_some_and(|value| value == "1")
}
