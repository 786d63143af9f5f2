//! What is counted, said once: the dataplane fills these structs, the API's replies hold them, and the
//! rows beside them make metrics and texts. Pure: it counts nothing itself and knows no path.

pub mod counter;
mod merge;
mod seconds;
mod traffic;
mod worker;

pub use merge::{LineStats, MergeStats};
pub use seconds::Seconds;
pub use traffic::{FlowStats, Traffic};
pub use worker::WorkerStats;
