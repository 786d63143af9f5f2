//! Tasks of the relay's thread. Their panics end the process: a relay that decides nothing any more, or
//! from half of what it should know, would leave its gates as they are, and nobody would know why.

use std::thread;

use sys::abort_on_panic::AbortOnPanic;
use sys::capability::stand_back;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};

use crate::error::Error;

/// Runs a task beside the engine; its panic is the process's.
pub(super) fn spawn<T: 'static>(task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    spawn_local(async move {
        let _guard = AbortOnPanic;
        task.await
    })
}

/// Does what takes long where nobody waits for it, after all that has to be in time.
pub(super) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = oneshot::channel();
    let begun = thread::Builder::new().name("rules".into()).spawn(|| {
        stand_back();
        let _ = done.send(work());
    });
    begun.map_err(|error| Error::invalid(format!("no thread to read the rules: {error}")))?;
    let nothing = |_| Error::invalid("the thread that read the rules has failed".to_owned());
    result.await.map_err(nothing)?
}
