//! The daemon as a relay of a fleet: what it provides to the fleet, and what its API reports about it.

mod host;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use api::reply::{
    By, FleetChange, FleetDone, FleetRecord, FleetRelay, FleetRelayState, FleetRules, FleetStatus,
};
use api::request::{FleetMove, FleetRuleList};
use config::FleetSettings;
use fleet::error::Error;
use fleet::relay::{Config, Relay, try_start};
use rules::ruleset::Policy;

pub(crate) use host::DaemonHost;

use crate::api::api_error::{ApiError, Code, Reply};
use crate::error::DaemonError;
use crate::instance::Instance;

/// How long a stopping daemon waits for others to take over.
const LEAVE: Duration = Duration::from_secs(2);

/// This daemon's membership of a fleet.
#[derive(Clone)]
pub(crate) struct Fleet {
    relay: Relay,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").finish_non_exhaustive()
    }
}

/// Checks what this fleet can be joined by, without joining it.
pub(crate) fn check(settings: &FleetSettings) -> Result<(), DaemonError> {
    name(settings)?;
    try_start(settings).map_err(|error| DaemonError::Fleet(error.to_string()))
}

/// The name of this relay: the configured one, or the host's.
fn name(settings: &FleetSettings) -> Result<String, DaemonError> {
    let name = match &settings.relay {
        Some(name) => name.clone(),
        None => nix::unistd::gethostname()
            .map_err(|error| DaemonError::Runtime(error.into()))?
            .to_string_lossy()
            .into_owned(),
    };
    if rules::rule::is_name(&name) {
        return Ok(name);
    }
    Err(DaemonError::Fleet(format!(
        "the host's name {name:?} cannot be a relay's; give relay = \"NAME\" in [fleet]"
    )))
}

impl Fleet {
    /// Joins the fleet.
    pub(crate) fn start(
        settings: FleetSettings,
        (instance, permitted): (&Instance, Policy),
        (host, gates): (DaemonHost, BTreeMap<String, u64>),
    ) -> Result<Self, DaemonError> {
        // Stores the rules for a start without etcd.
        let cache = instance.state().join("fleet");
        // If it cannot be created, the driver reports that when it has rules to store.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&cache);
        let config = Config {
            relay: name(&settings)?,
            settings,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            permitted,
            run: instance.directory().to_owned(),
            cache,
            gates,
        };
        let relay = Relay::start(config, std::sync::Arc::new(host))
            .map_err(|error| DaemonError::Fleet(error.to_string()))?;
        Ok(Self { relay })
    }

    /// The status as this relay has it, without waiting.
    pub(crate) fn status(&self) -> FleetStatus {
        self.relay.report()
    }

    /// The status with the counters of all relays.
    pub(crate) async fn full_status(&self) -> FleetStatus {
        self.relay.full_report().await
    }

    /// The fleet's rules; with `last_known`, while etcd does not answer, those that this relay last had.
    pub(crate) async fn rules(&self, last_known: bool) -> Reply<FleetRules> {
        self.relay.rules(last_known).await.map_err(refusal)
    }

    /// The relay's inputs of the last seconds.
    pub(crate) async fn record(&self, seconds: u32) -> Reply<FleetRecord> {
        let record = self.relay.record(Duration::from_secs(seconds.into())).await;
        let hex = |byte: u8| format!("{byte:02x}");
        Ok(FleetRecord {
            relay: self.status().relay,
            data: record.map_err(refusal)?.into_iter().map(hex).collect(),
        })
    }

    /// Makes these the fleet's rules, or returns what that would change.
    pub(crate) async fn apply(
        &self,
        FleetRuleList { generation, rules }: FleetRuleList,
        by: &By,
        dry_run: bool,
    ) -> Reply<FleetChange> {
        let relay = self.relay.by(by.to_string());
        let applied = relay.apply(rules, generation, dry_run).await;
        applied.map_err(refusal)
    }

    /// Makes a relay give up all shares, or take shares again.
    pub(crate) async fn drain(&self, relay: String, drained: bool) -> Reply<FleetDone> {
        let done = self.relay.drain(relay, drained).await;
        done.map_err(refusal).map(|()| FleetDone::default())
    }

    /// Makes a relay forward these rules.
    pub(crate) async fn move_to(&self, request: FleetMove) -> Reply<FleetDone> {
        if request.rules.is_empty() {
            let message = "no rules are named; give at least one";
            return Err(ApiError::new(Code::Invalid, message));
        }
        let relays = self.status().relays;
        let is_drained = |relay: &FleetRelay| relay.state == FleetRelayState::Drained;
        if relays
            .iter()
            .any(|relay| relay.name == request.relay && is_drained(relay))
        {
            let message = format!(
                "relay {0:?} is drained and takes nothing; `mcr fleet undrain {0}` first",
                request.relay
            );
            return Err(ApiError::new(Code::Conflict, message));
        }
        let moved = self.relay.move_to(request.rules, request.relay).await;
        let shares = moved.map_err(refusal)?;
        Ok(FleetDone { shares })
    }

    /// Moves each share to the relay that placement assigns.
    pub(crate) async fn rebalance(&self) -> Reply<FleetDone> {
        let shares = self.relay.rebalance().await.map_err(refusal)?;
        Ok(FleetDone { shares })
    }

    /// Ends the session of a dead relay; refused if this relay has heard from it recently.
    pub(crate) async fn fence(&self, relay: String) -> Reply<FleetDone> {
        let status = self.status();
        let mut relays = status.relays.iter();
        let silent_ms = relays
            .find(|other| other.name == relay)
            .and_then(|other| other.last_beat_ms);
        if let Some(ago) = silent_ms.filter(|ago| *ago < status.hold_ms) {
            let message = format!(
                "relay {relay:?} lives, it beat {ago} ms ago; `mcr fleet drain {relay}` has it give \
                 its shares away"
            );
            return Err(ApiError::new(Code::Conflict, message));
        }
        let done = self.relay.fence(relay).await;
        done.map_err(refusal).map(|()| FleetDone::default())
    }

    /// Gives up all shares before stopping.
    pub(crate) async fn leave(&self) {
        self.relay.leave(LEAVE).await;
    }
}

fn refusal(error: Error) -> ApiError {
    let text = error.to_string();
    let (code, message) = match error {
        Error::Conflict(_) => (Code::Conflict, text),
        Error::Invalid(_) => (Code::Invalid, text),
        Error::NotFound(_) => (Code::NotFound, text),
        Error::Unavailable(_) => {
            let message = format!("{text}; `mcr doctor` looks into it");
            (Code::Unavailable, message)
        }
    };
    ApiError::new(code, message)
}
