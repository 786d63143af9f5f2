//! The options of an output, each a key and a value, and their texts.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::demand::{Admission, Demand, IGMP};
use crate::host_name::{All, MAX_ADDRESSES, REFRESH_S};
use crate::limit::{self, LimitProblem};
use crate::net::Prefix;
use crate::setting::{
    ANY, Form, Inner, OptionProblem, Refusal, Row, Setting, TextForm, Word, options, words,
};

/// What is wrong with the options of an output.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsProblem {
    /// One that cannot be read.
    #[error(transparent)]
    Option(#[from] OptionProblem),
    /// A source of the other family.
    #[error("source={0}: is not of the output's family; give an {1} address")]
    SourceFamily(IpAddr, &'static str),
    /// A querier without a demand.
    #[error("querier=yes: belongs to a demand; give demand={IGMP} as well")]
    QuerierAlone,
    /// A limit or burst that cannot be read.
    #[error(transparent)]
    Limit(#[from] LimitProblem),
    /// All addresses of an address.
    #[error("all=yes: is for names, and an address stands for one; leave it out")]
    AllOfAddress,
    /// A linger time without a demand.
    #[error("linger=: belongs to a demand; give demand={IGMP} as well")]
    LingerAlone,
    /// Listeners without a demand.
    #[error("{0}=: belongs to a demand; give demand={IGMP} as well")]
    ListenersAlone(&'static str),
    /// A key that needs `all`.
    #[error("{0}=: belongs to all; give all=yes as well")]
    AllMissing(&'static str),
    /// A time with a fraction of a second.
    #[error("refresh=: give whole seconds, as in 5s")]
    RefreshFraction,
    /// A time with a fraction of a second.
    #[error("linger=: give whole seconds, as in 30s")]
    LingerFraction,
    /// A service, of which one address would have to be chosen.
    #[error("is the name of a service, which has ports; give all=yes, or a port")]
    Service,
}

/// What happens to TTL or hop limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ttl {
    /// Kept, as a bridge would.
    #[default]
    Keep,
    /// Decremented, as a router would; dropped at 1.
    Decrement,
    /// Set to a value from 1 to 255.
    Set(u8),
}

/// Source address of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceChoice {
    /// The egress interface's primary address, followed as it changes.
    #[default]
    Auto,
    /// The packet's own source.
    Keep,
    /// This address.
    Address(IpAddr),
}

/// Options of an output as keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    pub(super) ttl: Ttl,
    pub(super) source: SourceChoice,
    pub(super) dscp: Dscp,
    pub(super) source_port: Option<u16>,
    pub(super) fragment: bool,
    pub(super) limit: Option<String>,
    pub(super) burst: Option<String>,
    pub(super) demand: Follows,
    pub(super) querier: bool,
    pub(super) linger: Option<Duration>,
    pub(super) allow: Hosts,
    pub(super) deny: Hosts,
    pub(super) groups_each: Option<u16>,
    pub(super) groups_all: Option<u16>,
    /// Only as a table of the four above.
    pub(super) listeners: Option<String>,
    pub(super) all: bool,
    pub(super) max: Option<u16>,
    pub(super) refresh: Option<Duration>,
}

/// A DSCP, 0 to 63; `None` keeps the packet's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dscp(pub(super) Option<u8>);

/// Hosts and ranges of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(pub(super) Vec<Prefix>);

words! {
    /// What an output follows.
    pub enum Follows = No {
        /// Groups that hosts listen to, by IGMP and MLD.
        Igmp = "igmp",
        /// Nothing: everything leaves.
        No = "no",
    }
}

options! {
    /// An output with its options as keys.
    OutputOptions, OptionsProblem, {
        name: "",
        document: "OutputTable",
        example: "ttl=16",
        alone: "",
        subject: TO,
        expecting: "struct OutputTable",
    }
    /// TTL or hop limit of the copies; `dec`: one less, as a router.
    optional ttl: Ttl = ttl, default: "keep",
        remedy: "give 1 to 255, dec (one less, as a router) or keep";
    /// Source address of the copies: that of the interface they leave by (`auto`), the packet's own
    /// (`keep`), or another.
    optional source: SourceChoice = source, default: "auto",
        remedy: "give auto (the egress interface's address), keep, or an address";
    /// DSCP of the copies, 0 to 63 or a name such as `ef`.
    optional dscp: Dscp = dscp, default: "keep",
        remedy: "give 0 to 63, a name such as ef, af41 or cs5, or keep";
    /// Source port of the copies.
    optional sport: Option<u16> = source_port, form: Form::Number {
        least: 1,
        most: u16::MAX as u64,
        or: &["keep"],
    }, default: "keep", remedy: "give 1 to 65535 or keep";
    /// Whether packets above the MTU are cut where DF is clear, on the userspace path.
    optional fragment: bool = fragment, form: YES_NO, default: "no", remedy: "give yes or no";
    /// Cap on what the output sends, as in `5000pps` or `20Mbit`.
    optional limit: Option<String> = limit, form: Form::Text(&limit::LIMIT);
    /// Burst the cap allows: packets, or a size such as `1Mbit`; a tenth of a second's by default.
    optional burst: Option<String> = burst, form: Form::Text(&limit::BURST);
    /// Whether only the groups leave that hosts on the interface listen to, by IGMP or MLD.
    optional demand: Follows = demand, default: "no",
        remedy: "give igmp (groups that hosts listen to, by IGMP and MLD) or no";
    /// Whether to ask there who listens, where no other router does; with `demand`.
    optional querier: bool = querier, form: YES_NO, default: "no", remedy: "give yes or no";
    /// Of `demand`, also as `demand = { by = "igmp", linger = "30s" }`: how long the input stays joined
    /// after the last host left, so that who comes back is served at once.
    optional linger: Option<Duration> = linger,
        form: Form::time(Duration::from_secs(1), Duration::from_secs(3600)), otherwise: "no time",
        remedy: "give a time from 1s to 1h in whole seconds, such as 30s";
    /// Of `demand`, also as `listeners = { allow = ["10.0.0.0/8"] }`: the hosts that are followed alone,
    /// as addresses and ranges with `+` between them.
    optional allow: Hosts = allow, otherwise: "all";
    /// Of `demand`: the hosts that are not followed.
    optional deny: Hosts = deny, otherwise: "none";
    /// Of `demand`: the most groups of one host; what goes beyond is counted as refused.
    optional groups_each: Option<u16> = groups_each, form: Form::number(1, 4096), otherwise: "as many as there is room for";
    /// Of `demand`: the most groups of all hosts together.
    optional groups_all: Option<u16> = groups_all, form: Form::number(1, 4096), otherwise: "as many as there is room for";
    /// Of `demand`, as a table alone: `allow`, `deny`, `groups_each` and `groups_all` in one.
    optional listeners: Option<String> = listeners, form: Form::Text(&LISTENERS);
    /// Of a name: whether each address that it has, of the rule's family, gets a copy of its own. The name
    /// of a service (`_rtp._udp.NAME`, without a port) has those of its servers of the lowest priority.
    optional all: bool = all, form: YES_NO, default: "no", remedy: "give yes or no";
    /// Of `all`: to how many addresses at most; those in use stay, then the lowest come.
    optional max: Option<u16> = max, form: Form::number(1, 1024), default: "64";
    /// Of `all`: how long an answer is believed at least, else for its TTL up to 30s.
    optional refresh: Option<Duration> = refresh,
        form: Form::time(Duration::from_secs(1), Duration::from_secs(3600)), default: "5s",
        remedy: "give a time from 1s to 1h in whole seconds, such as 5s";

    impl {
        fn nested(row: &Row) -> Option<Inner> {
            match row.key {
                "demand" => Some(&[("by", "demand"), ("querier", "querier"), ("linger", "linger")]),
                "listeners" => Some(&[
                    ("allow", "allow"),
                    ("deny", "deny"),
                    ("groups_each", "groups_each"),
                    ("groups_all", "groups_all"),
                ]),
                _ => None,
            }
        }
    }
}

/// The table `listeners`, which has no text form.
const LISTENERS: TextForm = TextForm {
    name: "TABLE",
    fits: |_| false,
    pattern: "[^\\s\\S]",
    remedy: "a table, as in { allow = [\"10.0.0.0/8\"], deny = [], groups_each = 4, groups_all = 64 }",
    ..ANY
};

const HOSTS: TextForm = TextForm {
    name: "HOST+HOST",
    fits: |text| hosts(text).is_some(),
    pattern: "[0-9A-Fa-f:./+]+",
    remedy: "hosts or ranges of them, with + between, as in 10.0.0.0/8+10.9.0.5",
    is_quoted: false,
    ..ANY
};

fn hosts(text: &str) -> Option<Hosts> {
    let host = |part: &str| -> Option<Prefix> {
        let address = part.split('/').next()?.parse().ok();
        Prefix::parse(part).filter(|range| Some(range.address) == address)
    };
    text.split('+')
        .map(host)
        .collect::<Option<Vec<_>>>()
        .map(Hosts)
}

impl Setting for Hosts {
    const FORM: Form = Form::Text(&HOSTS);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        hosts(text).ok_or(Refusal::Form)
    }

    fn text(&self, _: &Form) -> String {
        let hosts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        hosts.join("+")
    }
}

const TO: &[Row] = &[Row {
    is_required: true,
    ..Row::new(
        "to",
        &["Destination: `GROUP%IFACE:PORT` or `ADDRESS[%IFACE]:PORT`."],
        Form::Text(&DESTINATION),
    )
}];

/// A destination without options, as a regular expression.
pub(crate) const DESTINATION_PATTERN: &str = concat!(
    r"(([^\s,@%:\[\]]+(%[^\s,@%:\[\]]+)?|\[[^\s,@\[\]]+\])",
    r":0*[1-9][0-9]{0,4}(-0*[1-9][0-9]{0,4})?|_[^\s,@%:\[\]]+(%[^\s,@%:\[\]]+)?)",
);

/// A destination, perhaps followed by options.
const DESTINATION: TextForm = TextForm {
    name: "GROUP%IFACE:PORT",
    pattern: concat!(
        r"(([^\s,@%:\[\]]+(%[^\s,@%:\[\]]+)?|\[[^\s,@\[\]]+\])",
        r":0*[1-9][0-9]{0,4}(-0*[1-9][0-9]{0,4})?|_[^\s,@%:\[\]]+(%[^\s,@%:\[\]]+)?)(,.*)?",
    ),
    ..ANY
};

const YES_NO: Form = Form::Words(&[Word::plain("yes"), Word::plain("no")]);

impl OutputOptions {
    /// How it goes to all addresses of a name, if it does.
    pub(super) fn all(
        &self,
        is_name: bool,
        is_service: bool,
    ) -> Result<Option<All>, OptionsProblem> {
        match (self.all, self.max, self.refresh) {
            (true, ..) if !is_name => Err(OptionsProblem::AllOfAddress),
            (true, _, Some(time)) if time.subsec_nanos() > 0 => {
                Err(OptionsProblem::RefreshFraction)
            }
            (true, max, refresh) => Ok(Some(All {
                max: max.unwrap_or(MAX_ADDRESSES),
                refresh_s: refresh.map_or(REFRESH_S, |time| time.as_secs() as u16),
                is_service,
            })),
            _ if is_service => Err(OptionsProblem::Service),
            (false, Some(_), _) => Err(OptionsProblem::AllMissing("max")),
            (false, _, Some(_)) => Err(OptionsProblem::AllMissing("refresh")),
            (false, None, None) => Ok(None),
        }
    }

    /// Which hosts are followed.
    pub(super) fn listeners(&self) -> Result<Option<Box<Admission>>, OptionsProblem> {
        let given = [
            ("allow", !self.allow.0.is_empty()),
            ("deny", !self.deny.0.is_empty()),
            ("groups_each", self.groups_each.is_some()),
            ("groups_all", self.groups_all.is_some()),
        ];
        let Some((key, _)) = given.into_iter().find(|(_, is_given)| *is_given) else {
            return Ok(None);
        };
        if self.demand == Follows::No {
            return Err(OptionsProblem::ListenersAlone(key));
        }
        Ok(Some(Box::new(Admission {
            allow: self.allow.0.clone(),
            deny: self.deny.0.clone(),
            groups_each: self.groups_each,
            groups_all: self.groups_all,
        })))
    }

    pub(super) fn demand(&self) -> Result<Option<Demand>, OptionsProblem> {
        let querier = self.querier;
        let linger = self.linger.unwrap_or_default();
        if linger.subsec_nanos() > 0 {
            return Err(OptionsProblem::LingerFraction);
        }
        match self.demand {
            Follows::Igmp => Ok(Some(Demand {
                querier,
                linger_s: linger.as_secs() as u16,
            })),
            Follows::No if self.linger.is_some() => Err(OptionsProblem::LingerAlone),
            Follows::No if querier => Err(OptionsProblem::QuerierAlone),
            Follows::No => Ok(None),
        }
    }
}

impl Setting for Ttl {
    const FORM: Form = Form::Number {
        least: 1,
        most: 255,
        or: &["dec", "keep"],
    };

    fn parse(text: &str, form: &Form) -> Result<Self, Refusal> {
        match text {
            "keep" => Ok(Self::Keep),
            "dec" => Ok(Self::Decrement),
            _ => u8::parse(text, form).map(Self::Set),
        }
    }

    fn text(&self, _: &Form) -> String {
        match self {
            Self::Keep => "keep".to_owned(),
            Self::Decrement => "dec".to_owned(),
            Self::Set(ttl) => ttl.to_string(),
        }
    }
}

const SOURCE: TextForm = TextForm {
    name: "auto|keep|ADDRESS",
    fits: |text| matches!(text, "auto" | "keep") || text.parse::<IpAddr>().is_ok(),
    pattern: "auto|keep|[0-9]{1,3}([.][0-9]{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*",
    ..ANY
};

impl Setting for SourceChoice {
    const FORM: Form = Form::Text(&SOURCE);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        match text {
            "auto" => return Ok(Self::Auto),
            "keep" => return Ok(Self::Keep),
            _ => {}
        }
        let address: IpAddr = text.parse().map_err(|_| Refusal::Form)?;
        let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        if address.is_multicast() || address.is_unspecified() || is_broadcast {
            return Err(Refusal::Because(
                "cannot send; give a host's unicast address",
            ));
        }
        Ok(Self::Address(address))
    }

    fn text(&self, _: &Form) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Keep => "keep".to_owned(),
            Self::Address(address) => address.to_string(),
        }
    }
}

const CODE_POINT: TextForm = TextForm {
    name: "N|keep",
    fits: |text| dscp(text).is_some(),
    pattern: "keep|0*([0-9]|[1-5][0-9]|6[0-3])|[Ee][Ff]|[Vv][Aa]|[Cc][Ss][0-7]|[Aa][Ff][1-4][1-3]",
    numbers: Some((0, 63)),
    ..ANY
};

impl Setting for Dscp {
    const FORM: Form = Form::Text(&CODE_POINT);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        dscp(text).ok_or(Refusal::Form)
    }

    fn text(&self, _: &Form) -> String {
        self.0.map_or("keep".to_owned(), |dscp| dscp.to_string())
    }
}

/// Parses a DSCP, 0 to 63 or a name such as `ef`.
#[must_use]
pub fn code_point(text: &str) -> Option<u8> {
    dscp(text)?.0
}

fn dscp(text: &str) -> Option<Dscp> {
    if text == "keep" {
        return Some(Dscp(None));
    }
    let is_number = Form::number(0, 63).accepts(text);
    let number = is_number.then(|| text.parse().ok()).flatten();
    number
        .or_else(|| dscp_name(text))
        .map(|dscp| Dscp(Some(dscp)))
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
