//! The userspace path between real namespaces, with real workers: needs root.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bed;
mod death;
mod fan_out;
mod fragments;
mod gates;
mod idle;
mod load;
mod merge;
mod overload;
mod relay;
mod shadow;
mod sizes;

/// Not a test: what the beds run as their worker processes.
#[test]
#[ignore = "a worker process, started by the beds"]
fn worker_process() {
    let _ = dataplane::userspace::worker::main();
    // The harness must not print a summary or reset anything.
    std::process::exit(0);
}
