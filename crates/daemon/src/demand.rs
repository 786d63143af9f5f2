//! Outputs on demand: who listens on their interfaces, by IGMP and MLD.

mod group;
mod router;
mod timers;
