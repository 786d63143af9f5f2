//! The counters, defined once: the dataplane fills these structs, the API's replies hold them, and the rows beside
//! them make metrics and texts. Pure: it counts nothing itself and depends on no path.
//!
//! To add a counter:
//!
//! 1. On the kernel path, add a field to `struct tally` in `bpf/src/relay/layout.h`, count it in
//!    `count.h`, and add the field to `bpf/src/maps/layout.rs` with how CPUs add up (`Tally::with`).
//! 2. Add a field to [`Traffic`]: how it adds up, and what remains of it after an earlier owner. The
//!    workers' memory grows by itself. Pinned maps and regions then have another layout, which two tests
//!    hold to the previous version; carry over what was counted there (`make upgrade`).
//! 3. On the userspace path, add in `Context::passed` (`userspace/worker/context.rs`) what a batch counts.
//! 4. Add a field to the reply (`api/src/reply`, or a struct here) and a row to its `counters!` with
//!    metric, help and, if people are to read it in words, text. JSON, OpenAPI, metrics, the tables of
//!    `mcr`, `mcr top` and the page then have it. `observe/src/stats.rs` fills what only `api` has.
//! 5. Add it to `mcr/tests/observe/agree.rs`, which holds every view against the others, and to
//!    `docs/watch.md`.
//!
//! For what only user space counts, begin with step 4.

pub mod counter;
mod merge;
mod seconds;
mod traffic;
mod worker;

pub use merge::{LineStats, MergeStats};
pub use seconds::Seconds;
pub use traffic::{FlowStats, Traffic};
pub use worker::WorkerStats;
