//! A daemon that was built without fleets: it is in none, and a configuration that names one is
//! refused.

use std::collections::BTreeMap;
use std::path::Path;

use api::reply::{FleetChange, FleetDone, FleetRules, FleetStatus};
use api::request::{FleetMove, FleetRuleList};
use model::config::FleetSettings;
use model::ruleset::Policy;
use tokio::sync::{mpsc, watch};

use crate::api::refusal::Answer;
use crate::dataplane_thread::DataplaneThread;
use crate::error::DaemonError;
use crate::events::Events;
use crate::stats::Sampler;
use crate::supervisor::command::Command;
use crate::view::View;

/// A place in a fleet, which there is not.
#[derive(Clone, Debug)]
pub(crate) enum Fleet {}

/// What a daemon lends a fleet.
pub(crate) struct Lent;

impl Lent {
    pub(crate) fn new(
        _: mpsc::Sender<Command>,
        _: DataplaneThread,
        _: watch::Receiver<std::sync::Arc<View>>,
        _: Events,
        _: Sampler,
    ) -> Self {
        Self
    }
}

/// Refuses every fleet.
pub(crate) fn check(settings: &FleetSettings) -> Result<(), DaemonError> {
    Err(DaemonError::Fleet(format!(
        "fleet {:?}: this mcr was built without fleets; take [fleet] out, or use one that was built \
         with them",
        settings.name
    )))
}

impl Fleet {
    pub(crate) fn start(
        settings: FleetSettings,
        _: (&Path, Policy),
        _: (Lent, BTreeMap<String, u64>),
    ) -> Result<Self, DaemonError> {
        check(&settings).map(|()| unreachable!("every fleet is refused"))
    }

    pub(crate) fn status(&self) -> FleetStatus {
        match *self {}
    }

    pub(crate) async fn full_status(&self) -> FleetStatus {
        match *self {}
    }

    pub(crate) async fn rules(&self) -> Answer<FleetRules> {
        match *self {}
    }

    pub(crate) async fn apply(&self, _: FleetRuleList, _: bool) -> Answer<FleetChange> {
        match *self {}
    }

    pub(crate) async fn drain(&self, _: String, _: bool) -> Answer<FleetDone> {
        match *self {}
    }

    pub(crate) async fn move_to(&self, _: FleetMove) -> Answer<FleetDone> {
        match *self {}
    }

    pub(crate) async fn rebalance(&self) -> Answer<FleetDone> {
        match *self {}
    }

    pub(crate) async fn fence(&self, _: String) -> Answer<FleetDone> {
        match *self {}
    }

    pub(crate) async fn leave(&self) {
        match *self {}
    }
}
