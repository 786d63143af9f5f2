//! An output as the operator writes it: `239.10.1.1%eth1:6001,ttl=16,source=10.0.1.1,dscp=34`.
//!
//! Parsing and printing round-trip exactly; the options are printed in one fixed order and only
//! where they are not the default.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::options::{Dscp, Follows, Hosts, OptionsProblem, OutputOptions, SourceChoice, Ttl};
use crate::demand::{Admission, Demand};
use crate::endpoint::{Endpoint, EndpointProblem, shown};
use crate::host_name::{All, Destination, HostName, MAX_ADDRESSES, REFRESH_S};
use crate::limit::{self, RateLimit};
use crate::named::by_text;
use crate::net::{Ports, Prefix};
use crate::setting::{self, Options, split};

/// One copy that a rule makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OutputSpec {
    /// Where the copy goes, without sources. If a name stands for the address, this one is unspecified and
    /// of the rule's family.
    pub to: Endpoint,
    /// The name in place of its address, which the host resolves.
    pub name: Option<HostName>,
    /// Source address of the copy.
    pub source: SourceChoice,
    /// Source port of the copy; `None` keeps the packet's.
    pub source_port: Option<u16>,
    /// What happens to TTL or hop limit.
    pub ttl: Ttl,
    /// DSCP of the copy, 0 to 63; `None` keeps the packet's.
    pub dscp: Option<u8>,
    /// Whether packets above the egress MTU are fragmented where DF is clear.
    pub fragment: bool,
    /// Cap on what the output sends.
    pub limit: Option<RateLimit>,
    /// How it follows listeners; `None`: everything leaves.
    pub demand: Option<Demand>,
    /// Whether it goes to all addresses of its name.
    pub all: Option<All>,
    /// Which hosts it follows, if it follows listeners.
    pub listeners: Option<Box<Admission>>,
}

impl OutputSpec {
    /// Makes an output without options.
    pub const fn new(to: Endpoint) -> Self {
        Self {
            to,
            name: None,
            source: SourceChoice::Auto,
            source_port: None,
            ttl: Ttl::Keep,
            dscp: None,
            fragment: false,
            limit: None,
            demand: None,
            all: None,
            listeners: None,
        }
    }

    /// The destination as it was written, without options.
    pub fn target(&self) -> String {
        let Some(name) = &self.name else {
            return self.to.to_string();
        };
        let interface = self.to.interface.as_ref();
        let suffix = interface.map_or_else(String::new, |interface| format!("%{interface}"));
        match self.all {
            Some(All {
                is_service: true, ..
            }) => format!("{name}{suffix}"),
            _ => format!("{name}{suffix}:{}", self.to.ports),
        }
    }

    /// The destination of its routes, if they are unicast.
    pub fn destination(&self) -> Destination {
        let ipv4 = self.to.is_ipv4();
        match (self.name.clone(), self.all) {
            (Some(name), Some(all)) => Destination::All { name, ipv4, all },
            (Some(name), None) => Destination::Name { name, ipv4 },
            (None, _) => Destination::Address(self.to.destination.address),
        }
    }

    /// The copy that goes to one of the addresses of its name, and to that port for a service.
    pub fn copy(&self, (address, port): (IpAddr, Option<u16>)) -> Self {
        let mut copy = self.resolved(address);
        (copy.name, copy.all) = (None, None);
        copy.to.ports = port.map_or(copy.to.ports, Ports::single);
        copy
    }

    /// The same output with the address that its name stands for.
    pub fn resolved(&self, address: IpAddr) -> Self {
        let mut resolved = self.clone();
        resolved.to.destination = Prefix::host(address);
        resolved
    }

    /// Parses an output whose options stand beside its text, as in a TOML table. `to` may carry
    /// options too, but none twice.
    ///
    /// # Errors
    ///
    /// Names the output as text and the first thing that is wrong with it.
    pub fn from_parts(to: &str, options: &[(&str, String)]) -> Result<Self, OutputError> {
        parse(to, options).map_err(|problem| {
            let mut text = to.to_owned();
            for (key, value) in options {
                text.push_str(&format!(",{key}={value}"));
            }
            OutputError { text, problem }
        })
    }
}

/// A text or table that is not an output.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {problem}", shown(.text))]
pub struct OutputError {
    /// The whole text, options included.
    pub text: String,
    /// What is wrong with it.
    pub problem: OutputProblem,
}

/// What is wrong with an output.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OutputProblem {
    /// The endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointProblem),
    /// An option.
    #[error(transparent)]
    Option(#[from] OptionsProblem),
    /// Sources before the group.
    #[error(
        "an output does not choose among sources; write {to}, and source=ADDRESS to set \
         the source of the copies"
    )]
    Sources {
        /// The output without sources.
        to: String,
    },
}

impl FromStr for OutputSpec {
    type Err = OutputError;

    fn from_str(text: &str) -> Result<Self, OutputError> {
        Self::from_parts(text, &[])
    }
}

by_text!(OutputSpec, OutputError);

fn parse(text: &str, more: &[(&str, String)]) -> Result<OutputSpec, OutputProblem> {
    // Commas before an @ separate sources, not options.
    let after_sources = text.find('@').map_or(0, |at| at + 1);
    let (to, listed) = match text[after_sources..].find(',') {
        Some(comma) => {
            let comma = after_sources + comma;
            (&text[..comma], Some(&text[comma + 1..]))
        }
        None => (text, None),
    };
    let (to, name, is_service) = target(to)?;
    if !to.sources.is_empty() {
        let to = Endpoint {
            sources: Vec::new(),
            ..to
        };
        return Err(OutputProblem::Sources { to: to.to_string() });
    }
    let mut options = Vec::new();
    for part in listed.into_iter().flat_map(|listed| listed.split(',')) {
        match part {
            "all" => options.push(("all", "yes")),
            part => options.extend(split::<OutputOptions>(part).map_err(OptionsProblem::from)?),
        }
    }
    options.extend(more.iter().map(|(key, value)| (*key, value.as_str())));
    assemble(to, (name, is_service), &setting::parse(options)?)
}

/// Parses an endpoint whose destination may be a name. Returns it with the name, if any, and whether
/// that is the name of a service.
fn target(text: &str) -> Result<(Endpoint, Option<HostName>, bool), EndpointProblem> {
    let problem = match text.parse::<Endpoint>() {
        Ok(to) => return Ok((to, None, false)),
        Err(error) => error.problem,
    };
    let end = text.find(['%', ':']).unwrap_or(text.len());
    let is_service = matches!(problem, EndpointProblem::PortMissing(_))
        && text[..end]
            .split('.')
            .take(2)
            .filter(|label| label.starts_with('_'))
            .count()
            == 2
        && !text.ends_with(':');
    let is_name = matches!(problem, EndpointProblem::AddressInvalid { .. }) || is_service;
    let Some(name) = HostName::new(&text[..end]).filter(|_| is_name) else {
        return Err(match problem {
            EndpointProblem::AddressInvalid { text, family } => {
                EndpointProblem::DestinationInvalid { text, family }
            }
            other => other,
        });
    };
    // A service has ports of its own.
    let port = if is_service { ":1" } else { "" };
    // A placeholder: the name stands for the address.
    let to = format!("unicast{}{port}", &text[end..]).parse::<Endpoint>();
    Ok((to.map_err(|error| error.problem)?, Some(name), is_service))
}

fn assemble(
    to: Endpoint,
    (name, is_service): (Option<HostName>, bool),
    options: &OutputOptions,
) -> Result<OutputSpec, OutputProblem> {
    let source = options.source;
    if let SourceChoice::Address(address) = source
        && address.is_ipv4() != to.is_ipv4()
        && name.is_none()
    {
        let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(OptionsProblem::SourceFamily(address, family).into());
    }
    let is_name = name.is_some();
    Ok(OutputSpec {
        to,
        name,
        source,
        source_port: options.source_port,
        ttl: options.ttl,
        dscp: options.dscp.0,
        fragment: options.fragment,
        limit: limit::parse(options.limit.as_deref(), options.burst.as_deref())
            .map_err(OptionsProblem::from)?,
        demand: options.demand()?,
        all: options.all(is_name, is_service)?,
        listeners: options.listeners()?,
    })
}

impl From<&OutputSpec> for OutputOptions {
    fn from(output: &OutputSpec) -> Self {
        let limit = output.limit.as_ref();
        Self {
            ttl: output.ttl,
            source: output.source,
            dscp: Dscp(output.dscp),
            source_port: output.source_port,
            fragment: output.fragment,
            limit: limit.map(limit::rate_text),
            burst: limit.and_then(limit::burst_text),
            demand: output.demand.map_or(Follows::No, |_| Follows::Igmp),
            querier: output.demand.is_some_and(|demand| demand.querier),
            linger: output
                .demand
                .filter(|demand| demand.linger_s > 0)
                .map(|demand| Duration::from_secs(demand.linger_s.into())),
            allow: output
                .listeners
                .as_ref()
                .map_or_else(Hosts::default, |l| Hosts(l.allow.clone())),
            deny: output
                .listeners
                .as_ref()
                .map_or_else(Hosts::default, |l| Hosts(l.deny.clone())),
            groups_each: output
                .listeners
                .as_ref()
                .and_then(|listeners| listeners.groups_each),
            groups_all: output
                .listeners
                .as_ref()
                .and_then(|listeners| listeners.groups_all),
            listeners: None,
            all: output.all.is_some(),
            max: output
                .all
                .map(|all| all.max)
                .filter(|max| *max != MAX_ADDRESSES),
            refresh: output
                .all
                .filter(|all| all.refresh_s != REFRESH_S)
                .map(|all| Duration::from_secs(all.refresh_s.into())),
        }
    }
}

impl fmt::Display for OutputSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target())?;
        let texts = OutputOptions::from(self).texts();
        texts.iter().try_for_each(|(key, text)| match *key {
            "all" => f.write_str(",all"),
            key => write!(f, ",{key}={text}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        text.parse::<OutputSpec>().unwrap_err().to_string()
    }

    #[test]
    fn prints_what_it_parsed() {
        for text in [
            "239.10.1.1%eth1:6001",
            "239.10.1.1%eth1:6001,ttl=16,source=10.0.1.1,dscp=34",
            "239.10.1.1%eth1:6001,ttl=dec,source=keep,dscp=0,sport=7,fragment=yes,limit=5000pps,burst=9",
            "10.9.9.9:7000,limit=20Mbit",
            "239.10.1.0/24%eth1:6001,demand=igmp",
            "239.10.1.0/24%eth1:6001,demand=igmp,querier=yes,linger=30s",
            "239.10.1.0/24%eth1:6001,demand=igmp,allow=10.0.0.0/8+fe80::/10,deny=10.0.0.5,groups_each=4,groups_all=64",
            "239.10.1.1%eth1:6001,source=keep,limit=20Mbit,demand=igmp,querier=yes",
            "cloud.example:7000",
            "relay-b%eth1:7000-7010,ttl=16,source=2001:db8::1",
            "cloud.example.:7000,ttl=16,all,max=9,refresh=10s",
            "_rtp._udp.cloud.example%eth1,all",
            "[ff3e::1%eth1]:6001,source=2001:db8::1",
        ] {
            assert_eq!(text.parse::<OutputSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn prints_options_in_one_order_and_leaves_defaults_out() {
        let text = "10.9.9.9:7000,dscp=AF41,ttl=keep,source=auto,sport=keep,fragment=no,limit=1kpps,burst=100";
        let output: OutputSpec = text.parse().unwrap();
        assert_eq!(output.to_string(), "10.9.9.9:7000,dscp=34,limit=1000pps");
    }

    #[test]
    fn names_the_option_that_is_wrong_and_the_remedy() {
        for (options, expected) in [
            (
                "ttl=0",
                "ttl=0: give 1 to 255, dec (one less, as a router) or keep",
            ),
            (
                "ttl=256",
                "ttl=256: give 1 to 255, dec (one less, as a router) or keep",
            ),
            (
                "ttl",
                "\"ttl\" is not an option; options are written KEY=VALUE, as in ttl=16",
            ),
            (
                "",
                "\"\" is not an option; options are written KEY=VALUE, as in ttl=16",
            ),
            (
                "tll=3",
                "there is no option \"tll\"; there are ttl, source, dscp, sport, fragment, limit, burst, demand, querier, linger, allow, deny, groups_each, groups_all, listeners, all, max, refresh; did you mean ttl?",
            ),
            ("ttl=3,ttl=3", "option ttl is given twice; leave one out"),
            (
                "source=me",
                "source=me: give auto (the egress interface's address), keep, or an address",
            ),
            (
                "source=239.0.0.1",
                "source=239.0.0.1: cannot send; give a host's unicast address",
            ),
            (
                "source=2001:db8::1",
                "source=2001:db8::1: is not of the output's family; give an IPv4 address",
            ),
            (
                "dscp=64",
                "dscp=64: give 0 to 63, a name such as ef, af41 or cs5, or keep",
            ),
            ("sport=0", "sport=0: give 1 to 65535 or keep"),
            ("fragment=maybe", "fragment=maybe: give yes or no"),
            (
                "demand=yes",
                "demand=yes: give igmp (groups that hosts listen to, by IGMP and MLD) or no",
            ),
            ("demand=igmp,querier=1", "querier=1: give yes or no"),
            (
                "querier=yes",
                "querier=yes: belongs to a demand; give demand=igmp as well",
            ),
            (
                "all=yes",
                "all=yes: is for names, and an address stands for one; leave it out",
            ),
            (
                "linger=5s",
                "linger=: belongs to a demand; give demand=igmp as well",
            ),
            (
                "deny=10.0.0.0/8",
                "deny=: belongs to a demand; give demand=igmp as well",
            ),
            (
                "demand=igmp,allow=me",
                "allow=me: give hosts or ranges of them, with + between, as in 10.0.0.0/8+10.9.0.5",
            ),
            ("max=5", "max=: belongs to all; give all=yes as well"),
            (
                "refresh=500ms",
                "refresh=500ms: give a time from 1s to 1h in whole seconds, such as 5s",
            ),
            (
                "burst=5",
                "burst=5: a burst belongs to a limit; give limit= as well, as in limit=20Mbit",
            ),
        ] {
            let text = format!("10.9.9.9:7000,{options}");
            assert_eq!(error(&text), format!("{text}: {expected}"));
            crate::document::check_in_a_rule("outputs", &text, expected);
        }
    }

    #[test]
    fn refuses_sources_and_shows_how_to_set_one() {
        assert_eq!(
            error("10.0.0.1,10.0.0.2@239.10.1.1%eth1:6001"),
            "10.0.0.1,10.0.0.2@239.10.1.1%eth1:6001: an output does not choose among sources; \
             write 239.10.1.1%eth1:6001, and source=ADDRESS to set the source of the copies"
        );
    }

    #[test]
    fn a_mistaken_address_or_port_is_no_name() {
        for (text, expected) in [
            ("10.0.0.300:7000", "\"10.0.0.300\" is not an IPv4 address"),
            (
                "2:8",
                "\"2\" is not an IPv4 address and not the name of a host",
            ),
            ("cloud_1.example:99999", "\"99999\" is not a port"),
            ("cloud.example", "has no port"),
            ("10.0.0.1@cloud.example:7000", "is not an IPv4 address"),
            ("_rtp._udp.cloud.example", "is the name of a service"),
            ("_rtp.cloud.example,all", "has no port"),
        ] {
            assert!(error(text).contains(expected), "{}", error(text));
        }
    }

    #[test]
    fn takes_options_from_beside_the_text() {
        let options = [("ttl", "16".to_owned())];
        let output = OutputSpec::from_parts("10.9.9.9:7000,dscp=1", &options).unwrap();
        assert_eq!(output.to_string(), "10.9.9.9:7000,ttl=16,dscp=1");
        let error = OutputSpec::from_parts("10.9.9.9:7000,ttl=3", &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.9.9.9:7000,ttl=3,ttl=16: option ttl is given twice; leave one out"
        );
    }

    proptest! {
        #[test]
        fn survives_printing_and_parsing(output in crate::samples::output()) {
            prop_assert_eq!(output.to_string().parse::<OutputSpec>().unwrap(), output);
        }

        #[test]
        fn never_panics_on_any_text(text in "\\PC*") {
            let _ = text.parse::<OutputSpec>();
        }
    }
}
