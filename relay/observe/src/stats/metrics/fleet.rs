//! Metrics of a relay's own part in its fleet, so that sums over all relays describe the fleet.

use api::reply::{FleetShareState, FleetStatus};

use super::Page;

pub(super) fn families(page: &mut Page, fleet: &FleetStatus) {
    let name = "mcr_fleet_share_open";
    page.family(name, "1 if this relay forwards the share.");
    for share in &fleet.shares {
        let is_open = u8::from(share.state == FleetShareState::Open);
        page.sample(name, &[("share", &share.name)], is_open);
    }
    let name = "mcr_fleet_peer_unanswered_seconds";
    page.family(
        name,
        "Seconds for which another relay has not answered this one's questions; 0 if it does.",
    );
    for relay in fleet
        .relays
        .iter()
        .filter(|relay| relay.name != fleet.relay)
    {
        let seconds = relay.unanswered_ms.unwrap_or(0) as f64 / 1e3;
        page.sample(name, &[("relay", &relay.name)], seconds);
    }
    let name = "mcr_fleet_gate_remaining_seconds";
    page.family(
        name,
        "Seconds that this relay may forward its shares if it hears nothing.",
    );
    if let Some(remaining_ms) = fleet.remaining_ms {
        page.sample(name, &[], remaining_ms as f64 / 1e3);
    }
    let name = "mcr_fleet_beat_seconds";
    page.family(name, "Seconds that the last answered request to etcd took.");
    if let Some(beat_ms) = fleet.etcd.beat_ms {
        page.sample(name, &[], beat_ms / 1e3);
    }
    page.counters(FleetStatus::COUNTERS, &[([], fleet)]);
    page.single(
        "mcr_fleet_problems",
        "Things that this relay finds wrong with the fleet; mcr fleet status names them.",
        fleet.problems.len(),
    );
}
