//! A bed that failed, left to be looked at: with `KEEP=1` its namespaces and daemons stay, with all that
//! belongs to them. The next run without it takes away what is left of processes that are gone.

use std::sync::Once;
use std::{env, thread};

use crate::{guard, mark};

/// Whether what is dropped now belongs to a test that fails and is to be kept.
pub(crate) fn is_failed_bed() -> bool {
    thread::panicking() && is_wanted()
}

/// Takes away, once in this process, what dead ones left: a kept bed, or one whose test was killed.
pub(crate) fn clean_up_once() {
    static CLEAN: Once = Once::new();
    CLEAN.call_once(|| {
        if !is_wanted() {
            let dead = sys::netns::abandoned_by(mark::PREFIX);
            dead.into_iter().for_each(guard::take_away);
        }
    });
}

fn is_wanted() -> bool {
    env::var_os("KEEP").is_some_and(|value| value == "1")
}
