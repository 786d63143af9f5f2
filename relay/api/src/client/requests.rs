//! The requests, a row each.

use hyper::Method;
use rules::document::RuleDocument;

use super::{Client, Error};
use crate::query::{RulesQuery, StatsQuery, escaped};
use crate::reply::{
    ApiClientStatus, Change, ChangeRecord, Explanation, FleetChange, FleetDone, FleetRecord,
    FleetRules, FleetStatus, FlowStats, InterfaceStatus, ListenerStats, Log, RulePart, Stats,
    Status,
};
use crate::request::{
    ActiveInput, Enabled, FleetMove, FleetRelayName, FleetRuleList, PacketAsked, Rollback,
    RuleList, Transaction,
};

/// Requests that are answered by one JSON value: method, path and body of each.
macro_rules! requests {
    ($(
        $(#[$about:meta])+
        $name:ident($($arg:ident: $type:ty),*) -> $reply:ty = $method:ident $path:expr $(, $body:ident)?;
    )+) => {
        impl Client {
            $(
                $(#[$about])+
                ///
                /// One connection for one request and its answer.
                pub async fn $name(&self, $($arg: $type),*) -> Result<$reply, Error> {
                    let path = $path;
                    self.read(Method::$method, path.as_ref(), requests!(@body $($body)?)).await
                }
            )+
        }
    };
    (@body) => { None::<&()> };
    (@body $body:ident) => { Some($body) };
}

requests! {
    /// Reads all counters.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    stats() -> Stats = GET "/v1/stats";

    /// Reads the counters of some rules; a daemon that knows no such query tells all, without a
    /// `selection`.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    selected_stats(query: &StatsQuery) -> Stats = GET query.path();

    /// Reads the daemon's own state.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    status() -> Status = GET "/v1/status";

    /// Reads the interfaces of the daemon's network namespace.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    interfaces() -> Vec<InterfaceStatus> = GET "/v1/interfaces";

    /// Reads the running rules.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    rules() -> RuleList = GET "/v1/rules";

    /// Reads some of the running rules; a daemon that knows no such query tells all, without a
    /// `selection`.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    selected_rules(query: &RulesQuery) -> RulePart = GET query.path();

    /// Reads one rule.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    rule(name: &str) -> RuleDocument = GET format!("/v1/rules/{}", escaped(name));

    /// Reads which hosts listen to a rule's outputs on demand.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    listeners(name: &str) -> Vec<ListenerStats> = GET format!("/v1/rules/{}/listeners", escaped(name));

    /// Reads what was seen of each group and port of a rule with ranges.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    flows(name: &str) -> Vec<FlowStats> = GET format!("/v1/rules/{}/flows", escaped(name));

    /// Has another input of a rule relayed, of those that stand by for each other.
    ///
    /// # Errors
    /// As every request; `not_found` where there is no such rule, `invalid` where it has no such input.
    switch(name: &str, active: &ActiveInput) -> ActiveInput = PUT format!("/v1/rules/{}/active", escaped(name)), active;

    /// Asks what would become of a packet.
    ///
    /// # Errors
    /// As every request; `not_found` where there is no such interface.
    explain(packet: &PacketAsked) -> Explanation = POST "/v1/explain", packet;

    /// Has a rule forward, or nothing.
    ///
    /// # Errors
    /// As every request; `not_found` where there is none of that name.
    set_enabled(name: &str, enabled: &Enabled) -> Change = PUT format!("/v1/rules/{}/enabled", escaped(name)), enabled;

    /// Changes the running rules, whole or not at all.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    transaction(transaction: &Transaction) -> Change = POST "/v1/transaction", transaction;

    /// Puts a whole rule set in the place of the running one, or only says what that would change.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    replace(rules: &RuleList, dry_run: bool) -> Change = PUT format!("/v1/rules?dry_run={dry_run}"), rules;

    /// Has the daemon read its configuration again.
    ///
    /// # Errors
    /// As every request; `invalid` where the configuration cannot be used.
    reload() -> Change = POST "/v1/reload";

    /// Reads how the fleet does.
    ///
    /// # Errors
    /// As every request; `not_found` where the daemon is in none.
    fleet() -> FleetStatus = GET "/v1/fleet";

    /// Reads the fleet's rules.
    ///
    /// # Errors
    /// As every request; `not_found` where the daemon is in no fleet, `unavailable` where etcd does
    /// not answer.
    fleet_rules() -> FleetRules = GET "/v1/fleet/rules";

    /// Reads what the daemon's part of the fleet was told in the last seconds.
    ///
    /// # Errors
    ///
    /// As every request; `not_found` where the daemon is in no fleet.
    fleet_record(seconds: u32) -> FleetRecord = GET format!("/v1/fleet/record?seconds={seconds}");

    /// Makes these the fleet's rules, or only says what that would change.
    ///
    /// # Errors
    /// As every request; `conflict` where the rules are of another generation, else as
    /// [`Client::fleet_rules`].
    fleet_apply(rules: &FleetRuleList, dry_run: bool) -> FleetChange = PUT format!("/v1/fleet/rules?dry_run={dry_run}"), rules;

    /// Has a relay of the fleet hold nothing, or take shares again.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`]; `not_found` where there is no such relay.
    fleet_drain(relay: &FleetRelayName, drained: bool) -> FleetDone = POST match drained {
        true => "/v1/fleet/drain",
        false => "/v1/fleet/undrain",
    }, relay;

    /// Has a relay of the fleet forward these rules.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`]; `not_found` where there is no such rule or relay.
    fleet_move(asked: &FleetMove) -> FleetDone = POST "/v1/fleet/move", asked;

    /// Has each share of the fleet go to the relay that placement gives it.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`].
    fleet_rebalance() -> FleetDone = POST "/v1/fleet/rebalance";

    /// Ends the session of a relay of the fleet that is known to be dead.
    ///
    /// # Errors
    /// As [`Client::fleet_rules`]; `not_found` where there is no such relay.
    fleet_fence(relay: &FleetRelayName) -> FleetDone = POST "/v1/fleet/fence", relay;

    /// Has the change stay that undoes itself otherwise.
    ///
    /// # Errors
    /// As every request; `conflict` where none waits, `privilege` where it is somebody else's.
    confirm() -> Change = POST "/v1/confirm";

    /// Reads what runs and the configuration does not say.
    ///
    /// # Errors
    /// As every request; `invalid` where the configuration cannot be read.
    unsaved() -> Change = GET "/v1/unsaved";

    /// Has the daemon write all that runs into the configuration.
    ///
    /// # Errors
    /// As every request; `unavailable` where it may not.
    save() -> Change = POST "/v1/save";

    /// Goes back to rules of before, or only says what that would change.
    ///
    /// # Errors
    /// As every request; `not_found` where they are not kept.
    rollback(asked: &Rollback, dry_run: bool) -> Change = POST format!("/v1/rollback?dry_run={dry_run}"), asked;

    /// Reads which rules of before are kept, the oldest first.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    generations() -> Vec<ChangeRecord> = GET "/v1/generations";

    /// Reads the last changes, the oldest first.
    ///
    /// # Errors
    /// As every request; `unavailable` where the daemon keeps no log of them.
    changes(last: u32) -> Vec<ChangeRecord> = GET format!("/v1/changes?last={last}");

    /// Reads which clients of other hosts there are.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    clients() -> Vec<ApiClientStatus> = GET "/v1/clients";

    /// Reads how much the daemon logs.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    log() -> Log = GET "/v1/log";

    /// Changes how much the daemon logs.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    set_log(log: &Log) -> Log = PUT "/v1/log", log;
}
