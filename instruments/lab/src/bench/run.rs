//! A run: cases of scenarios, each relay on its bed under load, and the counts.

pub mod bed;
mod case;
mod cases;
mod driver;
pub mod engine;
pub mod estimate;
pub mod hops;
pub mod needs;
pub mod plan;
pub mod relay;
pub mod scenario;
mod shape;
pub mod sink;
pub mod trial;
pub mod usage;
