//! Executes the forwarding table on the kernel path and the userspace path.
//!
//! One seam: [`Dataplane::apply`] goes down, [`Dataplane::counters`] comes up. Synchronous; its owner
//! calls it from one thread, in the network namespace it was opened in.

mod activity;
mod allocator;
mod at_xdp;
mod change;
pub mod cleanup;
mod clock;
mod control;
mod counter_scan;
pub mod counters;
mod down;
mod error;
pub mod explain;
mod failover;
pub mod features;
#[cfg(feature = "rehearsal")]
pub mod fuzz_entry;
mod gates;
mod icmp_guard;
mod inspection;
mod kernel;
mod limits;
mod merge;
mod open;
mod options;
mod owners;
mod ticks;
pub mod userspace;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use bpf::pin::Pins;
use compile::table::{LocalDelivery, Path, RouteKey, Table};

use crate::counters::{Counters, FlowStats, Traffic, WorkerStats};
use crate::features::Features;
use crate::icmp_guard::IcmpGuard;
use crate::kernel::{Kernel, shadow};
use crate::ticks::Ticks;
use crate::userspace::Userspace;

pub use crate::activity::{Activity, ActivityScan, Seen};
pub use crate::counter_scan::CounterScan;
pub use crate::error::Error;
pub use crate::gates::{Gates, SHARES};
pub use crate::kernel::Rival;
pub use crate::open::{VERIFIER_LOG, kernel_support};
pub use crate::options::{Close, Options};
pub use bpf::Capacity;
#[cfg(feature = "test-run")]
pub use bpf::corrupt;
#[cfg(feature = "test-run")]
pub use bpf::testrun::{Action, Input, Outcome};
pub use compile::placement::Support;

/// Time between two ticks.
const PAUSE: Duration = Duration::from_millis(50);
/// The same while no packets arrive.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// Both paths, as one.
#[derive(Debug)]
pub struct Dataplane {
    kernel: Option<Kernel>,
    /// Held even without a kernel path: only one process has them.
    pins: Option<Pins>,
    instance: String,
    bpffs: PathBuf,
    userspace: Option<Userspace>,
    support: Support,
    features: Features,
    gates: Gates,
    activity: Activity,
    /// Its state at the last tick, and whether packets had arrived since the tick before.
    seen: Ticks,
    flows: bool,
    /// The routes that execute on the userspace path now; all others are the kernel path's.
    userspace_routes: BTreeSet<RouteKey>,
    quiet: IcmpGuard,
}

impl Dataplane {
    /// Probes what the host supports and opens it; adopts what an earlier process left pinned.
    ///
    /// # Errors
    ///
    /// When another daemon has the instance's pins, or an earlier one's programs forward and can
    /// neither be adopted nor removed. Never because a path is not available: see
    /// [`Dataplane::support`].
    pub fn open(options: Options) -> Result<Self, Error> {
        let features = Features::probe().without(&options.without);
        for feature in features.missing() {
            tracing::info!("{}", feature.lack());
        }
        let pins = open::claim(&options)?;
        let claimed = pins.as_ref().map_err(Clone::clone);
        let gates = Gates::default();
        let kernel =
            claimed.and_then(|pins| open::open_kernel(&options, &features, (pins.clone(), &gates)));
        if let (Ok(pins), Err(reason)) = (&pins, &kernel) {
            open::remove_pinned(pins, reason)?;
        }
        let userspace = open::open_userspace(&options, &features, &gates);
        let support = Support {
            kernel: kernel.as_ref().map(drop).map_err(Clone::clone),
            userspace: userspace.as_ref().map(drop).map_err(Clone::clone),
        };
        let kernel = kernel.ok();
        let dataplane = Self {
            seen: Ticks::default(),
            flows: false,
            activity: Activity::new(kernel.as_ref().map(Kernel::activity)),
            kernel,
            pins: pins.ok(),
            instance: options.instance,
            bpffs: options.bpffs,
            userspace: userspace.ok(),
            support,
            features,
            gates,
            userspace_routes: BTreeSet::new(),
            quiet: IcmpGuard::default(),
        };
        dataplane.publish_activity();
        Ok(dataplane)
    }

    /// Publishes to the followers of the activity where packets are counted.
    fn publish_activity(&self) {
        let used = self.kernel.as_ref().map_or(0, Kernel::counters);
        let userspace = self.userspace.as_ref();
        let workers = userspace.into_iter().flat_map(Userspace::worker_memory);
        self.activity.follow(used, workers.cloned().collect());
    }

    /// Takes over from an earlier process what [`Dataplane::descriptors`] gave it, before the first
    /// [`Dataplane::sync`]: counters of the userspace path continue, and workers that outlived it
    /// forward until then.
    ///
    /// # Errors
    ///
    /// When there is no memory for the names of counters; everything else works without.
    pub fn inherit(&mut self, held: Vec<(String, OwnedFd)>) -> Result<(), Error> {
        match &mut self.userspace {
            Some(userspace) => Ok(userspace.inherit(held)?),
            None => Ok(()),
        }
    }

    /// Starts what `table` needs but opens nothing yet, so that the descriptors of what will forward can be
    /// held before it does.
    ///
    /// # Errors
    ///
    /// As [`Dataplane::sync`].
    pub fn prepare(&mut self, table: &Table) -> Result<(), Error> {
        self.check(table.routes.iter())?;
        let mut set = table.routes.iter();
        let needs_workers = set.any(|(_, route)| route.path == Path::Userspace);
        match &mut self.userspace {
            Some(userspace) if needs_workers => Ok(userspace.start()?),
            _ => Ok(()),
        }
    }

    /// Descriptors that another process has to hold for the userspace path to outlive this one.
    ///
    /// # Errors
    ///
    /// When there are no descriptors left to duplicate them.
    pub fn descriptors(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let held = self.userspace.iter().flat_map(Userspace::descriptors);
        held.map(|(label, fd)| Ok((label, fd.try_clone_to_owned()?)))
            .collect()
    }

    /// Which paths are available.
    #[must_use]
    pub fn support(&self) -> &Support {
        &self.support
    }

    /// The gates of shares: routes with a share relay only while its gate is open, and all gates are shut at
    /// first. A gate that an earlier process opened stays open until its deadline.
    #[must_use]
    pub fn gates(&self) -> Gates {
        self.gates.clone()
    }

    /// The optional kernel features that were found.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Keeps the stack from answering packets that workers relay and that nothing consumes after their taps.
    fn keep_quiet<'a>(
        &mut self,
        routes: impl Iterator<Item = (&'a RouteKey, Option<&'a compile::table::Route>)>,
    ) {
        for (key, route) in routes.filter(|(key, _)| !key.groups.address.is_multicast()) {
            let is_answered = route.is_some_and(|route| {
                route.path == Path::Userspace && route.local != LocalDelivery::Yes
            });
            let consumes = |kernel: &Kernel| kernel.consumes(key);
            let is_consumed = self.kernel.as_ref().is_some_and(consumes);
            self.quiet.set(*key, is_answered && !is_consumed);
        }
        self.quiet.settle();
    }

    /// Reads only the workers' own counters, which costs little however many rules there are.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStats> {
        let userspace = self.userspace.as_ref();
        userspace.map_or_else(Vec::new, Userspace::worker_counters)
    }

    /// Reads all counters at once; [`CounterScan`] does it in parts.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn counters(&self) -> Result<Counters, Error> {
        CounterScan::default().whole(self)
    }

    /// The activity, by which any thread can check for packets without reading the counters.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// Reads the flows of a rule with ranges, by group and port: those most recently seen, at most
    /// 4096 on the kernel path and on each worker. Empty for other rules.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn flows(&self, rule: &str) -> Result<Vec<FlowStats>, Error> {
        let mut sums: BTreeMap<(IpAddr, u16), Traffic> = BTreeMap::new();
        let mut seen = Vec::new();
        if let Some(kernel) = &self.kernel {
            seen.extend(kernel::flows(kernel, rule)?);
        }
        if let Some(userspace) = &self.userspace {
            seen.extend(userspace.flows(rule));
        }
        for flow in seen {
            let sum = sums.entry((flow.group, flow.port)).or_default();
            sum.add(flow.received);
        }
        let flow = |((group, port), received)| FlowStats {
            group,
            port,
            received,
        };
        Ok(sums.into_iter().map(flow).collect())
    }

    /// Lists those of these keys whose packets other instances on this host take too, each with their key and
    /// the name of that instance, as far as their pins are visible.
    #[must_use]
    pub fn rivals(&self, keys: &[RouteKey]) -> Vec<Rival> {
        match &self.pins {
            Some(_) => kernel::rivals(&self.bpffs, &self.instance, keys),
            None => Vec::new(),
        }
    }

    /// Makes an input the active one of its rule; `false` if the rule does not fail over between its inputs.
    pub fn switch(&mut self, rule: &str, input: &str) -> bool {
        let kernel = self.kernel.as_mut();
        kernel.is_some_and(|kernel| kernel.switch(rule, input))
            || self
                .userspace
                .as_mut()
                .is_some_and(|path| path.switch(rule, input))
    }

    /// Ends the counters of rules that were removed from the rule set, after the `apply` that removed their
    /// last route. Otherwise a rule of the same name continues where the old one stopped, which is right for
    /// a rule whose interface was missing.
    pub fn forget<'a>(&mut self, rules: impl IntoIterator<Item = &'a str>) {
        for rule in rules {
            if let Some(kernel) = &mut self.kernel {
                kernel.forget(rule);
            }
            if let Some(userspace) = &mut self.userspace {
                userspace.forget(rule);
            }
        }
    }

    /// The pause between a [`Dataplane::tick`] and the next: shorter while packets arrive, and while there are
    /// workers, which may die.
    #[must_use]
    pub fn pause(&self) -> Duration {
        let userspace = self.userspace.as_ref();
        let kernel = self.kernel.as_ref();
        let is_busy = userspace.is_some_and(Userspace::is_busy)
            || kernel.is_some_and(Kernel::is_waiting)
            || self.flows;
        if is_busy { PAUSE } else { IDLE_PAUSE }
    }

    /// A number that changes when the workers change.
    #[must_use]
    pub fn worker_revision(&self) -> u64 {
        let userspace = self.userspace.as_ref();
        userspace.map_or(0, Userspace::worker_revision)
    }

    /// Maintains links and workers; to be called after [`Dataplane::pause`], or when the host's interfaces have
    /// changed.
    ///
    /// # Errors
    ///
    /// When something that should be attached cannot be.
    pub fn tick(&mut self) -> Result<(), Error> {
        let kernel = self.kernel.as_ref();
        self.flows = kernel.is_some_and(|kernel| kernel.has_counted(&mut self.seen));
        if let Some(userspace) = &mut self.userspace {
            userspace.tick();
        }
        match &mut self.kernel {
            Some(kernel) => kernel.tick(),
            None => Ok(()),
        }
    }

    /// Runs one packet through the kernel path as if it arrived on an interface: clones leave, the packet
    /// itself is returned. It counts like any other packet.
    ///
    /// # Errors
    ///
    /// When the kernel path is not available or refuses the packet.
    #[cfg(feature = "test-run")]
    pub fn test_run(&self, input: Input<'_>) -> Result<Outcome, Error> {
        let Some(kernel) = &self.kernel else {
            let reason = self.support.kernel.clone().err().unwrap_or_default();
            return Err(Error::NoKernelPath { reason });
        };
        kernel.test_run(input)
    }

    /// Takes over what is currently pinned, as a newly started process would; [`Dataplane::sync`] has to
    /// follow.
    ///
    /// # Errors
    ///
    /// The kernel's; the kernel path is gone then.
    #[cfg(feature = "rehearsal")]
    pub fn adopt_again(&mut self) -> Result<(), Error> {
        if let Some(kernel) = self.kernel.take() {
            self.kernel = Some(kernel.adopt_again()?);
        }
        Ok(())
    }

    /// Ends. Workers forward what has arrived and end too.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn close(mut self, how: Close) -> Result<(), Error> {
        match (self.userspace, how) {
            (Some(userspace), Close::HandOver) => userspace.leave(),
            (Some(userspace), _) => userspace.close(),
            (None, _) => {}
        }
        if let (Some(kernel), Close::KeepForwarding) = (&mut self.kernel, how) {
            // No worker relays any more what the shadows would go on consuming.
            kernel.apply(&shadow::remove_all(&self.userspace_routes))?;
        }
        match (self.kernel, how) {
            (Some(kernel), Close::Detach) => kernel.detach(),
            _ => Ok(()),
        }
    }

    fn check<'a>(
        &self,
        routes: impl Iterator<Item = (&'a RouteKey, &'a compile::table::Route)> + Clone,
    ) -> Result<(), Error> {
        for path in [Path::Kernel, Path::Userspace] {
            let here = routes.clone().filter(|(_, route)| route.path == path);
            let shares = here.filter_map(|(_, route)| route.share.as_deref());
            self.gates.check_room(path, shares)?;
        }
        for (key, route) in routes {
            let support = match route.path {
                Path::Kernel => &self.support.kernel,
                Path::Userspace => &self.support.userspace,
            };
            if let Err(reason) = support {
                return Err(Error::Unavailable {
                    key: *key,
                    rule: route.rule.clone(),
                    reason: reason.clone(),
                });
            }
        }
        Ok(())
    }
}
