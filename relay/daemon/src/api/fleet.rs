//! The routes of a fleet. A daemon in no fleet refuses them and says what to do.

use std::sync::Arc;

use api::reply::{ErrorReply, FleetChange, FleetDone, FleetRecord, FleetRules, FleetStatus};
use api::request::{FleetMove, FleetRelayName, FleetRuleList};
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::api_error::Reply;
use super::body::{Body, Parameters};
use super::changing::Changing;
use super::service::Service;

/// The fleet as this relay sees it, also while etcd does not answer.
#[utoipa::path(get, path = "/v1/fleet", tag = "fleet", operation_id = "fleet_status",
    responses((status = 200, body = FleetStatus), (status = 404, body = ErrorReply)))]
pub(super) async fn status(State(service): State<Arc<Service>>) -> Reply<Json<FleetStatus>> {
    Ok(Json(service.fleet()?.full_status().await))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesOptions {
    /// While etcd does not answer, those that the relay last had.
    #[serde(default)]
    last_known: bool,
}

/// The fleet's rules and their generation.
#[utoipa::path(get, path = "/v1/fleet/rules", tag = "fleet", operation_id = "fleet_rules", params(RulesOptions),
    responses((status = 200, body = FleetRules), (status = 404, body = ErrorReply),
        (status = 422, body = ErrorReply)))]
pub(super) async fn rules(
    State(service): State<Arc<Service>>,
    Parameters(options): Parameters<RulesOptions>,
) -> Reply<Json<FleetRules>> {
    service.fleet()?.rules(options.last_known).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordOptions {
    /// Of how long.
    seconds: u32,
}

/// What this relay's part of the fleet was told of late, to be done again.
#[utoipa::path(get, path = "/v1/fleet/record", tag = "fleet", operation_id = "fleet_record", params(RecordOptions),
    responses((status = 200, body = FleetRecord), (status = 404, body = ErrorReply)))]
pub(super) async fn record(
    State(service): State<Arc<Service>>,
    Parameters(options): Parameters<RecordOptions>,
) -> Reply<Json<FleetRecord>> {
    service.fleet()?.record(options.seconds).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyOptions {
    /// Only say what would change.
    #[serde(default)]
    dry_run: bool,
}

/// Makes these the rules of the fleet, as one step for all relays.
#[utoipa::path(put, path = "/v1/fleet/rules", tag = "fleet", operation_id = "fleet_apply", params(ApplyOptions),
    request_body = FleetRuleList,
    responses((status = 200, body = FleetChange), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn apply(
    Parameters(options): Parameters<ApplyOptions>,
    changing: Changing,
    Body(rules): Body<FleetRuleList>,
) -> Reply<Json<FleetChange>> {
    let fleet = changing.service.fleet()?;
    let applied = fleet.apply(rules, &changing.author.by, options.dry_run);
    applied.await.map(Json)
}

/// Has a relay give away what it forwards, and take nothing.
#[utoipa::path(post, path = "/v1/fleet/drain", tag = "fleet", operation_id = "fleet_drain", request_body = FleetRelayName,
    responses((status = 200, body = FleetDone), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn drain(
    State(service): State<Arc<Service>>,
    Body(FleetRelayName { relay }): Body<FleetRelayName>,
) -> Reply<Json<FleetDone>> {
    service.fleet()?.drain(relay, true).await.map(Json)
}

/// Lets a relay take shares again.
#[utoipa::path(post, path = "/v1/fleet/undrain", tag = "fleet", operation_id = "fleet_undrain", request_body = FleetRelayName,
    responses((status = 200, body = FleetDone), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn undrain(
    State(service): State<Arc<Service>>,
    Body(FleetRelayName { relay }): Body<FleetRelayName>,
) -> Reply<Json<FleetDone>> {
    service.fleet()?.drain(relay, false).await.map(Json)
}

/// Has a relay forward these rules.
#[utoipa::path(post, path = "/v1/fleet/move", tag = "fleet", operation_id = "fleet_move_to", request_body = FleetMove,
    responses((status = 200, body = FleetDone), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn move_to(
    State(service): State<Arc<Service>>,
    Body(asked): Body<FleetMove>,
) -> Reply<Json<FleetDone>> {
    service.fleet()?.move_to(asked).await.map(Json)
}

/// Has each share go to the relay that placement gives it.
#[utoipa::path(post, path = "/v1/fleet/rebalance", tag = "fleet", operation_id = "fleet_rebalance",
    responses((status = 200, body = FleetDone), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply)))]
pub(super) async fn rebalance(State(service): State<Arc<Service>>) -> Reply<Json<FleetDone>> {
    service.fleet()?.rebalance().await.map(Json)
}

/// Ends the session of a relay that is known to be dead, where nobody else may.
#[utoipa::path(post, path = "/v1/fleet/fence", tag = "fleet", operation_id = "fleet_fence", request_body = FleetRelayName,
    responses((status = 200, body = FleetDone), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn fence(
    State(service): State<Arc<Service>>,
    Body(FleetRelayName { relay }): Body<FleetRelayName>,
) -> Reply<Json<FleetDone>> {
    service.fleet()?.fence(relay).await.map(Json)
}
