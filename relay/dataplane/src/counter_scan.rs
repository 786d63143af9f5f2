//! A scan of all counters, in parts of a few milliseconds, so that changes can pass between two. A
//! rule appears as it was when its part was read; one that was added meanwhile may be missing.

use crate::Dataplane;
use crate::counters::Counters;
use crate::error::Error;
use crate::kernel::{self, KernelReading};
use crate::owners::registry::Progress;

/// A scan that has begun.
#[derive(Debug, Default)]
pub struct CounterScan {
    read: Counters,
    kernel: KernelReading,
    userspace: Progress,
}

impl CounterScan {
    /// Reads the next part; `false` if that was the last.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn go_on(&mut self, dataplane: &Dataplane) -> Result<bool, Error> {
        let (kernel, userspace) = (&dataplane.kernel, &dataplane.userspace);
        if let Some(kernel) = kernel.as_ref().filter(|_| !self.kernel.rules.is_done()) {
            let more = kernel::read_counters(kernel, &mut self.kernel, &mut self.read)?;
            return Ok(more || userspace.is_some());
        }
        let Some(userspace) = userspace else {
            return Ok(false);
        };
        Ok(userspace.read_counters(&mut self.userspace, &mut self.read))
    }

    /// What was read.
    #[must_use]
    pub fn finish(self) -> Counters {
        self.read
    }

    /// Reads everything at once.
    pub(crate) fn whole(mut self, dataplane: &Dataplane) -> Result<Counters, Error> {
        while self.go_on(dataplane)? {}
        Ok(self.finish())
    }
}
