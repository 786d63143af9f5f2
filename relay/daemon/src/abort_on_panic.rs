//! Aborts the daemon when one of its own parts panics.
//!
//! A daemon without its dataplane, its view of the host or its API only appears alive. One that aborts at
//! once is like one that was killed: the kernel path continues to forward, and the next daemon takes over.
//! A request that panics ends its own connection and nothing else.

use std::io;
use std::thread::Builder;

pub(crate) use sys::abort_on_panic::AbortOnPanic;

/// Runs a part of the daemon as a task.
pub(crate) fn spawn(part: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(async {
        let _guard = AbortOnPanic;
        part.await;
    });
}

/// Runs a part of the daemon on a thread of its own, which leaves the CPU to changes.
pub(crate) fn thread(name: &str, part: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = Builder::new().name(name.to_owned());
    thread.spawn(|| {
        let _guard = AbortOnPanic;
        sys::capability::stand_back();
        part();
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use crate::dataplane_thread::{DataplaneThread, without_paths};

    /// Runs the test of that name in a process of its own; returns whether SIGABRT ended it.
    fn is_aborted(name: &str) -> bool {
        use std::os::unix::process::ExitStatusExt;

        let test = format!("abort_on_panic::tests::{name}");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &test]).env(IN_CHILD, "1");
        let output = child.output().unwrap();
        output.status.signal() == Some(nix::libc::SIGABRT)
    }

    const IN_CHILD: &str = "MCR_TEST_CHILD";

    #[test]
    fn a_panic_of_the_dataplane_ends_the_process() {
        if std::env::var_os(IN_CHILD).is_none() {
            assert!(is_aborted("a_panic_of_the_dataplane_ends_the_process"));
            return;
        }
        let (dataplane, ..) = DataplaneThread::start(without_paths())
            .unwrap()
            .finish()
            .unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        let _ = runtime.block_on(dataplane.panic());
        std::thread::sleep(Duration::from_secs(10));
    }

    #[test]
    fn a_panic_of_a_part_ends_the_process_and_that_of_a_request_does_not() {
        if std::env::var_os(IN_CHILD).is_none() {
            let name = "a_panic_of_a_part_ends_the_process_and_that_of_a_request_does_not";
            assert!(is_aborted(name));
            return;
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let request = tokio::spawn(async { panic!("a request") });
            if request.await.is_ok() {
                std::process::exit(1);
            }
            super::spawn(async { panic!("a part") });
            tokio::time::sleep(Duration::from_secs(10)).await;
        });
    }
}
