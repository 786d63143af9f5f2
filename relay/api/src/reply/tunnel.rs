//! The state of a tunnel.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::State;

/// An interface that the settings make a tunnel to another relay.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TunnelStatus {
    /// Name of the interface.
    pub interface: String,
    /// The own address that it sends from, where the settings name it.
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
    pub reason: Option<String>,
    /// MTU in bytes: the largest packet that it takes; none while it is not there.
    pub mtu: Option<u32>,
    /// The interface that its own packets leave by; none while no route leads to the other end.
    pub below: Option<String>,
    /// MTU of that interface in bytes.
    pub below_mtu: Option<u32>,
}
