//! Ends the process when a part of it panics that the rest cannot do without.

use std::thread;

/// Aborts the process when it is dropped because of a panic.
#[derive(Debug)]
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            // Not an exit: what would run on the way may wait for the part that is gone.
            std::process::abort();
        }
    }
}
