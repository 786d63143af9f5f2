//! Tasks of the relay's thread. Their panics end the process: gates of one that decides nothing any
//! more, or on half of what it should know, would stay as they are and nobody would know why.

use sys::abort_on_panic::AbortOnPanic;
use tokio::task::{JoinHandle, spawn_local};

/// Runs a task beside the engine; its panic is the process's.
pub(super) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    spawn_local(async move {
        let _guard = AbortOnPanic;
        task.await
    })
}
