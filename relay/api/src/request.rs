//! What clients send.

use std::fmt;
use std::time::Duration;

use config::{Settings, StaticJoin};
use rules::document::RuleDocument;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most rules that one request may hold, and that a path is made for.
pub const RULES_MAX: usize = 131_072;

/// The most rules whose history one request may ask for.
pub const HISTORY_RULES_MAX: usize = 100;

/// The header with the `id` of the event behind which a stream of events goes on.
pub const LAST_EVENT_ID_HEADER: &str = "last-event-id";
/// The header with the reason for a change.
pub const MESSAGE_HEADER: &str = "x-mcr-message";
/// The longest message, in bytes.
pub const MESSAGE_MAX: usize = 1024;

/// Which rules of before to go back to: those of a generation, or the last that are not those that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// Their generation; the last others where it is left out.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "whole"
    )]
    pub generation: Option<u64>,
}

/// The terms of a client's changes.
#[derive(Clone, Debug, Default)]
pub struct ChangeTerms {
    /// Why.
    pub message: Option<String>,
    /// The generation that the rules must have.
    pub generation: Option<u64>,
    /// How long the change waits for its confirmation before it is undone.
    pub confirm: Option<Duration>,
    /// Whether it is saved when it is confirmed.
    pub save: bool,
}

/// Parses how long a change may wait for its confirmation.
///
/// # Errors
/// A text that is not a time, or is out of bounds.
pub fn time_to_confirm(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
    let time = rules::duration::parse(text).filter(|time| bounds.contains(time));
    time.ok_or_else(|| format!("{text:?}: give a time to confirm from 1s to 1h, as in 60s"))
}

/// A whole rule set, to put in the place of the running one; also what the daemon answers when
/// asked for its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleList {
    /// Generation of the running set: what the daemon says it is, or what the client insists on.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "whole"
    )]
    pub generation: Option<u64>,
    /// The rules in their order, at most 131,072.
    #[serde(deserialize_with = "not_too_many")]
    pub rules: Vec<RuleDocument>,
    /// What a configuration says beyond rules; where it is left out, the running settings stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
}

/// Which input of a rule is to be relayed, of those that stand by for each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActiveInput {
    /// The input as the rule writes it.
    #[schema(min_length = 1)]
    pub input: String,
}

/// A packet that is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PacketAsked {
    /// Name of the interface that it would arrive on.
    #[schema(min_length = 1, max_length = 15)]
    pub interface: String,
    /// The packet with an Ethernet header, in hexadecimal digits.
    #[schema(min_length = 2, max_length = 131_072, pattern = "^([0-9a-fA-F]{2})+$")]
    pub frame: String,
}

/// Whether somebody sees to a rule's trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Acknowledge {
    /// As it stands now, until it is over or another.
    pub acknowledged: bool,
}

/// Whether a rule forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Enabled {
    /// Where it does not, the rule stays configured and joins nothing.
    pub enabled: bool,
}

/// Whether rules forward, all of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EnabledRules {
    /// Names of the rules.
    #[serde(deserialize_with = "not_too_many")]
    #[schema(max_items = 131_072)]
    pub rules: Vec<String>,
    /// Where they do not, they stay configured and join nothing.
    pub enabled: bool,
}

/// The rules that a fleet is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetRuleList {
    /// Generation of the fleet's rules that these are to take the place of; refused as `conflict`
    /// when there are others by now.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "whole"
    )]
    pub generation: Option<u64>,
    /// The rules in their order, with roles for interfaces, at most 131,072.
    #[serde(deserialize_with = "not_too_many")]
    pub rules: Vec<RuleDocument>,
}

/// Rules as they are being written: as a text, or as what a form has of them so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RulesWritten {
    /// As TOML, of rules alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toml: Option<String>,
    /// As objects that may be rules, at most 131,072.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "not_too_many"
    )]
    #[schema(value_type = Vec<Object>)]
    pub rules: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Whether they are a fleet's, with roles for interfaces.
    pub fleet: bool,
}

/// What rules are to be made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RulesFound {
    /// The text: an SDP, a playlist, smcroute.conf, a document of IS-05.
    pub text: String,
    /// Where streams arrive that the text names no interface for, leg by leg.
    pub interfaces: Vec<String>,
    /// Where streams go that the text sends nowhere, as `%eth1` or `10.9.9.9`.
    pub to: Vec<String>,
}

/// A relay of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetRelayName {
    /// Its name.
    #[schema(pattern = "^[0-9A-Za-z][0-9A-Za-z._:-]{0,62}$")]
    pub relay: String,
}

/// What a relay of a fleet is to forward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetMove {
    /// Rules or shares, by name; the other rules of a share go with it.
    #[serde(deserialize_with = "not_too_many")]
    pub rules: Vec<String>,
    /// The relay that is to forward them.
    #[schema(pattern = "^[0-9A-Za-z][0-9A-Za-z._:-]{0,62}$")]
    pub relay: String,
}

/// A change of the running rule set, carried out whole or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Transaction {
    /// Generation the change was made for; refused as `conflict` when the set is another by now.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "whole")]
    pub generation: Option<u64>,
    /// Rules to put behind the rest, at most 131,072; one whose name is in `remove` replaces that
    /// rule.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "not_too_many"
    )]
    pub add: Vec<RuleDocument>,
    /// Names of rules to take out, at most 131,072.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "not_too_many"
    )]
    pub remove: Vec<String>,
    /// Groups to join whatever the rules say, `GROUP%IFACE`, at most 131,072; one that is joined already
    /// gets another end.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "not_too_many"
    )]
    #[schema(value_type = Vec<String>)]
    pub join: Vec<StaticJoin>,
    /// Groups to leave that were joined so, at most 131,072.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "not_too_many"
    )]
    #[schema(value_type = Vec<String>)]
    pub leave: Vec<StaticJoin>,
}

/// Deserialises a list of at most [`RULES_MAX`] elements, and gives up at the first beyond it, so that an
/// oversized list takes no memory.
///
/// # Errors
/// As the deserializer, and for longer lists.
pub fn not_too_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct List<T>(std::marker::PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {RULES_MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = list.next_element()? {
                if elements.len() == RULES_MAX {
                    let message = format!("more than {RULES_MAX} at once; divide the change");
                    return Err(A::Error::custom(message));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    deserializer.deserialize_seq(List(std::marker::PhantomData))
}

/// Deserialises a whole number. JSON has one kind of number: 7.0 is as whole as 7.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Integer(u64),
        Float(f64),
    }
    const LARGEST: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let invalid = || D::Error::custom("a generation is a whole number, 0 or more");
    match Option::<Number>::deserialize(deserializer).map_err(|_| invalid())? {
        None => Ok(None),
        Some(Number::Integer(number)) => Ok(Some(number)),
        Some(Number::Float(number))
            if number.fract() == 0.0 && (0.0..=LARGEST).contains(&number) =>
        {
            Ok(Some(number as u64))
        }
        Some(Number::Float(_)) => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_refused_at_the_first_element_beyond_the_limit() {
        let names = |count: usize| vec!["\"a\""; count].join(",");
        let read = |count| {
            let text = format!("{{\"remove\":[{}]}}", names(count));
            serde_json::from_str::<Transaction>(&text).map(|read| read.remove.len())
        };
        assert_eq!(read(RULES_MAX).unwrap(), RULES_MAX);
        let error = read(RULES_MAX + 1).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("more than {RULES_MAX} at once")),
            "{error}"
        );
        assert_eq!(
            serde_json::from_str::<Transaction>("{}").unwrap(),
            Transaction::default()
        );
    }

    #[test]
    fn a_generation_is_whole_however_it_is_written() {
        let generation = |text: &str| {
            let body = format!("{{\"generation\":{text}}}");
            serde_json::from_str::<Transaction>(&body).map(|transaction| transaction.generation)
        };
        assert_eq!(generation("7").unwrap(), Some(7));
        assert_eq!(generation("7.0").unwrap(), Some(7));
        assert_eq!(generation("null").unwrap(), None);
        for wrong in ["7.5", "-1", "-1.0", "\"7\"", "1e30"] {
            let error = generation(wrong).unwrap_err().to_string();
            assert!(error.contains("whole number"), "{wrong}: {error}");
        }
    }
}
