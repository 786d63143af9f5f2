//! The options of an output, each a key and a value, and their texts.

use std::net::IpAddr;

use thiserror::Error;

use crate::demand::{Demand, IGMP};
use crate::limit::{LimitProblem, RateLimit};
use crate::table::Ttl;

/// Keys in the order they are printed.
pub(super) const KEYS: [&str; 9] = [
    "ttl", "source", "dscp", "sport", "fragment", "limit", "burst", "demand", "querier",
];

/// What is wrong with an option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionProblem {
    /// Not `KEY=VALUE`.
    #[error("{0:?} is not an option; options are written KEY=VALUE, as in ttl=16")]
    Form(String),
    /// A key that does not exist.
    #[error("there is no option {0:?}; there are {keys}", keys = KEYS.join(", "))]
    Unknown(String),
    /// The same key twice.
    #[error("option {0} is given twice; leave one out")]
    Twice(String),
    /// A TTL out of range.
    #[error("ttl={0}: give 1 to 255, dec (one less, as a router) or keep")]
    Ttl(String),
    /// A source that is no address.
    #[error("source={0}: give auto (the egress interface's address), keep, or an address")]
    Source(String),
    /// A source that cannot send.
    #[error("source={0}: cannot send; give a host's unicast address")]
    SourceNotUnicast(IpAddr),
    /// A source of the other family.
    #[error("source={0}: is not of the output's family; give an {1} address")]
    SourceFamily(IpAddr, &'static str),
    /// A DSCP out of range.
    #[error("dscp={0}: give 0 to 63, a name such as ef, af41 or cs5, or keep")]
    Dscp(String),
    /// A source port out of range.
    #[error("sport={0}: give 1 to 65535 or keep")]
    SourcePort(String),
    /// Not yes or no.
    #[error("fragment={0}: give yes or no")]
    Fragment(String),
    /// No demand that there is.
    #[error("demand={0}: give igmp (groups that hosts listen to, by IGMP and MLD) or no")]
    Demand(String),
    /// Not yes or no.
    #[error("querier={0}: give yes or no")]
    Querier(String),
    /// Who asks where nobody wants to know.
    #[error("querier={0}: belongs to a demand; give demand=igmp as well")]
    QuerierAlone(&'static str),
    /// A limit or burst that cannot be read.
    #[error(transparent)]
    Limit(#[from] LimitProblem),
}

/// Source address of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SourceChoice {
    /// The egress interface's primary address, followed as it changes.
    #[default]
    Auto,
    /// The packet's own.
    Keep,
    /// This one.
    Address(IpAddr),
}

/// Options as read, each at most once.
#[derive(Default)]
pub(super) struct Options {
    pub(super) ttl: Option<Ttl>,
    pub(super) source: Option<SourceChoice>,
    pub(super) dscp: Option<Option<u8>>,
    pub(super) source_port: Option<Option<u16>>,
    pub(super) fragment: Option<bool>,
    limit: Option<String>,
    burst: Option<String>,
    demand: Option<bool>,
    querier: Option<bool>,
}

impl Options {
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), OptionProblem> {
        let twice = match key {
            "ttl" => self.ttl.replace(ttl(value)?).is_some(),
            "source" => self.source.replace(source(value)?).is_some(),
            "dscp" => self.dscp.replace(dscp(value)?).is_some(),
            "sport" => self.source_port.replace(source_port(value)?).is_some(),
            "fragment" => {
                let is_cut = yes_or_no(value, OptionProblem::Fragment)?;
                self.fragment.replace(is_cut).is_some()
            }
            "limit" => self.limit.replace(value.to_owned()).is_some(),
            "burst" => self.burst.replace(value.to_owned()).is_some(),
            "demand" => self.demand.replace(demand(value)?).is_some(),
            "querier" => {
                let asks = yes_or_no(value, OptionProblem::Querier)?;
                self.querier.replace(asks).is_some()
            }
            _ => return Err(OptionProblem::Unknown(key.to_owned())),
        };
        if twice {
            return Err(OptionProblem::Twice(key.to_owned()));
        }
        Ok(())
    }

    pub(super) fn rate_limit(&self) -> Result<Option<RateLimit>, OptionProblem> {
        let limit = crate::limit::parse(self.limit.as_deref(), self.burst.as_deref())?;
        Ok(limit)
    }

    pub(super) fn demand(&self) -> Result<Option<Demand>, OptionProblem> {
        match (self.demand.unwrap_or_default(), self.querier) {
            (true, querier) => Ok(Some(Demand {
                querier: querier.unwrap_or_default(),
            })),
            (false, Some(true)) => Err(OptionProblem::QuerierAlone("yes")),
            (false, _) => Ok(None),
        }
    }
}

fn ttl(value: &str) -> Result<Ttl, OptionProblem> {
    match value {
        "keep" => Ok(Ttl::Keep),
        "dec" => Ok(Ttl::Decrement),
        _ => number(value, 1, 255)
            .and_then(|ttl| u8::try_from(ttl).ok())
            .map(Ttl::Set)
            .ok_or_else(|| OptionProblem::Ttl(value.to_owned())),
    }
}

fn source(value: &str) -> Result<SourceChoice, OptionProblem> {
    match value {
        "auto" => Ok(SourceChoice::Auto),
        "keep" => Ok(SourceChoice::Keep),
        _ => {
            let address: IpAddr = value
                .parse()
                .map_err(|_| OptionProblem::Source(value.to_owned()))?;
            let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
            if address.is_multicast() || address.is_unspecified() || broadcast {
                return Err(OptionProblem::SourceNotUnicast(address));
            }
            Ok(SourceChoice::Address(address))
        }
    }
}

fn dscp(value: &str) -> Result<Option<u8>, OptionProblem> {
    if value == "keep" {
        return Ok(None);
    }
    dscp_name(value)
        .or_else(|| number(value, 0, 63).and_then(|dscp| u8::try_from(dscp).ok()))
        .map(Some)
        .ok_or_else(|| OptionProblem::Dscp(value.to_owned()))
}

/// Names of code points: RFC 2474 (cs), RFC 2597 (af), RFC 3246 (ef), RFC 5865 (va).
fn dscp_name(value: &str) -> Option<u8> {
    let name = value.to_ascii_lowercase();
    match name.as_bytes() {
        b"ef" => Some(46),
        b"va" => Some(44),
        [b'c', b's', class @ b'0'..=b'7'] => Some((class - b'0') * 8),
        [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
            Some((class - b'0') * 8 + (drop - b'0') * 2)
        }
        _ => None,
    }
}

fn source_port(value: &str) -> Result<Option<u16>, OptionProblem> {
    if value == "keep" {
        return Ok(None);
    }
    number(value, 1, 65_535)
        .and_then(|port| u16::try_from(port).ok())
        .map(Some)
        .ok_or_else(|| OptionProblem::SourcePort(value.to_owned()))
}

fn yes_or_no(value: &str, problem: fn(String) -> OptionProblem) -> Result<bool, OptionProblem> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(problem(value.to_owned())),
    }
}

fn demand(value: &str) -> Result<bool, OptionProblem> {
    match value {
        IGMP => Ok(true),
        "no" => Ok(false),
        _ => Err(OptionProblem::Demand(value.to_owned())),
    }
}

fn number(text: &str, least: u32, most: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number: u32 = digits.then(|| text.parse().ok()).flatten()?;
    (least..=most).contains(&number).then_some(number)
}
