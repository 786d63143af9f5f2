//! Readings of all counters, in parts of a few milliseconds, so that changes can pass between two. A
//! rule appears as it was when its part was read; one that was added meanwhile may be missing.

use crate::Dataplane;
use crate::counters::Counters;
use crate::error::Error;
use crate::kernel::{self, Kernel, KernelReading};
use crate::owners::known::Progress;
use crate::userspace::Userspace;

/// A reading that has begun.
#[derive(Debug)]
pub struct Reading<T> {
    read: T,
    kernel: KernelReading,
    kernel_part: fn(&Kernel, &mut KernelReading, &mut T) -> Result<bool, Error>,
    userspace: Progress,
    userspace_part: fn(&Userspace, &mut Progress, &mut T) -> bool,
}

impl Reading<Counters> {
    /// Begins a reading of all counters.
    #[must_use]
    pub fn of_counters() -> Self {
        Self {
            read: Counters::default(),
            kernel: KernelReading::default(),
            kernel_part: kernel::read_counters,
            userspace: Progress::default(),
            userspace_part: Userspace::read_counters,
        }
    }
}

impl<T> Reading<T> {
    /// Reads the next part; `false`: that was the last.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn go_on(&mut self, dataplane: &Dataplane) -> Result<bool, Error> {
        let (kernel, userspace) = (&dataplane.kernel, &dataplane.userspace);
        if let Some(kernel) = kernel.as_ref().filter(|_| !self.kernel.rules.is_done()) {
            let more = (self.kernel_part)(kernel, &mut self.kernel, &mut self.read)?;
            return Ok(more || userspace.is_some());
        }
        let part =
            |userspace| (self.userspace_part)(userspace, &mut self.userspace, &mut self.read);
        Ok(userspace.as_ref().is_some_and(part))
    }

    /// What was read.
    #[must_use]
    pub fn finish(self) -> T {
        self.read
    }

    /// Reads everything at once.
    pub(crate) fn whole(mut self, dataplane: &Dataplane) -> Result<T, Error> {
        while self.go_on(dataplane)? {}
        Ok(self.finish())
    }
}
