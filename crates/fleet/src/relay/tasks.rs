//! Tasks of the relay's thread.

use tokio::task::{JoinHandle, spawn_local};

/// Ends the process when what holds it panics: gates of a process that decides nothing any more, or
/// on half of what it should know, would stay as they are and nobody would know why.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Runs a task beside the engine; its panic is the process's.
pub(super) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    spawn_local(async move {
        let _guard = AbortOnPanic;
        task.await
    })
}
