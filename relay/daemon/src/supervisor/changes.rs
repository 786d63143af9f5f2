//! Changes of rules and of the host, applied completely or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::reply::{Change, Event, Via};
use compile::host::Host;
use config::{Config, Settings};
use host::backlog::{self, Outcome};
use host::{Snapshot, xdp};
use observe::events::kind::{BACKLOG_RAISED, BACKLOG_SHORT};
use observe::events::{self, event};
use observe::view::{self, RuleState, View};
use rules::demand::Listening;
use rules::net::Ifindex;
use rules::ruleset::{RuleChanges, RuleSet, Slot};
use rules::shared_map::SharedMap;
use tokio::task::block_in_place;

use super::command::FleetRules;
use super::port_conflicts::port_conflicts;
use super::{Supervisor, with_warnings};
use crate::author::Author;
use crate::core::{Refused, Request, Step, joins};
use crate::dataplane_thread;
use crate::state::pending::Pending;
use crate::states;

/// The published part of a change that waits to be confirmed.
fn to_view(pending: &Pending) -> view::Pending {
    view::Pending {
        generation: pending.generation,
        by: pending.by.clone(),
        message: pending.message.clone(),
        deadline_ns: pending.deadline_ns,
        undone: pending.undone,
    }
}

/// The most lines of the other change in a conflict's message.
const CONFLICT_LINES: usize = 5;

/// From this many changed rules on, trimming the heap afterwards is worthwhile.
const MANY: usize = 256;

impl Supervisor {
    pub(super) async fn change(
        &mut self,
        request: &Request,
        author: &Author,
    ) -> Result<Change, Refused> {
        let config = block_in_place(|| self.resolve(request))?;
        let awaiting = self.awaiting_restart_by(request);
        let change = self.change_to(config, author).await?;
        if let Request::Replace(_) = request {
            self.forget_undone();
        }
        Ok(with_warnings(change, awaiting))
    }

    /// The rules and settings that a request results in; a conflict names the other author.
    pub(super) fn resolve(&self, request: &Request) -> Result<Config, Refused> {
        self.core
            .resolve(request)
            .map_err(|refused| self.name_author(refused))
    }

    /// Refuses an order for rules of another generation.
    pub(super) fn insist(&self, generation: Option<u64>) -> Result<(), Refused> {
        Refused::insist(self.core.generation(), generation)
            .map_err(|refused| self.name_author(refused))
    }

    fn name_author(&self, refused: Refused) -> Refused {
        match refused {
            Refused::Conflict {
                running,
                asked,
                who,
            } => {
                let who = self.last.as_ref().map_or(who, |last| {
                    let lines = last.what.lines().map(str::trim);
                    let what: Vec<&str> = lines.take(CONFLICT_LINES).collect();
                    format!("{} ({})", last.by, what.join(", "))
                });
                Refused::Conflict {
                    running,
                    asked,
                    who,
                }
            }
            refused => refused,
        }
    }

    /// The settings of a request that take effect only after a restart; a change of rules has none.
    pub(super) fn awaiting_restart_by(&self, request: &Request) -> Vec<String> {
        let settings = match request {
            Request::Replace(list) => list.settings.as_ref(),
            Request::Change(_) => None,
        };
        settings.map_or_else(Vec::new, |settings| self.awaiting_restart(settings))
    }

    /// Makes these the rules of the fleet on this host; those of an invalid share are left out and
    /// reported.
    pub(super) async fn change_fleet(
        &mut self,
        fleet: FleetRules,
        author: &Author,
    ) -> Result<Change, Refused> {
        let (rules, refused) = block_in_place(|| self.core.with_fleet(&fleet.rules));
        let settings = Settings::clone(self.core.settings());
        let change = self.change_to(Config::of(rules, settings), author).await?;
        // The requester may have stopped waiting.
        let _ = fleet.refused.send(refused);
        Ok(change)
    }

    /// Leaves static joins that have expired.
    pub(super) async fn end_joins(&mut self) {
        let Some(join) = joins::remaining(&self.core.settings().join) else {
            return;
        };
        let settings = Settings {
            join,
            ..Settings::clone(self.core.settings())
        };
        let rules = RuleSet::clone(self.core.rules());
        let author = Author::of(Via::Time, None);
        if let Err(error) = self.change_to(Config::of(rules, settings), &author).await {
            tracing::warn!(%error, "cannot leave what was joined for a time; trying again");
        }
    }

    /// Makes these rules and settings the running ones.
    pub(super) async fn change_to(
        &mut self,
        config: Config,
        author: &Author,
    ) -> Result<Change, Refused> {
        let queries = self.core.queries(&config.rules, &config.settings);
        let read = self.watch.read(queries).await;
        let mut snapshot = read.map_err(|error| Refused::Unavailable(error.to_string()))?;
        if let Some(pending) = self.pending.take() {
            snapshot.take_up(pending);
        }
        let tunnels = self.make_tunnels(&config.rules, &config.settings, &mut snapshot);
        if let Err(refused) = tunnels.await {
            self.host_changed(snapshot).await;
            return Err(refused);
        }
        block_in_place(|| self.joined.renew(&snapshot.renewed));
        let returned = snapshot.came_back(self.core.host());
        let host = self.shared(&snapshot.host);
        let (rules, settings) = (Arc::new(config.rules), Arc::new(config.settings));
        let step = block_in_place(|| self.core.step(rules, settings, host, &snapshot.renewed));
        let conflicts = block_in_place(|| port_conflicts(self.core.rules(), &step));
        let written = block_in_place(|| self.prepare(&step, author));
        // Conflicts with other programs on one host do not refuse a change of the fleet.
        let may_be_refused = author.by.via != Via::Fleet && !author.goes_back;
        let mut permitted = if may_be_refused && !conflicts.is_empty() {
            Err(Refused::Unavailable(conflicts.join("\n")))
        } else if author.undoes.is_some() {
            Ok(())
        } else {
            self.require_written(written.as_ref())
        };
        if permitted.is_ok() && step.change.generation != self.core.generation() {
            permitted = block_in_place(|| self.begin_confirmation(author, step.change.generation));
        }
        let applied = match permitted {
            Ok(()) => self.join_and_apply(&step, author.goes_back).await,
            refused => refused,
        };
        if let Err(refused) = applied {
            self.cancel_confirmation(author);
            self.abort(written);
            block_in_place(|| self.joined.settle(&self.core.wanted()));
            // The host was read all the same, and these changes are not reported again.
            self.host_changed(snapshot).await;
            return Err(refused);
        }
        self.reading = snapshot.reading;
        let change = step.change.clone();
        let contested = self.contested(&step).await;
        let mut events = events::of_change(&change, &author.by, author.message.as_deref());
        let record = written.as_ref().map(|written| written.record.clone());
        events.extend(block_in_place(|| self.commit(written)));
        self.finish(step, &returned, events);
        self.store_generation(record);
        self.remove_tunnels().await;
        self.follow_demand();
        let warnings = contested
            .into_iter()
            .chain(conflicts)
            .chain(self.unsaved_warning());
        Ok(with_warnings(change, warnings.collect()))
    }

    /// Joins the memberships that a step needs and applies it to the dataplane.
    async fn join_and_apply(&mut self, step: &Step, goes_back: bool) -> Result<(), Refused> {
        let unavailable = |error: &dyn std::error::Error| Refused::Unavailable(error.to_string());
        let required = block_in_place(|| self.joined.require(&self.core.joins(step)));
        if !goes_back {
            required.map_err(|error| unavailable(&error))?;
        }
        let applied = self.apply(step).await;
        applied.map_err(|error| unavailable(&error))
    }

    /// Warns of streams of a step that other instances receive too.
    pub(crate) async fn contested(&self, step: &Step) -> Vec<String> {
        let set = &step.diff().set;
        let keys = set.iter().map(|(key, _)| *key).collect();
        let rivals = self.dataplane.rivals(keys).await.unwrap_or_default();
        let own = &self.identity.instance;
        let warnings = rivals.iter().filter_map(|(key, theirs, other)| {
            let (_, route) = set.iter().find(|(set, _)| set == key)?;
            let interface = step.host().interfaces.get(&key.ingress);
            let link = interface.map_or_else(|| key.ingress.to_string(), |link| link.name.clone());
            let part = if theirs == key {
                String::new()
            } else {
                format!(" in part, as {theirs},")
            };
            Some(format!(
                "rule {:?}: {key} on {link} is taken by instance {other:?}{part} as well as by \
                 {own:?}: on the kernel path one of them gets no packets, on the userspace path \
                 receivers may get them twice; keep it in one",
                route.rule
            ))
        });
        warnings.collect()
    }

    /// Follows a change of the host. What cannot be applied is tried again.
    pub(super) async fn host_changed(&mut self, mut snapshot: Snapshot) {
        if let Some(pending) = self.pending.take() {
            snapshot.take_up(pending);
        }
        if snapshot.reading < self.reading {
            // A change has read the host since: only what happened meanwhile is new.
            snapshot.take_up(self.snapshot_of(Host::clone(self.core.host())));
        }
        self.keep_tunnels(&mut snapshot.host).await;
        self.dataplane.tick();
        block_in_place(|| self.joined.renew(&snapshot.renewed));
        let returned = snapshot.came_back(self.core.host());
        let (rules, settings) = (self.core.rules().clone(), self.core.settings().clone());
        let host = self.shared(&snapshot.host);
        let step = block_in_place(|| self.core.step(rules, settings, host, &snapshot.renewed));
        match self.apply(&step).await {
            Ok(()) => {
                self.reading = snapshot.reading;
                let events = self.append_host_change(&step);
                self.finish(step, &returned, events);
                self.remove_tunnels().await;
                self.follow_demand();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot follow the host; trying again");
                self.pending = Some(snapshot);
            }
        }
    }

    /// Logs a change of the host that changed the forwarding.
    fn append_host_change(&mut self, step: &Step) -> Vec<Event> {
        if step.diff().is_empty() && step.cleared.is_empty() {
            return Vec::new();
        }
        let events = events::of_host(self.core.host(), step.host());
        let Some(by) = events.first().and_then(|first| first.by.as_deref()) else {
            return Vec::new();
        };
        let author = Author::of(by.via, by.name.clone());
        let messages = events.iter().map(|event| event.message.clone());
        let change = Change {
            generation: self.core.generation(),
            settings: messages.collect(),
            ..Change::default()
        };
        let mut record = self.record(&author, &change);
        record.rules = self.core.rules().len();
        block_in_place(|| self.append(&record))
    }

    /// Follows what hosts listen to on the interfaces of outputs on demand. What cannot be applied is tried
    /// again like a change of the host.
    pub(super) async fn listening_changed(&mut self, listening: Arc<Listening>) {
        let begun = Instant::now();
        let step = block_in_place(|| self.core.step_listening(listening));
        let required = block_in_place(|| self.joined.require(&self.core.joins(&step)));
        if let Err(error) = self.apply(&step).await {
            tracing::warn!(%error, "cannot follow what is listened to; trying again");
            self.core.set_listening(step.into_listening());
            if self.pending.is_none() {
                self.pending = Some(self.snapshot_of(Host::clone(self.core.host())));
            }
        } else {
            self.joined.linger(self.core.lingering(&step));
            self.finish(step, &[], Vec::new());
        }
        if required.is_err() {
            // Joins what can be joined; the rest is reported with its rule, and tried again.
            block_in_place(|| self.joined.settle(&self.core.wanted()));
            self.update_view(None, Vec::new());
        }
        self.demand.rest_after(begun.elapsed());
    }

    /// Updates the interfaces that outputs on demand lead to.
    pub(crate) fn follow_demand(&self) {
        self.demand.set_links(self.core.demanded_links());
    }

    /// The host to continue with: an unchanged one keeps its `Arc`, which identifies it.
    pub(super) fn shared(&self, host: &Host) -> Arc<Host> {
        match self.core.host() {
            same if **same == *host => Arc::clone(same),
            _ => Arc::new(host.clone()),
        }
    }

    async fn apply(&mut self, step: &Step) -> Result<(), dataplane_thread::Error> {
        if !step.cleared.is_empty() {
            let cleared = step.cleared.clone();
            self.dataplane.apply(cleared, Vec::new()).await?;
            self.core.accept_cleared(&step.cleared);
        }
        let (diff, mut removed) = (step.diff().clone(), step.change.removed.clone());
        if self.waiting().is_some() {
            self.counters_held.append(&mut removed);
        }
        if !self.core.only_listening_differs(step) {
            self.prepare_hooks(step.rules_and_settings().1, step.host())
                .await?;
        }
        self.dataplane.apply(diff, removed).await?;
        self.hooks = self.dataplane.hooks().await?;
        // The first route of the userspace path has started workers.
        if let Ok(descriptors) = self.dataplane.descriptors().await {
            self.descriptor_store.set_dataplane(descriptors);
        }
        Ok(())
    }

    /// Completes a step once the dataplane has the table; `events` led to it.
    pub(crate) fn finish(&mut self, step: Step, returned: &[Ifindex], events: Vec<Event>) {
        let change = &step.change;
        let touched = change.added.len() + change.removed.len() + change.changed.len();
        self.heap_to_trim |= touched >= MANY;
        let complete = !self.joined.is_incomplete();
        let leaves = step.leaves().filter(|_| complete).cloned();
        let recompiled = self.core.accept(step);
        self.heap_to_trim |= recompiled.some().is_none();
        self.pending = None;
        let mut merging = BTreeMap::new();
        block_in_place(|| {
            for link in returned {
                self.joined.rejoin(*link);
            }
            match leaves {
                Some(leaves) => self.joined.leave(&leaves),
                None => self.joined.settle(&self.core.wanted()),
            }
            self.descriptor_store.update(&self.joined);
            let (host, table) = (self.core.host(), self.core.table());
            merging = (self.offload).settle(&self.core.settings().interface, host, table);
        });
        self.backlog.doubt();
        let same = complete
            && !self.joined.is_incomplete()
            && merging == self.merging
            && self.hooks == self.shown_hooks;
        self.merging = merging;
        self.shown_hooks = self.hooks.clone();
        self.update_view(recompiled.some().filter(|_| same), events);
    }

    /// Rebuilds the view; if the changes are given, the other rules keep their states.
    pub(super) fn update_view(&mut self, changes: Option<&RuleChanges>, events: Vec<Event>) {
        let view = self.view.borrow().clone();
        let previous = changes.map(|changes| (&view.states, changes));
        let states = states::states(
            self.core.views(),
            &self.joined,
            (&self.merging, &self.hooks),
            previous,
        );
        self.replace_view(states, events);
    }

    /// Checks GRO on interfaces again: on those that no setting names, and on those where GRO switched on by
    /// hand costs packets.
    pub(super) fn follow_merging(&mut self) {
        let (host, table) = (self.core.host(), self.core.table());
        let settings = &self.core.settings().interface;
        // Without block_in_place, which would wake another thread every second: there is work only after
        // changes, for some milliseconds.
        let merging = self.offload.follow(settings, host, table);
        if let Some(merging) = merging.filter(|merging| *merging != self.merging) {
            self.merging = merging;
            self.update_view(None, Vec::new());
        }
    }

    /// Sets what the dataplane may use XDP for, before it has the rules concerned.
    pub(crate) async fn prepare_hooks(
        &self,
        settings: &Settings,
        host: &Host,
    ) -> Result<(), dataplane_thread::Error> {
        let default = self.started_with.xdp.unwrap_or_default();
        let wanted = block_in_place(|| xdp::judge(default, &settings.interface, host));
        self.dataplane.set_hooks(wanted).await
    }

    /// Checks again what XDP may be used for, if it is in use: devices may lose their support, and other
    /// programs may begin to listen.
    pub(super) async fn follow_hooks(&mut self) {
        if self.hooks.inputs.is_empty() {
            return;
        }
        let (settings, host) = (self.core.settings().clone(), self.core.host().clone());
        let followed = match self.prepare_hooks(&settings, &host).await {
            Ok(()) => self.dataplane.hooks().await,
            Err(error) => Err(error),
        };
        match followed {
            Ok(hooks) if hooks != self.hooks => {
                self.hooks = hooks;
                self.update_view(None, Vec::new());
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot follow what XDP may be used for"),
        }
    }

    /// Checks whether the queue behind virtual links is long enough for the copies of the widest rule.
    pub(super) fn follow_backlog(&mut self) {
        let (host, table) = (self.core.host(), self.core.table());
        let (kind, message) = match self.backlog.follow(table, host) {
            Some(Outcome::Raised(message)) => (BACKLOG_RAISED, message),
            Some(Outcome::Short(message)) => (BACKLOG_SHORT, message),
            None => return,
        };
        self.events.publish(event(kind, backlog::NAME, message));
    }

    /// Publishes `events` with a view whose rules keep their states.
    pub(super) fn publish(&self, events: Vec<Event>) {
        // A statement of its own: the view cannot be replaced while it is borrowed.
        let states = self.view.borrow().states.clone();
        self.replace_view(states, events);
    }

    /// Replaces the view; then publishes `events`, which led to it, and those of its differences.
    fn replace_view(&self, states: SharedMap<Slot, Arc<RuleState>>, mut events: Vec<Event>) {
        let view = Arc::new(View {
            generation: self.core.generation(),
            rules: self.core.rules().clone(),
            settings: self.core.settings().clone(),
            states,
            host: self.core.host().clone(),
            joins: states::joins(self.core.joined(), &self.joined),
            unsaved: self.unsaved.clone(),
            pending: self.unconfirmed.as_ref().map(to_view),
        });
        let previous = self.view.send_replace(Arc::clone(&view));
        events.extend(events::between(&previous, &view));
        self.events.publish_all(events);
    }
}
