//! Whose beats are watched.

use std::collections::BTreeSet;

use super::Watched;
use crate::member::{Command, Member, PhaseName};

impl Member {
    /// Watches the beats of those that this relay may have to fence, or gives something to.
    pub(in crate::member) fn watch_beats(&mut self) {
        if !self.is_outside() {
            self.choose_audit();
        }
        // What is mostly so, and cheap to see.
        let is_monitored = |relay: &str| self.plan.monitored.contains(relay);
        let watched = self.fencing.watched.keys();
        let is_settled = watched.eq(&self.plan.monitored) && self.other_beats().all(is_monitored);
        if is_settled && !self.is_outside() {
            return;
        }
        let wanted = self.beats_to_watch();
        let watched = self.fencing.watched.keys().map(String::as_str);
        let unwanted = watched.filter(|relay| !wanted.contains(relay));
        let unwanted: Vec<String> = unwanted.map(str::to_owned).collect();
        let new = wanted
            .iter()
            .filter(|relay| !self.fencing.watched.contains_key(**relay));
        let new: Vec<String> = new.map(|relay| (*relay).to_owned()).collect();
        for relay in unwanted {
            self.fencing.watched.remove(&relay);
            self.out.push(Command::UnwatchBeat { relay });
        }
        for relay in new {
            self.fencing.watched.insert(relay.clone(), None);
            self.out.push(Command::WatchBeat { relay });
        }
    }

    /// Whose beats are to be watched, by name.
    fn beats_to_watch(&self) -> BTreeSet<&str> {
        if self.is_outside() {
            return BTreeSet::new();
        }
        let me = self.config.relay.as_str();
        let lists_me = |w: &Watched| w.beat.monitors.iter().any(|m| m.relay == me);
        let listing = self.fencing.known().filter(|(_, w)| lists_me(w));
        let listing = listing
            .map(|(relay, _)| relay)
            .filter(|relay| self.lives(relay));
        let monitored = self.plan.monitored.iter().map(String::as_str);
        monitored.chain(listing).chain(self.other_beats()).collect()
    }

    /// Those of others than whom this relay monitors, and maybe of some that it does.
    fn other_beats(&self) -> impl Iterator<Item = &str> {
        let me = self.config.relay.as_str();
        let late = self
            .fencing
            .known()
            .filter(|(_, watched)| self.is_late(watched));
        let monitors = late.flat_map(|(_, watched)| &watched.beat.monitors);
        let others = monitors.map(|monitor| monitor.relay.as_str());
        let maybe_listed = self.unknown().take(1).flat_map(|_| self.replica.live());
        let others = others.chain(self.replica.unread_relays());
        let others = others.chain(maybe_listed.map(|(name, _)| name));
        let others = others.filter(move |relay| *relay != me);
        let own = (!self.session.has_begun()).then_some(me);
        let audit = self.fencing.audit.iter().map(|(relay, _)| relay.as_str());
        // Who is not listened to any more would be next again.
        let told = self.targets().chain(&self.fencing.silent);
        let told = told.map(String::as_str);
        others.chain(own).chain(audit).chain(told)
    }

    /// Whether this relay takes no part yet, or none any more.
    fn is_outside(&self) -> bool {
        matches!(self.session.phase, PhaseName::Starting | PhaseName::Left)
    }

    /// Looks at one relay after another, lest all monitors of one be dead with it.
    fn choose_audit(&mut self) {
        let due = self
            .fencing
            .audit
            .as_ref()
            .is_none_or(|(_, until)| self.now >= *until);
        if !due {
            return;
        }
        let last = self.fencing.audit.take();
        let last = last
            .as_ref()
            .map_or(self.config.relay.as_str(), |(relay, _)| relay);
        let others = || {
            self.replica
                .live()
                .map(|(n, _)| n)
                .filter(|n| *n != self.config.relay)
        };
        let next = others()
            .find(|name| *name > last)
            .or_else(|| others().next());
        let until = self.now + 3 * self.config.hold_ns;
        self.fencing.audit = next.map(|name| (name.to_owned(), until));
    }
}
