//! Ends the process when an indispensable part of it panics.

use std::thread;

/// Aborts the process when it is dropped because of a panic.
#[derive(Debug)]
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            // Not an exit: exit handlers may wait for the part that panicked.
            std::process::abort();
        }
    }
}
