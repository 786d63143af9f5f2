//! The route that acknowledges a rule's trouble.

use api::reply::ErrorReply;
use api::request::Acknowledge;
use axum::Json;

use super::api_error::Reply;
use super::body::{Body, Name};
use super::changing::{Changing, IfMatchHeader, MessageHeader};

/// Says that somebody sees to a rule's trouble as it stands, or takes that back.
#[utoipa::path(put, path = "/v1/rules/{name}/acknowledged", tag = "rules", request_body = Acknowledge,
    params(("name" = String, Path, description = "Name of the rule"), IfMatchHeader, MessageHeader),
    responses((status = 200, body = Acknowledge), (status = 404, body = ErrorReply),
        (status = 409, body = ErrorReply), (status = 422, body = ErrorReply)))]
pub(super) async fn acknowledge(
    changing: Changing,
    Name(name): Name,
    Body(request): Body<Acknowledge>,
) -> Reply<Json<Acknowledge>> {
    changing.insist()?;
    let service = changing.service;
    let acknowledged = service.acknowledge(&name, request, changing.author).await;
    acknowledged.map(Json)
}
