//! Tasks of the relay's thread. Their panics end the process: a relay that no longer decides, or decides
//! from half of its inputs, would leave its gates as they are, and nobody would know why.

use std::thread;

use sys::abort_on_panic::AbortOnPanic;
use sys::capability::stand_back;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};

use crate::error::Error;

/// Runs a task beside the engine; if it panics, the process ends.
pub(super) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    spawn_local(async move {
        let _guard = AbortOnPanic;
        task.await
    })
}

/// Runs long work on a thread of its own, with a lower priority than work that has deadlines.
pub(super) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = oneshot::channel();
    let spawned = thread::Builder::new().name("rules".into()).spawn(|| {
        stand_back();
        let _ = done.send(work());
    });
    spawned.map_err(|error| Error::invalid(format!("no thread to read the rules: {error}")))?;
    let failed = |_| Error::invalid("the thread that read the rules has failed".to_owned());
    result.await.map_err(failed)?
}
