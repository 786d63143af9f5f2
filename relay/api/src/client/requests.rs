//! The requests, one row each; callers with their own way of making them expand the rows themselves.

use hyper::Method;

use super::{Client, Error};
use crate::query::escaped;

/// Passes the rows to a macro: for each request its purpose, name, arguments and reply, then method, path
/// and body.
#[macro_export]
macro_rules! for_each_request {
    ($take:ident) => {
        $take! {
            /// Reads all counters.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            stats() -> $crate::reply::Stats = GET "/v1/stats";

            /// Reads the counters of some rules; a daemon that does not support the query returns all, without
            /// a `selection`.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            selected_stats(query: &$crate::query::StatsQuery) -> $crate::reply::Stats = GET query.path();

            /// Reads the daemon's own state.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            status() -> $crate::reply::Status = GET "/v1/status";

            /// Reads the interfaces of the daemon's network namespace.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            interfaces() -> Vec<$crate::reply::InterfaceStatus> = GET "/v1/interfaces";

            /// Reads the running rules.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            rules() -> $crate::request::RuleList = GET "/v1/rules";

            /// Reads some of the running rules; a daemon that does not support the query returns all, without
            /// a `selection`.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            selected_rules(query: &$crate::query::RulesQuery) -> $crate::reply::RulePart = GET query.path();

            /// Reads one rule.
            ///
            /// # Errors
            /// As every request; `not_found` if there is none of that name.
            rule(name: &str) -> ::rules::document::RuleDocument = GET format!("/v1/rules/{}", escaped(name));

            /// Reads which hosts listen to a rule's outputs on demand.
            ///
            /// # Errors
            /// As every request; `not_found` if there is none of that name.
            listeners(name: &str) -> Vec<$crate::reply::ListenerStats> = GET format!("/v1/rules/{}/listeners", escaped(name));

            /// Reads the flows of each group and port of a rule with ranges.
            ///
            /// # Errors
            /// As every request; `not_found` if there is none of that name.
            flows(name: &str) -> Vec<$crate::reply::FlowStats> = GET format!("/v1/rules/{}/flows", escaped(name));

            /// Makes another input of a rule the active one, among those that stand by for each other.
            ///
            /// # Errors
            /// As every request; `not_found` if there is no such rule, `invalid` if it has no such input.
            switch(name: &str, active: &$crate::request::ActiveInput) -> $crate::request::ActiveInput = PUT format!("/v1/rules/{}/active", escaped(name)), active;

            /// Explains what would happen to a packet.
            ///
            /// # Errors
            /// As every request; `not_found` if there is no such interface.
            explain(packet: &$crate::request::PacketAsked) -> $crate::reply::Explanation = POST "/v1/explain", packet;

            /// Enables or disables rules, all of them or none.
            ///
            /// # Errors
            /// As every request; `not_found` if there is none of a name.
            set_enabled(asked: &$crate::request::EnabledRules) -> $crate::reply::Change = PUT "/v1/enabled", asked;

            /// Acknowledges a rule's trouble, or withdraws the acknowledgement.
            ///
            /// # Errors
            /// As every request; `not_found` if there is none of that name, `invalid` if it has no trouble.
            acknowledge(name: &str, asked: &$crate::request::Acknowledge) -> $crate::request::Acknowledge = PUT format!("/v1/rules/{}/acknowledged", escaped(name)), asked;

            /// Changes the running rules, whole or not at all.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            transaction(transaction: &$crate::request::Transaction) -> $crate::reply::Change = POST "/v1/transaction", transaction;

            /// Replaces the running rule set, or only reports what that would change.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            replace(rules: &$crate::request::RuleList, dry_run: bool) -> $crate::reply::Change = PUT format!("/v1/rules?dry_run={dry_run}"), rules;

            /// Makes the daemon read its configuration again.
            ///
            /// # Errors
            /// As every request; `invalid` if the configuration cannot be used.
            reload() -> $crate::reply::Change = POST "/v1/reload";

            /// Reads the state of the fleet.
            ///
            /// # Errors
            /// As every request; `not_found` if the daemon is in none.
            fleet() -> $crate::reply::FleetStatus = GET "/v1/fleet";

            /// Reads the fleet's rules.
            ///
            /// # Errors
            /// As every request; `not_found` if the daemon is in no fleet, `unavailable` if etcd does
            /// not answer.
            fleet_rules() -> $crate::reply::FleetRules = GET "/v1/fleet/rules";

            /// Reads the fleet's rules; while etcd does not answer, those that the relay last had.
            ///
            /// # Errors
            /// As every request; `not_found` if the daemon is in no fleet.
            fleet_known_rules() -> $crate::reply::FleetRules = GET "/v1/fleet/rules?last_known=true";

            /// Reads the inputs of the daemon's part of the fleet in the last `seconds`.
            ///
            /// # Errors
            ///
            /// As every request; `not_found` if the daemon is in no fleet.
            fleet_record(seconds: u32) -> $crate::reply::FleetRecord = GET format!("/v1/fleet/record?seconds={seconds}");

            /// Replaces the fleet's rules, or only reports what that would change.
            ///
            /// # Errors
            /// As every request; `conflict` if the rules are of another generation, else as
            /// [`Client::fleet_rules`].
            fleet_apply(rules: &$crate::request::FleetRuleList, dry_run: bool) -> $crate::reply::FleetChange = PUT format!("/v1/fleet/rules?dry_run={dry_run}"), rules;

            /// Drains a relay of the fleet of its shares, or lets it take shares again.
            ///
            /// # Errors
            /// As [`Client::fleet_rules`]; `not_found` if there is no such relay.
            fleet_drain(relay: &$crate::request::FleetRelayName, drained: bool) -> $crate::reply::FleetDone = POST if drained { "/v1/fleet/drain" } else { "/v1/fleet/undrain" }, relay;

            /// Moves rules to a relay of the fleet.
            ///
            /// # Errors
            /// As [`Client::fleet_rules`]; `not_found` if there is no such rule or relay.
            fleet_move(asked: &$crate::request::FleetMove) -> $crate::reply::FleetDone = POST "/v1/fleet/move", asked;

            /// Moves each share of the fleet to the relay that placement assigns it.
            ///
            /// # Errors
            /// As [`Client::fleet_rules`].
            fleet_rebalance() -> $crate::reply::FleetDone = POST "/v1/fleet/rebalance";

            /// Ends the session of a relay of the fleet that is certainly dead.
            ///
            /// # Errors
            /// As [`Client::fleet_rules`]; `not_found` if there is no such relay.
            fleet_fence(relay: &$crate::request::FleetRelayName) -> $crate::reply::FleetDone = POST "/v1/fleet/fence", relay;

            /// Confirms the pending change, which is undone otherwise.
            ///
            /// # Errors
            /// As every request; `conflict` if none is pending, `privilege` if it is another client's.
            confirm() -> $crate::reply::Change = POST "/v1/confirm";

            /// Reads what runs but is not in the configuration.
            ///
            /// # Errors
            /// As every request; `invalid` if the configuration cannot be read.
            unsaved() -> $crate::reply::Change = GET "/v1/unsaved";

            /// Makes the daemon write all that runs into the configuration.
            ///
            /// # Errors
            /// As every request; `unavailable` if it may not.
            save() -> $crate::reply::Change = POST "/v1/save";

            /// Returns to earlier rules, or only reports what that would change.
            ///
            /// # Errors
            /// As every request; `not_found` if they are not retained.
            rollback(asked: &$crate::request::Rollback, dry_run: bool) -> $crate::reply::Change = POST format!("/v1/rollback?dry_run={dry_run}"), asked;

            /// Reads which earlier rules are retained, the oldest first.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            generations() -> Vec<$crate::reply::ChangeRecord> = GET "/v1/generations";

            /// Reads the last changes, the oldest first.
            ///
            /// # Errors
            /// As every request; `unavailable` if the daemon keeps no log of them.
            changes(last: u32) -> Vec<$crate::reply::ChangeRecord> = GET format!("/v1/changes?last={last}");

            /// Reads the clients of other hosts.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            clients() -> Vec<$crate::reply::ApiClientStatus> = GET "/v1/clients";

            /// Posts a test event to all targets.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            notify_test() -> Vec<$crate::reply::NotifyTested> = POST "/v1/notify/test";

            /// Reads how much the daemon logs.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            log() -> $crate::reply::Log = GET "/v1/log";

            /// Changes how much the daemon logs.
            ///
            /// # Errors
            /// As every request: see [`Error`].
            set_log(log: &$crate::reply::Log) -> $crate::reply::Log = PUT "/v1/log", log;
        }
    };
}

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

for_each_request!(requests);
