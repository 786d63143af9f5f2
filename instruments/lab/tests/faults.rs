//! What the tests of faults share: chance with a seed that is printed, and the load on a chain.

pub(crate) mod peers;
pub(crate) mod world;

use anyhow::Result;
use lab::load::{Load, Plan};
use lab::topology::Chain;

pub(crate) use lab::random::Random;

/// Starts a load from the sender to the sink of a chain.
pub(crate) fn load(chain: &Chain, plan: Plan) -> Result<Load> {
    let mut links = vec![(&chain.sender, "veth0"), (&chain.relay, "veth2")];
    if let Some(switch) = &chain.switch {
        links.push((switch, "port1"));
    }
    Load::start(
        plan,
        (&chain.sender, "veth0"),
        (&chain.sink, "veth3"),
        &links,
    )
}
