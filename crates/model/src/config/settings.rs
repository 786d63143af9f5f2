//! What a configuration says beyond rules: in files, over the API, and as it is remembered.

use std::collections::BTreeMap;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tunnel::{self, Tunnel};
use super::{DaemonSettings, FleetSettings, Notify, StaticJoin};
use crate::document::Scalar;
use crate::endpoint::check_interface_name;
use crate::limit::{self, LimitProblem};
use crate::placement::{PathChoice, PathChoices};
use crate::ruleset::Policy;
use crate::setting::differences;
use crate::table::RateLimit;

/// What a configuration says beyond rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether 224.0.0.0/24 and ff02::/16 may be inputs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_link_local: bool,
    /// Cap on what all unicast outputs send together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BudgetTable>)]
    pub budget: Option<Budget>,
    /// How a daemon is started.
    #[serde(default, skip_serializing_if = "is_default")]
    pub daemon: DaemonSettings,
    /// Which fleet the relay belongs to; without it it is in none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::fleet::some_fleet"
    )]
    pub fleet: Option<FleetSettings>,
    /// Settings of interfaces, by name.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "of_interfaces"
    )]
    #[schema(value_type = BTreeMap<String, InterfaceTable>)]
    pub interface: BTreeMap<String, InterfaceSettings>,
    /// Groups that are joined whatever the rules say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub join: Vec<StaticJoin>,
    /// Who is told of events.
    #[serde(default, skip_serializing_if = "is_default")]
    pub notify: Notify,
}

/// Cap on what all unicast outputs send together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BudgetTable", into = "BudgetTable")]
pub struct Budget(pub RateLimit);

/// `[budget]` as it is written.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetTable {
    /// Rate of all unicast outputs together, as in `5000pps` or `1Gbit`.
    unicast: String,
    /// What may go at once: packets, or bits as in `5Mbit`; by default a tenth of a second's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<Scalar>,
}

/// Settings of one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "InterfaceTable", into = "InterfaceTable")]
pub struct InterfaceSettings {
    /// Whether the interface merges packets before they are relayed; `None`: the daemon decides.
    pub gro: Option<Gro>,
    /// Path of the rules whose inputs are on it.
    pub path: PathChoice,
    /// What the daemon makes it of, if it is a tunnel.
    pub tunnel: Option<Tunnel>,
}

/// `[interface.NAME]` as it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InterfaceTable {
    /// Whether the interface merges packets before they are relayed (`rx-udp-gro-forwarding`):
    /// `off` (left as it is), `on`, or `auto` (on where every output can segment). Where it is not
    /// given, `gro` of `[daemon]` says whether the daemon decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gro: Option<Gro>,
    /// Path of the rules whose inputs are on it: `auto`, `kernel` or `userspace`.
    #[serde(
        default,
        skip_serializing_if = "is_default",
        deserialize_with = "crate::document::path"
    )]
    path: PathChoice,
    /// `udp` makes a tunnel: a VXLAN interface of this name that the daemon makes, whose packets go
    /// whole, with their groups, ports and sources, to `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over: Option<String>,
    /// Own address that the tunnel sends from; by default the one that the route to `remote` gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) local: Option<String>,
    /// Address of the tunnel's other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remote: Option<String>,
    /// UDP port of both ends; 4789 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<Scalar>,
    /// Network identifier (VNI) of the tunnel, the same at both ends; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<Scalar>,
    /// MTU of the tunnel in bytes; by default what the route to `remote` leaves room for. With a larger
    /// one the tunnel's own packets are sent in fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mtu: Option<Scalar>,
}

impl InterfaceTable {
    /// The first key that only a tunnel has.
    pub(super) fn first_tunnel_key(&self) -> Option<&'static str> {
        let keys = [
            ("local", self.local.is_some()),
            ("remote", self.remote.is_some()),
            ("port", self.port.is_some()),
            ("id", self.id.is_some()),
            ("mtu", self.mtu.is_some()),
        ];
        keys.into_iter()
            .find_map(|(key, given)| given.then_some(key))
    }
}

/// Whether an interface merges packets before they are relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", try_from = "Scalar")]
pub enum Gro {
    /// The interface is left as it is.
    Off,
    /// Turned on, and back on exit.
    On,
    /// Turned on where all that is relayed from the interface gains by it.
    Auto,
}

impl Settings {
    /// What rules may be: what `process` says, and where it says nothing, what one key or the other
    /// permits.
    #[must_use]
    pub fn policy(&self, process: Policy) -> Policy {
        let by_keys = self.allow_link_local || self.daemon.allow_link_local == Some(true);
        Policy {
            allow_link_local: process.allow_link_local.or(Some(by_keys)),
        }
    }

    /// The choices of path for [`crate::compile::compile`], with the process's own.
    #[must_use]
    pub fn path_choices(&self, process: PathChoice) -> PathChoices {
        let interfaces = self.interface.iter();
        PathChoices {
            process,
            interfaces: interfaces
                .map(|(name, set)| (name.clone(), set.path))
                .collect(),
        }
    }

    /// The tunnels, by the names of their interfaces.
    pub fn tunnels(&self) -> impl Iterator<Item = (&String, &Tunnel)> {
        let interfaces = self.interface.iter();
        interfaces.filter_map(|(name, set)| Some((name, set.tunnel.as_ref()?)))
    }

    /// The first interface that cannot be a tunnel beside the others, and why.
    pub(super) fn impossible_tunnel(&self) -> Option<(&String, String)> {
        let mut before: Vec<(&String, &Tunnel)> = Vec::new();
        for (name, tunnel) in self.tunnels() {
            if let Err(problem) = tunnel::check_name(name) {
                return Some((name, problem));
            }
            let mut clashes =
                { before.iter() }.filter_map(|(other, set)| Some((other, set.clash(tunnel)?)));
            if let Some((other, what)) = clashes.next() {
                return Some((name, format!("has the same as interface {other}: {what}")));
            }
            before.push((name, tunnel));
        }
        None
    }

    /// What is another than in `before`, each in a few words that say what it was.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        let mut compare = |what: String, before: String, now: String| {
            if before != now {
                changes.push(format!("{what}: {now} (was {before})"));
            }
        };
        let allowed = |settings: &Self| settings.allow_link_local.to_string();
        compare("allow_link_local".into(), allowed(before), allowed(self));
        let budget = |settings: &Self| match settings.budget.map(BudgetTable::from) {
            None => "none".to_owned(),
            Some(BudgetTable { unicast, burst }) => {
                let burst = burst.map(|burst| format!(", burst {burst}"));
                format!("{unicast}{}", burst.unwrap_or_default())
            }
        };
        compare("budget".into(), budget(before), budget(self));
        for difference in differences(&self.daemon, &before.daemon) {
            compare(
                format!("daemon {}", difference.key),
                difference.other,
                difference.asked,
            );
        }
        for difference in FleetSettings::differences(self.fleet.as_ref(), before.fleet.as_ref()) {
            let what = match difference.key {
                "" => "member of".to_owned(),
                key => format!("fleet {key}"),
            };
            compare(what, difference.other, difference.asked);
        }
        let webhook = |settings: &Self| match &settings.notify.webhook {
            None => "none".to_owned(),
            Some(webhook) => webhook.to_string(),
        };
        compare("notify webhook".into(), webhook(before), webhook(self));
        let mut names: Vec<&String> = before.interface.keys().collect();
        names.extend(self.interface.keys());
        names.sort();
        names.dedup();
        for name in names {
            let value = |settings: &Self| match settings.interface.get(name) {
                None => "nothing".to_owned(),
                Some(InterfaceSettings { gro, path, tunnel }) => {
                    let gro =
                        gro.map_or("as the daemon decides".to_owned(), |gro| format!("{gro:?}"));
                    let tunnel = tunnel.map(|tunnel| format!(", {tunnel}"));
                    format!("gro {gro}, path {path:?}{}", tunnel.unwrap_or_default())
                }
            };
            let [before, now] = [value(before), value(self)].map(|text| text.to_lowercase());
            compare(format!("interface {name}"), before, now);
        }
        let without = |settings: &Self, other: &Self| {
            let joins = settings
                .join
                .iter()
                .filter(|join| !other.join.contains(join));
            joins.map(ToString::to_string).collect::<Vec<String>>()
        };
        changes.extend({ without(self, before).into_iter() }.map(|join| format!("join {join}")));
        changes.extend({ without(before, self).into_iter() }.map(|join| format!("leave {join}")));
        changes
    }
}

impl TryFrom<BudgetTable> for Budget {
    type Error = String;

    fn try_from(table: BudgetTable) -> Result<Self, String> {
        let burst = table.burst.as_ref().map(ToString::to_string);
        match limit::parse(Some(&table.unicast), burst.as_deref()) {
            Ok(Some(limit)) => Ok(Self(limit)),
            Ok(None) => Err("budget: has no rate; give unicast = \"1Gbit\"".to_owned()),
            Err(LimitProblem::Zero(text)) => Err(format!(
                "budget: unicast={text}: a rate of 0 would stop every unicast output; remove them \
                 instead"
            )),
            Err(problem) => {
                let text = problem.to_string().replacen("limit=", "unicast=", 1);
                Err(format!("budget: {text}"))
            }
        }
    }
}

impl From<Budget> for BudgetTable {
    fn from(Budget(limit): Budget) -> Self {
        Self {
            unicast: limit::rate_text(&limit),
            burst: limit::burst_text(&limit).map(Scalar::Text),
        }
    }
}

impl TryFrom<InterfaceTable> for InterfaceSettings {
    type Error = String;

    fn try_from(table: InterfaceTable) -> Result<Self, String> {
        Ok(Self {
            gro: table.gro,
            path: table.path,
            tunnel: Tunnel::read(&table)?,
        })
    }
}

impl From<InterfaceSettings> for InterfaceTable {
    fn from(InterfaceSettings { gro, path, tunnel }: InterfaceSettings) -> Self {
        let mut table = Self {
            gro,
            path,
            ..Self::default()
        };
        if let Some(tunnel) = tunnel {
            tunnel.write(&mut table);
        }
        table
    }
}

impl TryFrom<Scalar> for Gro {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        match value.to_string().as_str() {
            "off" | "no" => Ok(Self::Off),
            "on" | "yes" => Ok(Self::On),
            "auto" => Ok(Self::Auto),
            other => Err(format!("gro = {other:?}: give \"auto\", \"on\" or \"off\"")),
        }
    }
}

fn of_interfaces<'de, D>(deserializer: D) -> Result<BTreeMap<String, InterfaceSettings>, D::Error>
where
    D: Deserializer<'de>,
{
    let interfaces = BTreeMap::<String, InterfaceSettings>::deserialize(deserializer)?;
    for name in interfaces.keys() {
        check_interface_name(name)
            .map_err(|problem| D::Error::custom(format!("interface {name:?}: {problem}")))?;
    }
    let settings = Settings {
        interface: interfaces,
        ..Settings::default()
    };
    match settings.impossible_tunnel() {
        None => Ok(settings.interface),
        Some((name, problem)) => Err(D::Error::custom(format!("interface {name}: {problem}"))),
    }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
