//! Supervisor, control API server, memberships.
//!
//! It handles no packets. `core` decides what follows from rules and host, without any I/O; the
//! supervisor executes it through the dataplane's thread, the memberships and the state on disk, and
//! publishes the outcome as a view, which the API and the sampler read.

mod abort_on_panic;
mod api;
mod author;
pub mod capture;
pub mod cleanup;
pub mod config_files;
pub mod config_save;
mod config_watch;
mod core;
mod dataplane_thread;
mod demand;
mod descriptor_store;
mod error;
mod fleet;
#[cfg(feature = "rehearsal")]
pub mod fuzz_entry;
mod instance;
mod memberships;
pub mod named_files;
mod options;
mod reports;
mod sampling;
mod service_manager;
mod signals;
mod start;
mod startup_state;
mod state;
mod states;
mod supervisor;

use std::time::Duration;

use tokio::runtime::Builder;

#[cfg(feature = "rehearsal")]
pub use api::rehearsal::Rehearsal;
pub use descriptor_store::fd_holder;
pub use error::DaemonError;
pub use options::{LogControl, Options};
pub use signals::unblock as unblock_signals;

/// Runs the daemon in the network namespace of the calling thread until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, with an exit status for scripts, or cannot end cleanly.
pub fn run(options: Options) -> Result<(), DaemonError> {
    sys::heap::keep_little();
    let instance = instance::Instance::claim(&options)?;
    // The control socket is claimed before anything that another daemon may use is changed.
    let listener = api::socket::Listener::bind(&options.socket)?;
    instance::mount_bpffs(&options.bpffs);
    cleanup::end_strays(&options)?;
    // Before the first thread: capabilities belong to threads.
    if let Err(error) = sys::capability::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open descriptors");
    }
    sys::capability::raise_locked_memory_limit();
    keep_needed(true);
    let startup = startup_state::StartupState::read(&options, &instance)?;
    keep_needed(startup.worker_user.is_some());
    signals::block()?;
    if let Some(log) = &options.log {
        (log.start)();
    }
    host::tick::begin();
    // One thread, because each tick would wake all of several. Long work uses block_in_place, which hands
    // the other tasks to another thread.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(DaemonError::Runtime)?;
    let result = runtime.block_on(start::run(&options, &instance, listener, startup));
    // A task that hangs must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Renounces all unneeded capabilities; those that change users too, unless `switching`.
fn keep_needed(switching: bool) {
    if let Err(error) = sys::capability::keep_needed(switching) {
        tracing::warn!(%error, "cannot give up capabilities");
    }
}
