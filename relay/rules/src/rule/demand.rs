//! Rules whose outputs follow listeners.

use super::{OutputSpec, Rule, SourceChoice};
use crate::demand::DemandProblem;
use crate::endpoint::Endpoint;
use crate::health::Silence;
use crate::net::LOOPBACK;

impl Rule {
    /// Returns whether some output follows what is listened to.
    pub fn has_demand(&self) -> bool {
        self.outputs.iter().any(|output| output.demand.is_some())
    }

    /// Returns whether some output goes to all addresses of a name.
    pub fn has_all(&self) -> bool {
        self.outputs.iter().any(|output| output.all.is_some())
    }

    /// Returns whether every output sends only what is listened to.
    pub fn is_on_demand(&self) -> bool {
        !self.outputs.is_empty() && self.outputs.iter().all(|output| output.demand.is_some())
    }

    /// Returns whether what is listened to divides the rule's inputs by group or by source.
    pub fn is_divided(&self) -> bool {
        let mut on_demand = self.outputs.iter().filter(|output| output.demand.is_some());
        on_demand
            .any(|output| output.source == SourceChoice::Keep || !output.to.destination.is_host())
    }

    /// What is wrong with an output's demand.
    pub(crate) fn demand_problem(&self, output: &OutputSpec) -> Option<DemandProblem> {
        output.demand?;
        if !output.to.is_multicast() || output.name.is_some() {
            return Some(DemandProblem::NoGroup);
        }
        if self.has_all() {
            return Some(DemandProblem::All);
        }
        if output.to.interface.as_deref() == Some(LOOPBACK) {
            return Some(DemandProblem::Loopback);
        }
        let first = |matches: &dyn Fn(&Endpoint) -> bool| {
            let mut inputs = self.inputs.iter();
            inputs.find(|input| matches(input)).map(ToString::to_string)
        };
        let no_group = || first(&|input| !input.is_multicast());
        let keeps_source = output.source == SourceChoice::Keep;
        let is_range = !output.to.destination.is_host();
        first(&Endpoint::has_wildcard)
            .map(DemandProblem::Wildcard)
            .or_else(|| no_group().filter(|_| keeps_source).map(DemandProblem::Kept))
            .or_else(|| {
                no_group()
                    .filter(|_| is_range)
                    .map(DemandProblem::PortsToGroups)
            })
    }

    /// Why the silence of a stream that is not received while nobody listens cannot be monitored.
    pub(crate) fn silence_problem(&self) -> Option<DemandProblem> {
        let watches = self
            .health
            .is_some_and(|health| health.silence != Silence::Off);
        (watches && self.is_on_demand()).then_some(DemandProblem::Silence)
    }
}
