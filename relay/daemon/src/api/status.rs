//! The daemon's own status: what it runs on, and its trouble.

use std::time::{Duration, SystemTime};

use api::reply::{
    FeatureStatus, JoinStatus, PathStatus, PendingChange, State, Status, TunnelStatus,
};
use compile::host::Host;
use config::{StaticJoin, Tunnel};
use dataplane::features::Feature;
use observe::view::{self, InputState, View};

use super::service::Service;

impl Service {
    pub(super) fn status(&self) -> Status {
        self.status_of(&self.view())
    }

    pub(super) fn status_of(&self, view: &View) -> Status {
        let api = self.remote.status();
        let api_trouble = api.as_ref().and_then(|api| api.reason.clone());
        let notify = self.notified.status();
        let notify_trouble = notify.iter().find_map(|target| {
            let why = target.reason.as_ref()?;
            Some(format!("{} at {} {why}", target.name, target.to))
        });
        let address_conflicts = self.sampler.conflicts();
        let trouble = trouble(view)
            .or(api_trouble)
            .or(notify_trouble)
            .or_else(|| address_conflicts.first().cloned());
        Status {
            api,
            notify,
            address_conflicts,
            instance: self.identity.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.identity.started.elapsed().as_secs_f64(),
            generation: view.generation,
            config: Some(self.identity.config.display().to_string()),
            rules: view.rules.len(),
            kernel: path(&self.support.kernel),
            userspace: path(&self.support.userspace),
            features: self.features.iter().map(feature).collect(),
            last_reload: self.events.last_reload(),
            state: match trouble {
                None => State::Up,
                Some(_) => State::Degraded,
            },
            state_reason: trouble,
            pending: view.pending.as_ref().and_then(pending),
            unsaved: None,
            joins: view
                .settings
                .join
                .iter()
                .zip(&*view.joins)
                .map(|(join, state)| joined(join, state))
                .collect(),
            tunnels: view
                .settings
                .tunnels()
                .map(|(name, tunnel)| tunnel_status(name, tunnel, &view.host))
                .collect(),
        }
    }
}

/// The trouble of the daemon itself.
fn trouble(view: &View) -> Option<String> {
    match view.pending.as_ref().filter(|pending| pending.undone) {
        Some(pending) => Some(format!(
            "nobody confirmed the change to generation {} by {}: the rules before it run, not those \
             of the configuration; change its files and reload, or mcr confirm",
            pending.generation, pending.by
        )),
        None => view.unsaved.as_deref().map(str::to_owned),
    }
}

fn pending(pending: &view::Pending) -> Option<PendingChange> {
    let remaining_ns = pending
        .deadline_ns
        .saturating_sub(sys::clock::boottime_ns());
    let remaining = Duration::from_nanos(remaining_ns);
    let until = (SystemTime::now() + remaining).duration_since(SystemTime::UNIX_EPOCH);
    (!pending.undone).then(|| PendingChange {
        generation: pending.generation,
        by: pending.by.clone(),
        message: pending.message.clone(),
        until: until.map_or(0, |until| until.as_secs()),
        seconds: remaining.as_secs_f64().ceil() as u64,
    })
}

fn feature((feature, present): (Feature, Option<bool>)) -> FeatureStatus {
    let meaning = feature.lack().to_owned();
    FeatureStatus {
        name: feature.as_str().to_owned(),
        present,
        meaning: Some(meaning).filter(|_| present == Some(false)),
    }
}

fn joined(join: &StaticJoin, state: &InputState) -> JoinStatus {
    JoinStatus {
        at: join.at(),
        joined: state.joined,
        reason: state.reason.as_deref().map(str::to_owned),
        until: join.until,
    }
}

fn tunnel_status(name: &str, tunnel: &Tunnel, host: &Host) -> TunnelStatus {
    let reason = compile::tunnel_trouble(name, host);
    let below = compile::below(tunnel, host);
    TunnelStatus {
        interface: name.to_owned(),
        local: tunnel.local.map(|local| local.to_string()),
        remote: tunnel.remote.to_string(),
        port: tunnel.port,
        id: tunnel.id,
        state: match reason {
            None => State::Up,
            Some(_) => State::Down,
        },
        reason,
        mtu: host.by_name(name).map(|link| link.mtu),
        below: below.map(|link| link.name.clone()),
        below_mtu: below.map(|link| link.mtu),
    }
}

fn path(support: &Result<(), String>) -> PathStatus {
    PathStatus {
        available: support.is_ok(),
        reason: support.as_ref().err().cloned(),
    }
}
