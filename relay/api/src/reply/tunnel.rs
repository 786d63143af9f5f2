//! What is known of a tunnel.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::State;

/// An interface that the settings make a tunnel to another relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TunnelStatus {
    /// Name of the interface.
    pub interface: String,
    /// The own address that it sends from, where the settings name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// Address of the other end.
    pub remote: String,
    /// UDP port of both ends.
    pub port: u16,
    /// Network identifier (VNI) of both ends.
    pub id: u32,
    /// `up` if what is handed to it can leave for the other end, `down` if not.
    pub state: State,
    /// Why it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// MTU in bytes: the largest packet that it takes; none while it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The interface that its own packets leave by; none while no route leads to the other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// MTU of that interface in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_mtu: Option<u32>,
}
