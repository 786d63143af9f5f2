//! What the kernel path takes at XDP: set by the code that knows the host, and reported back.

use std::collections::BTreeMap;

use compile::hook::Hooks;
use rules::net::Ifindex;

use crate::Dataplane;
use crate::error::Error;
use crate::kernel::Kernel;

impl Dataplane {
    /// Sets what XDP may be used for; to be called before the rules that it concerns are set.
    ///
    /// # Errors
    ///
    /// When the program at an interface cannot be changed.
    pub fn set_hooks(&mut self, hooks: Hooks) -> Result<(), Error> {
        let kernel = self.kernel.as_mut();
        kernel.map_or(Ok(()), |kernel| kernel.set_hooks(hooks))
    }

    /// What XDP is used for, and why not.
    #[must_use]
    pub fn hooks(&self) -> Hooks {
        self.kernel.as_ref().map(Kernel::hooks).unwrap_or_default()
    }

    /// How many packets of each interface that has the program were handed to devices at XDP.
    #[must_use]
    pub fn taken_at_xdp(&self) -> BTreeMap<Ifindex, u64> {
        let kernel = self.kernel.as_ref();
        kernel.map(Kernel::taken_at_xdp).unwrap_or_default()
    }

    /// Injects a frame on an interface as its driver would hand it over; what XDP passes on goes to tc.
    ///
    /// # Errors
    ///
    /// When there is no XDP, or a frame is larger than what one buffer holds.
    #[cfg(feature = "test-run")]
    pub fn inject(&self, frame: &[u8], ifindex: u32) -> Result<(), Error> {
        let Some(kernel) = &self.kernel else {
            let reason = self.support.kernel.clone().err().unwrap_or_default();
            return Err(Error::NoKernelPath { reason });
        };
        kernel.inject(frame, ifindex)
    }
}
