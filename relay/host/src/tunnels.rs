//! The tunnels that the settings ask for: interfaces of the kernel that this instance makes, keeps past
//! its own end where rules go on, and removes when no setting asks for them.
//!
//! Packets go through them without any process; a tunnel that is as it should be is not touched.

mod device;

use std::collections::BTreeMap;

use compile::below;
use compile::host::{Host, HostTunnel};
use config::{Settings, Tunnel};
use rtnetlink::Handle;

use crate::{Error, connect};
use device::{Own, Refusal};

/// The tunnels of this instance.
#[derive(Debug)]
pub struct Tunnels {
    handle: Handle,
    instance: String,
    known: BTreeMap<String, HostTunnel>,
    /// Whether interfaces may be there that nobody asks for: those of an earlier run, to begin with.
    have_left: bool,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Settled {
    /// Whether an interface came or changed.
    pub changed: bool,
    /// Why tunnels are not there that were not asked for before, one sentence each.
    pub refused: Vec<String>,
}

impl Tunnels {
    /// # Errors
    /// When there is no netlink socket.
    pub fn open(instance: &str) -> Result<Self, Error> {
        Ok(Self {
            handle: connect()?,
            instance: instance.to_owned(),
            known: BTreeMap::new(),
            have_left: true,
        })
    }

    /// Whether all that is asked for is there on a host, and as it should be.
    pub fn are_settled(&self, settings: &Settings, host: &Host) -> bool {
        let known = self.known.iter().map(|(name, known)| (name, &known.tunnel));
        let has_come_to = |(name, known): (&String, &HostTunnel)| {
            let link = host.by_name(name).filter(|_| known.refused.is_none());
            let mtu = mtu(&known.tunnel, host);
            link.is_some_and(|link| mtu.is_none_or(|mtu| link.mtu == mtu))
        };
        settings.tunnels().eq(known) && self.known.iter().all(has_come_to)
    }

    /// Whether any is not there.
    pub fn are_refused(&self) -> bool {
        self.known.values().any(|known| known.refused.is_some())
    }

    /// Makes what is asked for and not there, with what a host's routes leave room for. Takes nothing
    /// away but what is made anew.
    pub async fn settle(&mut self, settings: &Settings, host: &Host) -> Settled {
        let mut settled = Settled::default();
        let mut known = BTreeMap::new();
        for (name, tunnel) in settings.tunnels() {
            let wanted = device::Wanted {
                name,
                tunnel,
                mtu: mtu(tunnel, host),
                instance: &self.instance,
            };
            let mut outcome = wanted.bring_about(&self.handle).await;
            if matches!(&outcome, Err(refusal) if refusal.is_taken) {
                self.make_room(name, tunnel).await;
                outcome = wanted.bring_about(&self.handle).await;
            }
            let before = self.known.get(name);
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
            known.insert(name.clone(), HostTunnel { tunnel, refused });
        }
        self.have_left |= self.known.keys().any(|name| !known.contains_key(name));
        self.known = known;
        settled
    }

    /// Whether interfaces may be there that nobody asks for.
    pub const fn have_left(&self) -> bool {
        self.have_left
    }

    /// Tells a host of them.
    pub fn tell(&self, host: &mut Host) {
        host.tunnels.clone_from(&self.known);
    }

    /// Takes away what this instance made, now or earlier, and nobody asks for.
    pub async fn remove_others(&mut self) {
        self.have_left = false;
        match device::of_instance(&self.handle, &self.instance).await {
            Ok(links) => {
                for own in links
                    .iter()
                    .filter(|own| !self.known.contains_key(&own.name))
                {
                    self.have_left |= self.remove(own).await.is_err();
                }
            }
            Err(error) => tracing::warn!(%error, "cannot look for tunnels that nobody asks for"),
        }
    }

    /// Takes away what this instance made that is in a tunnel's place, under another name.
    async fn make_room(&self, name: &str, tunnel: &Tunnel) {
        let links = device::of_instance(&self.handle, &self.instance).await;
        for own in links.unwrap_or_default() {
            if own.name != name && own.is_in_place_of(tunnel) {
                drop(self.remove(&own).await);
            }
        }
    }

    async fn remove(&self, own: &Own) -> Result<(), rtnetlink::Error> {
        let removed = own.remove(&self.handle).await;
        if let Err(error) = &removed {
            tracing::warn!("cannot take away tunnel {}: {error}", own.name);
        }
        removed
    }

    /// Takes all of them away.
    pub async fn close(mut self) {
        self.known.clear();
        self.remove_others().await;
    }
}

/// Takes away the tunnels that a daemon of an instance left; their names.
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
        let left = device::of_instance(&tunnels.handle, instance).await;
        tunnels.close().await;
        let left = left.unwrap_or_default().into_iter();
        left.map(|own| own.name).collect()
    })
}

fn mtu(tunnel: &Tunnel, host: &Host) -> Option<u32> {
    let below = below(tunnel, host).map(|link| tunnel.mtu_over(link.mtu));
    below.or(tunnel.mtu)
}
