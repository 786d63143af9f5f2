//! Which limit the workers' words of state are for. A word whose limit changes, or whose counter gets
//! another owner, has to be set back: what it says is a debt at another rate.
//!
//! Only the supervisor sets words back, once no worker books the limit before.

use std::collections::HashMap;

use model::diff::BudgetChange;
use model::table::RateLimit;

use crate::userspace::shared::limits::Limiter;
use crate::userspace::shared::messages::CountedRoute;

/// The limits in force, and whose words have to be set back.
#[derive(Debug, Default)]
pub(super) struct Limiters {
    in_force: HashMap<Limiter, RateLimit>,
    fresh: Vec<Limiter>,
}

impl Limiters {
    /// Notes that a route goes; returns its limits.
    pub(super) fn remove(&mut self, counted: &CountedRoute) -> HashMap<Limiter, RateLimit> {
        let limiters = all_of(counted).map(|(limiter, _)| limiter);
        limiters
            .filter_map(|limiter| self.in_force.remove_entry(&limiter))
            .collect()
    }

    /// Notes that a route comes, in place of another if there was one `before`.
    pub(super) fn set(&mut self, before: Option<&CountedRoute>, counted: &CountedRoute) {
        let mut before = before.map_or_else(HashMap::new, |before| self.remove(before));
        for (limiter, limit) in all_of(counted) {
            self.in_force.extend(before.remove_entry(&limiter));
            self.put(limiter, limit);
        }
    }

    /// Notes another budget.
    pub(super) fn set_budget(&mut self, BudgetChange(budget): BudgetChange) {
        self.put(Limiter::Budget, budget);
    }

    /// Takes the limiters that have to be set back.
    pub(super) fn take_fresh(&mut self) -> Vec<Limiter> {
        std::mem::take(&mut self.fresh)
    }

    fn put(&mut self, limiter: Limiter, limit: Option<RateLimit>) {
        let before = match limit {
            Some(limit) => self.in_force.insert(limiter, limit),
            None => self.in_force.remove(&limiter),
        };
        if limit.is_some() && before != limit {
            self.fresh.push(limiter);
        }
    }
}

fn all_of(counted: &CountedRoute) -> impl Iterator<Item = (Limiter, Option<RateLimit>)> {
    let outputs = counted.outputs.iter().zip(&counted.route.outputs);
    let outputs = outputs.map(|(slot, output)| (Limiter::Output(*slot), output.limit));
    [(Limiter::Rule(counted.rule), counted.route.limit)]
        .into_iter()
        .chain(outputs)
}
