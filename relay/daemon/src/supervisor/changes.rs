//! Changes of rules and of the host, carried out whole or not at all.

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
use rules::ruleset::{Place, RuleChanges, RuleSet};
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

/// What everybody may see of a change that is to be confirmed.
fn told(pending: &Pending) -> view::Pending {
    view::Pending {
        generation: pending.generation,
        by: pending.by.clone(),
        message: pending.message.clone(),
        deadline_ns: pending.deadline_ns,
        undone: pending.undone,
    }
}

/// Lines of a change that who was slower is told.
const WHAT_TOLD: usize = 5;

/// Rules in a change whose reading takes memory that is worth giving back.
const MANY: usize = 256;

impl Supervisor {
    pub(super) async fn change(
        &mut self,
        request: &Request,
        author: &Author,
    ) -> Result<Change, Refused> {
        let asked = block_in_place(|| self.resolve(request))?;
        let awaiting = self.awaiting_restart_by(request);
        let change = self.change_to(asked, author).await?;
        if let Request::Replace(_) = request {
            self.forget_undone();
        }
        Ok(with_warnings(change, awaiting))
    }

    /// What a request comes to; who was faster is named.
    pub(super) fn resolve(&self, request: &Request) -> Result<Config, Refused> {
        let resolved = self.core.resolve(request);
        resolved.map_err(|refused| self.name_who(refused))
    }

    /// Refuses what is meant for rules of another generation.
    pub(super) fn insist(&self, generation: Option<u64>) -> Result<(), Refused> {
        let insisted = self.core.insist(generation);
        insisted.map_err(|refused| self.name_who(refused))
    }

    fn name_who(&self, refused: Refused) -> Refused {
        match refused {
            Refused::Conflict {
                running,
                asked,
                who,
            } => {
                let last = self.last.as_ref();
                let who = last.map_or(who, |last| {
                    let what: Vec<&str> =
                        last.what.lines().map(str::trim).take(WHAT_TOLD).collect();
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

    /// What of the settings that a request brings has to wait; a change of rules brings none.
    pub(super) fn awaiting_restart_by(&self, request: &Request) -> Vec<String> {
        match request {
            Request::Replace(list) => list.settings.as_ref(),
            Request::Change(_) => None,
        }
        .map_or_else(Vec::new, |settings| self.awaiting_restart(settings))
    }

    /// Makes these the rules of the fleet on this host; those of a share that cannot be are left
    /// out, and whoever gave them is told.
    pub(super) async fn change_fleet(
        &mut self,
        asked: FleetRules,
        author: &Author,
    ) -> Result<Change, Refused> {
        let (rules, refused) = block_in_place(|| self.core.with_fleet(&asked.rules));
        let settings = Settings::clone(self.core.settings());
        let wanted = Config::of(rules, settings);
        let change = self.change_to(wanted, author).await?;
        // Whoever asked may have gone away; that changes nothing.
        let _ = asked.refused.send(refused);
        Ok(change)
    }

    /// Leaves what was joined for a time that is over.
    pub(super) async fn end_joins(&mut self) {
        let settings = self.core.settings();
        let Some(join) = joins::remaining(&settings.join) else {
            return;
        };
        let settings = Settings {
            join,
            ..Settings::clone(settings)
        };
        let rules = RuleSet::clone(self.core.rules());
        let asked = Config::of(rules, settings);
        let author = Author::of(Via::Time, None);
        if let Err(error) = self.change_to(asked, &author).await {
            tracing::warn!(%error, "cannot leave what was joined for a time; trying again");
        }
    }

    /// Makes these rules and settings the running ones.
    pub(super) async fn change_to(
        &mut self,
        asked: Config,
        author: &Author,
    ) -> Result<Change, Refused> {
        let Config {
            rules, settings, ..
        } = asked;
        let unavailable = |error: &dyn std::error::Error| Refused::Unavailable(error.to_string());
        let queries = self.core.queries(&rules, &settings);
        let snapshot = self.watch.read(queries).await;
        let mut snapshot = snapshot.map_err(|error| unavailable(&error))?;
        if let Some(pending) = self.pending.take() {
            snapshot.take_up(pending);
        }
        if let Err(refused) = self.make_tunnels(&rules, &settings, &mut snapshot).await {
            self.host_changed(snapshot).await;
            return Err(refused);
        }
        block_in_place(|| self.joined.renew(&snapshot.renewed));
        let came_back = snapshot.came_back(self.core.host());
        let host = self.known(&snapshot.host);
        let (rules, settings) = (Arc::new(rules), Arc::new(settings));
        let step = block_in_place(|| self.core.step(rules, settings, host, &snapshot.renewed));
        let conflicts = block_in_place(|| port_conflicts(self.core.rules(), &step));
        let written = block_in_place(|| self.prepare(&step, author));
        // The fleet is not refused over what one of its hosts does besides.
        let is_refused = author.by.via != Via::Fleet && !author.goes_back;
        let mut free = match conflicts.is_empty() || !is_refused {
            false => Err(Refused::Unavailable(conflicts.join("\n"))),
            true if author.undoes.is_some() => Ok(()),
            true => self.require_written(written.as_ref()),
        };
        if free.is_ok() {
            free = block_in_place(|| self.begin_to_wait(author, &step));
        }
        let carried = match free {
            Ok(()) => self.carry_over(&step, author.goes_back).await,
            refused => refused,
        };
        if let Err(refused) = carried {
            self.end_to_wait(author);
            self.take_back(written);
            block_in_place(|| self.joined.settle(&self.core.wanted()));
            // What was read of the host is true all the same, and nobody reports it again.
            self.host_changed(snapshot).await;
            return Err(refused);
        }
        self.reading = snapshot.reading;
        let change = step.change.clone();
        let contested = self.contested(&step).await;
        let mut events = events::of_change(&change, &author.by, author.message.as_deref());
        let record = written.as_ref().map(|written| written.record.clone());
        events.extend(block_in_place(|| self.keep(written)));
        self.finish(step, &came_back, events);
        self.remember(record);
        self.remove_tunnels().await;
        self.follow_demand();
        let told = contested.into_iter().chain(conflicts);
        let warnings = told.chain(self.unsaved_warning());
        Ok(with_warnings(change, warnings.collect()))
    }

    /// Joins what a step needs joined and brings it to the dataplane.
    async fn carry_over(&mut self, step: &Step, goes_back: bool) -> Result<(), Refused> {
        let unavailable = |error: &dyn std::error::Error| Refused::Unavailable(error.to_string());
        let required = block_in_place(|| self.joined.require(&self.core.joins(step)));
        if !goes_back {
            required.map_err(|error| unavailable(&error))?;
        }
        let applied = self.apply(step).await;
        applied.map_err(|error| unavailable(&error))
    }

    /// Says which streams that a step takes other instances take too.
    pub(crate) async fn contested(&self, step: &Step) -> Vec<String> {
        let set = &step.diff().set;
        let keys = set.iter().map(|(key, _)| *key).collect();
        let rivals = self.dataplane.rivals(keys).await.unwrap_or_default();
        let own = &self.identity.instance;
        let told = rivals.iter().filter_map(|(key, theirs, other)| {
            let (_, route) = set.iter().find(|(set, _)| set == key)?;
            let link = step.host().interfaces.get(&key.ingress);
            let link = link.map_or_else(|| key.ingress.to_string(), |link| link.name.clone());
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
        told.collect()
    }

    /// Follows the host. What cannot be carried out is tried again.
    pub(super) async fn host_changed(&mut self, mut snapshot: Snapshot) {
        if let Some(pending) = self.pending.take() {
            snapshot.take_up(pending);
        }
        if snapshot.reading < self.reading {
            // A change has read the host since: only what happened meanwhile is new.
            snapshot.take_up(Snapshot {
                reading: self.reading,
                host: Host::clone(self.core.host()),
                ..Snapshot::default()
            });
        }
        self.keep_tunnels(&mut snapshot.host).await;
        self.dataplane.look_after();
        block_in_place(|| self.joined.renew(&snapshot.renewed));
        let came_back = snapshot.came_back(self.core.host());
        let (rules, settings) = (self.core.rules().clone(), self.core.settings().clone());
        let host = self.known(&snapshot.host);
        let step = block_in_place(|| self.core.step(rules, settings, host, &snapshot.renewed));
        match self.apply(&step).await {
            Ok(()) => {
                self.reading = snapshot.reading;
                let news = self.append_world(&step);
                self.finish(step, &came_back, news);
                self.remove_tunnels().await;
                self.follow_demand();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot follow the host; trying again");
                self.pending = Some(snapshot);
            }
        }
    }

    /// Writes down what of the host changed what is forwarded.
    fn append_world(&mut self, step: &Step) -> Vec<Event> {
        if step.diff().is_empty() && step.cleared.is_empty() {
            return Vec::new();
        }
        let world = events::of_host(self.core.host(), step.host());
        let Some(by) = world.first().and_then(|first| first.by.as_deref()) else {
            return Vec::new();
        };
        let author = Author::of(by.via, by.name.clone());
        let told = world.iter().map(|event| event.message.clone());
        let change = Change {
            generation: self.core.generation(),
            settings: told.collect(),
            ..Change::default()
        };
        let mut record = self.record(&author, &change);
        record.rules = self.core.rules().len();
        block_in_place(|| self.append(&record))
    }

    /// Follows what hosts listen to where outputs are on demand. What cannot be carried out is tried again
    /// with the host.
    pub(super) async fn listening_changed(&mut self, listening: Arc<Listening>) {
        let begun = Instant::now();
        let step = block_in_place(|| self.core.step_listening(listening));
        let required = block_in_place(|| self.joined.require(&self.core.joins(&step)));
        if let Err(error) = self.apply(&step).await {
            tracing::warn!(%error, "cannot follow what is listened to; trying again");
            self.core.set_listening(step.into_listening());
            self.pending.get_or_insert_with(|| Snapshot {
                reading: self.reading,
                host: Host::clone(self.core.host()),
                ..Snapshot::default()
            });
        } else {
            self.joined.linger(self.core.lingering(&step));
            self.finish(step, &[], Vec::new());
        }
        if required.is_err() {
            // What can be joined is; the rest is reported with its rule, and tried again.
            block_in_place(|| self.joined.settle(&self.core.wanted()));
            self.update_view_of_memberships();
        }
        self.demand.carried_out(begun.elapsed());
    }

    /// Listens where the outputs on demand lead to now.
    pub(crate) fn follow_demand(&self) {
        self.demand.set_links(self.core.demanded_links());
    }

    /// The host to go on with: one that is as before is known by its place in memory.
    pub(super) fn known(&self, host: &Host) -> Arc<Host> {
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
        let (diff, mut gone) = (step.diff().clone(), step.change.removed.clone());
        if self.waiting().is_some() {
            self.counters_held.append(&mut gone);
        }
        if !self.core.only_listening_differs(step) {
            self.prepare_hooks(step.rules_and_settings().1, step.host())
                .await?;
        }
        self.dataplane.apply(diff, gone).await?;
        self.hooks = self.dataplane.hooks().await?;
        // The first route of the userspace path has started workers.
        if let Ok(descriptors) = self.dataplane.descriptors().await {
            self.descriptor_store.set_dataplane(descriptors);
        }
        Ok(())
    }

    /// Does all that follows once the dataplane has the table; `events` led to it.
    pub(crate) fn finish(&mut self, step: Step, came_back: &[Ifindex], events: Vec<Event>) {
        let Change {
            added,
            removed,
            changed,
            ..
        } = &step.change;
        self.heap_to_trim |= added.len() + removed.len() + changed.len() >= MANY;
        let complete = !self.joined.is_incomplete();
        let leaves = step.leaves().filter(|_| complete).cloned();
        let recompiled = self.core.accept(step);
        self.heap_to_trim |= recompiled.some().is_none();
        self.pending = None;
        let mut merging = BTreeMap::new();
        block_in_place(|| {
            for link in came_back {
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

    /// Makes the view anew; where it is known what changed, the other rules keep their states.
    fn update_view(&mut self, changes: Option<&RuleChanges>, events: Vec<Event>) {
        let before = self.view.borrow().clone();
        let known = changes.map(|changes| (&before.states, changes));
        let states = states::states(
            self.core.views(),
            &self.joined,
            (&self.merging, &self.hooks),
            known,
        );
        self.replace_view(states, events);
    }

    /// Looks again at what interfaces merge: those that nobody named, and those where what somebody
    /// switches on by hand costs packets.
    pub(super) fn follow_merging(&mut self) {
        let (host, table) = (self.core.host(), self.core.table());
        let settings = &self.core.settings().interface;
        // Not handed over to another thread, which would wake up every second: it has something to do
        // after changes only, some milliseconds.
        let merging = self.offload.follow(settings, host, table);
        if let Some(merging) = merging.filter(|merging| *merging != self.merging) {
            self.merging = merging;
            self.update_view(None, Vec::new());
        }
    }

    /// Tells the dataplane what XDP may be used for, before the rules that it concerns are there.
    pub(crate) async fn prepare_hooks(
        &self,
        settings: &Settings,
        host: &Host,
    ) -> Result<(), dataplane_thread::Error> {
        let default = self.started_with.xdp.unwrap_or_default();
        let wanted = block_in_place(|| xdp::judge(default, &settings.interface, host));
        self.dataplane.set_hooks(wanted).await
    }

    /// Looks again at what XDP may be used for, where it is asked for: devices lose what it takes, and
    /// others begin to listen.
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

    /// Looks whether the queue behind virtual links holds what the widest rule makes.
    pub(super) fn follow_backlog(&mut self) {
        let (host, table) = (self.core.host(), self.core.table());
        let (kind, message) = match self.backlog.follow(table, host) {
            Some(Outcome::Raised(message)) => (BACKLOG_RAISED, message),
            Some(Outcome::Short(message)) => (BACKLOG_SHORT, message),
            None => return,
        };
        self.events.publish(event(kind, backlog::NAME, message));
    }

    /// Shows that what runs is written down, or is not.
    pub(super) fn tell(&self, news: Vec<Event>) {
        // Not in one line: the view cannot be replaced while it is borrowed.
        let states = self.view.borrow().states.clone();
        self.replace_view(states, news);
    }

    /// Makes the view anew after the memberships changed.
    pub(super) fn update_view_of_memberships(&mut self) {
        self.update_view(None, Vec::new());
    }

    /// Replaces the view; then publishes `events`, which led to it, and how it differs from before.
    fn replace_view(&self, states: SharedMap<Place, Arc<RuleState>>, mut events: Vec<Event>) {
        let view = Arc::new(View {
            generation: self.core.generation(),
            rules: self.core.rules().clone(),
            settings: self.core.settings().clone(),
            states,
            host: self.core.host().clone(),
            joins: states::joins(self.core.joined(), &self.joined),
            unsaved: self.unsaved.clone(),
            pending: self.unconfirmed.as_ref().map(told),
        });
        let before = self.view.send_replace(Arc::clone(&view));
        events.extend(events::between(&before, &view));
        self.events.publish_all(events);
    }
}
