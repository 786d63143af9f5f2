//! The tunnels that the settings request: kernel interfaces that this instance creates, keeps after its own
//! end if rules continue, and removes when no setting requests them.
//!
//! Packets pass through them without any process; a tunnel that is already correct is not touched.

mod device;

use std::collections::BTreeMap;

use compile::below;
use compile::host::{Host, HostTunnel};
use config::{Settings, Tunnel};
use rtnetlink::Handle;

use crate::{Error, connect};
use device::{OwnLink, Refusal};

/// The tunnels of this instance.
#[derive(Debug)]
pub struct Tunnels {
    handle: Handle,
    instance: String,
    requested: BTreeMap<String, HostTunnel>,
    /// Whether there may be interfaces that are not requested: initially those of an earlier run.
    has_orphans: bool,
}

/// The outcome of [`Tunnels::settle`].
#[derive(Debug, Default)]
pub struct Settled {
    /// Whether an interface was added or changed.
    pub changed: bool,
    /// Why newly requested tunnels could not be made, one sentence each.
    pub refused: Vec<String>,
}

impl Tunnels {
    /// # Errors
    /// When there is no netlink socket.
    pub fn open(instance: &str) -> Result<Self, Error> {
        Ok(Self {
            handle: connect()?,
            instance: instance.to_owned(),
            requested: BTreeMap::new(),
            has_orphans: true,
        })
    }

    /// Whether all requested tunnels exist on a host and are correct.
    pub fn are_settled(&self, settings: &Settings, host: &Host) -> bool {
        let tunnels = self.requested.iter().map(|(name, one)| (name, &one.tunnel));
        let is_made = |(name, requested): (&String, &HostTunnel)| {
            let link = host.by_name(name).filter(|_| requested.refused.is_none());
            let mtu = mtu(&requested.tunnel, host);
            link.is_some_and(|link| mtu.is_none_or(|mtu| link.mtu == mtu))
        };
        settings.tunnels().eq(tunnels) && self.requested.iter().all(is_made)
    }

    /// Whether any could not be made.
    pub fn are_refused(&self) -> bool {
        self.requested.values().any(|one| one.refused.is_some())
    }

    /// Makes requested tunnels that do not exist, with the MTU that a host's routes allow. Removes
    /// nothing but what is made anew.
    pub async fn settle(&mut self, settings: &Settings, host: &Host) -> Settled {
        let mut settled = Settled::default();
        let mut requested = BTreeMap::new();
        for (name, tunnel) in settings.tunnels() {
            let spec = device::TunnelSpec {
                name,
                tunnel,
                mtu: mtu(tunnel, host),
                instance: &self.instance,
            };
            let mut outcome = spec.ensure(&self.handle).await;
            if matches!(&outcome, Err(refusal) if refusal.is_taken) {
                self.remove_conflicting(name, tunnel).await;
                outcome = spec.ensure(&self.handle).await;
            }
            let before = self.requested.get(name);
            let refused = match outcome {
                Ok(changed) => {
                    settled.changed |= changed;
                    None
                }
                Err(Refusal { text: refused, .. }) => {
                    if before.is_none_or(|before| before.tunnel != *tunnel) {
                        settled.refused.push(refused.clone());
                    }
                    Some(refused)
                }
            };
            let tunnel = *tunnel;
            requested.insert(name.clone(), HostTunnel { tunnel, refused });
        }
        let mut before = self.requested.keys();
        self.has_orphans |= before.any(|name| !requested.contains_key(name));
        self.requested = requested;
        settled
    }

    /// Whether there may be interfaces that are not requested.
    pub const fn has_orphans(&self) -> bool {
        self.has_orphans
    }

    /// Adds them to a host.
    pub fn tell(&self, host: &mut Host) {
        host.tunnels.clone_from(&self.requested);
    }

    /// Removes what this instance made, now or earlier, and no setting requests.
    pub async fn remove_others(&mut self) {
        self.has_orphans = false;
        match device::of_instance(&self.handle, &self.instance).await {
            Ok(mut links) => {
                links.retain(|own| !self.requested.contains_key(&own.name));
                for orphan in &links {
                    self.has_orphans |= self.remove(orphan).await.is_err();
                }
            }
            Err(error) => tracing::warn!(%error, "cannot look for tunnels that nobody asks for"),
        }
    }

    /// Removes what this instance made that conflicts with a tunnel under another name.
    async fn remove_conflicting(&self, name: &str, tunnel: &Tunnel) {
        let links = device::of_instance(&self.handle, &self.instance).await;
        for own in links.unwrap_or_default() {
            if own.name != name && own.conflicts_with(tunnel) {
                drop(self.remove(&own).await);
            }
        }
    }

    async fn remove(&self, own: &OwnLink) -> Result<(), rtnetlink::Error> {
        let removed = own.remove(&self.handle).await;
        if let Err(error) = &removed {
            tracing::warn!("cannot take away tunnel {}: {error}", own.name);
        }
        removed
    }

    /// Removes all of them.
    pub async fn close(mut self) {
        self.requested.clear();
        self.remove_others().await;
    }
}

/// Removes the tunnels that a daemon of an instance left behind; returns their names.
pub fn end_left(instance: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    runtime.block_on(async {
        let Ok(tunnels) = Tunnels::open(instance) else {
            return Vec::new();
        };
        let orphans = device::of_instance(&tunnels.handle, instance).await;
        tunnels.close().await;
        let removed = orphans.unwrap_or_default().into_iter();
        removed.map(|own| own.name).collect()
    })
}

fn mtu(tunnel: &Tunnel, host: &Host) -> Option<u32> {
    let below = below(tunnel, host).map(|link| tunnel.mtu_over(link.mtu));
    below.or(tunnel.mtu)
}
