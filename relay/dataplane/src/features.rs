//! Optional kernel features, probed by trying, once and only here; the consequence of each one's absence;
//! and those that a test omits, to try the substitute.
//!
//! `bpf_clone_redirect` is not among them, though drops are counted by its return values: they are
//! the same on all kernels that have bpf_loop. `__bpf_tx_skb` (net/core/filter.c; read in the sources
//! of 5.18 to 6.0, 6.6 and 6.18) passes on what `dev_queue_xmit` returns, `NET_XMIT_DROP` and `NET_XMIT_CN`
//! included. A change to turn them into `ENOBUFS` was proposed in July 2023 and made only for the callers in
//! net/core/lwt_bpf.c (Linux 6.6); `send_clone` in replicate.h takes one form as well as the
//! other. The kernels' tests (`refused`) check it on each kernel that is booted. What does differ is
//! a device's own result for a packet that it drops: veth returns `NETDEV_TX_OK` before Linux 6.6
//! (151e887d8ff9), so a copy that its ring has no room for counts as sent there, and appears in the
//! device's statistics, which are shown beside.

use std::collections::BTreeMap;

use bpf::link::Hook;
use rules::named::named;
use sys::packet_socket::PacketSocket;
use sys::uring::Uring;

named! {
    /// Something optional in the kernel that MCR uses where it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Feature {
        /// The BPF helper that calls a function for each output.
        BpfLoop = "bpf_loop",
        /// Links that attach a BPF program to an interface and outlive their process.
        Tcx = "tcx",
        /// UDP super-packets in packet sockets.
        SuperPackets = "packet_udp_gso",
        /// UDP super-packets from UDP sockets.
        UdpSegment = "udp_segment",
        /// Many sends with one system call.
        IoUring = "io_uring",
        /// Packets of an interface shared among workers by their addresses.
        PacketFanout = "packet_fanout",
        /// A fence around the file system.
        Landlock = "landlock",
    }
}

impl Feature {
    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|feature| feature.as_str() == name)
    }

    /// The consequence of its absence, in one sentence.
    #[must_use]
    pub const fn lack(self) -> &'static str {
        match self {
            Self::BpfLoop => {
                "no bpf_loop before Linux 5.17: no kernel path, every rule takes the userspace path"
            }
            Self::Tcx => {
                "no tcx links before Linux 6.6: the kernel path is attached with clsact filters"
            }
            Self::SuperPackets => {
                "no UDP GSO in packet sockets before Linux 6.2: packets of a burst leave the \
                 userspace path one by one, about half the speed, and packets that were coalesced \
                 before they reach it (rx-udp-gro-forwarding, rx-gro-list) are lost"
            }
            Self::UdpSegment => {
                "no UDP_SEGMENT before Linux 4.18: mcr send hands over its packets one by one"
            }
            Self::IoUring => {
                "no io_uring here (before Linux 5.10, or kernel.io_uring_disabled, or a seccomp \
                 filter): each send of the userspace path is a system call"
            }
            Self::PacketFanout => {
                "no packet_fanout by a program's choice: the userspace path has one worker"
            }
            Self::Landlock => {
                "no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK, lsm=): workers are fenced in \
                 by seccomp alone"
            }
        }
    }
}

/// The result of probing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features(BTreeMap<Feature, Option<bool>>);

impl Features {
    /// Tries them all.
    #[must_use]
    pub fn probe() -> Self {
        let hook = bpf::probe::probe();
        let sockets = PacketSocket::probe().ok();
        let try_one = |feature| match feature {
            Feature::BpfLoop => bpf::probe::has_loop(),
            Feature::Tcx => hook.as_ref().ok().map(|hook| *hook == Hook::Tcx),
            Feature::SuperPackets => sockets.as_ref().map(|it| it.super_packets),
            Feature::UdpSegment => Some(sys::udp::option::has_segmentation()),
            Feature::IoUring => Uring::new(1, true).ok().map(|uring| uring.is_ring()),
            Feature::PacketFanout => sockets.as_ref().map(|it| it.fanout),
            Feature::Landlock => Some(sys::sandbox::has_landlock()),
        };
        Self(
            Feature::ALL
                .map(|feature| (feature, try_one(feature)))
                .into(),
        )
    }

    /// The same features, but `omitted` count as missing.
    #[must_use]
    pub fn without(mut self, omitted: &[Feature]) -> Self {
        let missing = omitted.iter().map(|feature| (*feature, Some(false)));
        self.0.extend(missing);
        self
    }

    /// Returns whether the kernel has it; `None` if this process is not allowed to probe it.
    #[must_use]
    pub fn found(&self, feature: Feature) -> Option<bool> {
        self.0.get(&feature).copied().flatten()
    }

    /// Returns whether it is certain to be available.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.found(feature) == Some(true)
    }

    /// Those that are certain to be missing.
    pub fn missing(&self) -> impl Iterator<Item = Feature> + '_ {
        self.iter()
            .filter_map(|(feature, state)| (state == Some(false)).then_some(feature))
    }

    /// All of them, each with its result.
    pub fn iter(&self) -> impl Iterator<Item = (Feature, Option<bool>)> + '_ {
        self.0.iter().map(|(feature, state)| (*feature, *state))
    }
}
