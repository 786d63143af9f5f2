//! The existing stages: one per relay, all of one shape. They are set up, and taken down, concurrently;
//! while a trial runs nothing else does.

use std::thread;

use anyhow::{Result, anyhow};

use crate::bench::run::relay::{Relay, Tools};
use crate::bench::run::trial::{Shape, Stage};

/// Stages of one shape.
#[derive(Debug, Default)]
pub(super) struct Pool {
    shape: Option<Shape>,
    stages: Vec<Stage>,
}

impl Pool {
    /// Returns the stage of a relay. When there is none of this shape, those of all `relays` are set up at
    /// once; one that fails then is tried again, and its error reported, on its turn.
    ///
    /// # Errors
    /// When the stage cannot be made.
    pub(super) fn stage(
        &mut self,
        relay: &Relay,
        shape: Shape,
        relays: &[&Relay],
        tools: &Tools,
    ) -> Result<&mut Stage> {
        if self.shape != Some(shape) {
            self.clear();
            self.shape = Some(shape);
            self.stages = prepare(relays, shape, tools);
        }
        let of_relay = |stage: &Stage| stage.relay() == relay;
        // A relay that lost a process must not be measured by the next trial.
        if self.stages.iter().any(|it| of_relay(it) && !it.is_whole()) {
            self.discard(relay);
        }
        let at = match self.stages.iter().position(of_relay) {
            Some(at) => at,
            None => {
                self.stages.push(Stage::prepare(relay, shape, tools)?);
                self.stages.len() - 1
            }
        };
        Ok(&mut self.stages[at])
    }

    /// Takes down the stage of one relay.
    pub(super) fn discard(&mut self, relay: &Relay) {
        self.stages.retain(|stage| stage.relay() != relay);
    }

    /// Takes down all stages.
    pub(super) fn clear(&mut self) {
        self.shape = None;
        let stages = self.stages.drain(..);
        thread::scope(|scope| {
            for stage in stages {
                scope.spawn(move || drop(stage));
            }
        });
    }
}

fn prepare(relays: &[&Relay], shape: Shape, tools: &Tools) -> Vec<Stage> {
    thread::scope(|scope| {
        let prepare = |relay| scope.spawn(move || Stage::prepare(relay, shape, tools));
        let threads: Vec<_> = relays.iter().copied().map(prepare).collect();
        let stages = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err(anyhow!("making a bed panicked")))
        });
        stages.flatten().collect()
    })
}
