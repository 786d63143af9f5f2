//! Chooses whose beats are watched.

use std::collections::BTreeSet;

use super::Watched;
use crate::member::{Command, Member, PhaseName};

impl Member {
    /// Watches the beats of the relays that this one may have to fence, or gives shares to.
    pub(in crate::member) fn watch_beats(&mut self) {
        if !self.is_outside() {
            self.choose_audit();
        }
        // The usual case, and cheap to check.
        let is_monitored = |relay: &str| self.plan.monitored.contains(relay);
        let watched = &self.fencing.watched;
        let is_settled =
            watched.keys().eq(&self.plan.monitored) && self.other_beats().all(is_monitored);
        if is_settled && !self.is_outside() {
            return;
        }
        let wanted = self.beats_to_watch();
        let is_unwanted = |relay: &&String| !wanted.contains(relay.as_str());
        let unwanted: Vec<String> = watched.keys().filter(is_unwanted).cloned().collect();
        let added: Vec<String> = wanted
            .iter()
            .filter(|relay| !watched.contains_key(**relay))
            .map(|relay| (*relay).to_owned())
            .collect();
        for relay in unwanted {
            self.fencing.watched.remove(&relay);
            self.out.push(Command::UnwatchBeat { relay });
        }
        for relay in added {
            self.fencing.watched.insert(relay.clone(), None);
            self.out.push(Command::WatchBeat { relay });
        }
    }

    /// The names of the relays whose beats are to be watched.
    fn beats_to_watch(&self) -> BTreeSet<&str> {
        if self.is_outside() {
            return BTreeSet::new();
        }
        let me = self.config.relay.as_str();
        let lists_me = |w: &Watched| w.beat.monitors.iter().any(|m| m.relay == me);
        let listing = self
            .fencing
            .all_observed()
            .filter(|(relay, watched)| lists_me(watched) && self.lives(relay))
            .map(|(relay, _)| relay);
        let monitored = self.plan.monitored.iter().map(String::as_str);
        monitored.chain(listing).chain(self.other_beats()).collect()
    }

    /// Relays to watch beside the monitored ones, and perhaps some of those again.
    fn other_beats(&self) -> impl Iterator<Item = &str> {
        let me = self.config.relay.as_str();
        let late = self
            .fencing
            .all_observed()
            .filter(|(_, watched)| self.is_late(watched));
        let monitors = late.flat_map(|(_, watched)| &watched.beat.monitors);
        let any_unknown = self.with_unknown_monitors().take(1);
        let maybe_listed = any_unknown.flat_map(|_| self.replica.live());
        let own = (!self.session.has_begun()).then_some(me);
        let audit = self.fencing.audit.iter().map(|(relay, _)| relay.as_str());
        // A silent relay that is not watched any more would be chosen again.
        let targets_and_silent = self.targets().chain(&self.fencing.silent);
        monitors
            .map(|monitor| monitor.relay.as_str())
            .chain(self.replica.unread_relays())
            .chain(maybe_listed.map(|(name, _)| name))
            .filter(move |relay| *relay != me)
            .chain(own)
            .chain(audit)
            .chain(targets_and_silent.map(String::as_str))
    }

    /// Whether this relay takes no part yet, or none any more.
    fn is_outside(&self) -> bool {
        matches!(self.session.phase, PhaseName::Starting | PhaseName::Left)
    }

    /// Audits one relay after another, in case all monitors of one have died with it.
    fn choose_audit(&mut self) {
        let audit = &self.fencing.audit;
        if audit.as_ref().is_some_and(|(_, until)| self.now < *until) {
            return;
        }
        let last = audit
            .as_ref()
            .map_or(self.config.relay.as_str(), |(relay, _)| relay);
        let others = || {
            let live = self.replica.live().map(|(name, _)| name);
            live.filter(|name| *name != self.config.relay)
        };
        let next = others()
            .find(|name| *name > last)
            .or_else(|| others().next());
        let until = self.now + 3 * self.config.hold_ns;
        self.fencing.audit = next.map(|name| (name.to_owned(), until));
    }
}
