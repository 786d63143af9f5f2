//! smcroute.conf, as smcroute 2.4 and later read it: `mroute` becomes a rule that does what the kernel's
//! multicast routing does: it keeps the source and decrements the TTL.

use std::collections::{BTreeSet, HashSet};

use rules::net::Prefix;

use crate::address::{address, groups, interface, senders};
use crate::parsed::{Leg, Parsed, Stream};
use crate::remark::{Position, Why};
use crate::to::To;

/// Output options that match the kernel's multicast routing.
const AS_ROUTED: &str = "ttl=dec,source=keep";

/// The kernel's MAXVIFS and MAXMIFS, which limit smcroute too.
const INTERFACES_MAX: usize = 32;

/// Whether a line of smcroute.conf may begin with that word. Like smcroute itself, this accepts longer
/// words with a directive as prefix.
pub(crate) fn is_directive(word: &str) -> bool {
    let directives = ["mgroup", "ssmgroup", "mroute", "phyint", "include"];
    directives
        .iter()
        .any(|directive| word.starts_with(directive))
}

/// Reads the routes.
pub(crate) fn read(text: &str, parsed: &mut Parsed) {
    let mut joins = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let position = Position::line("", index + 1);
        let Some(line) = Line::of(text) else {
            continue;
        };
        let outcome = match line.directive {
            word if word.starts_with("mroute") => {
                route(&line, &position).map(|stream| parsed.add(stream))
            }
            word if word.starts_with("mgroup") || word.starts_with("ssmgroup") => {
                leg(&line).map(|leg| joins.push((position.clone(), text, leg)))
            }
            word if word.starts_with("phyint") => {
                phyint(&line, &position, text, parsed);
                Ok(())
            }
            word if word.starts_with("include") => Err(Why::Include),
            _ => Err(Why::Directive),
        };
        if let Err(why) = outcome {
            parsed.skip(position, text, why);
        }
    }
    report_joins_only(joins, parsed);
}

/// A line without its comment.
struct Line<'t> {
    directive: &'t str,
    words: Vec<&'t str>,
}

impl<'t> Line<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let all = text.split_whitespace();
        let mut words = all.take_while(|word| !word.starts_with('#'));
        Some(Self {
            directive: words.next()?,
            words: words.collect(),
        })
    }

    /// The word after a keyword.
    fn after(&self, keyword: &str) -> Option<&'t str> {
        let at = self.words.iter().position(|word| *word == keyword)?;
        self.words.get(at + 1).copied()
    }

    fn has(&self, keyword: &str) -> bool {
        self.words.contains(&keyword)
    }
}

fn route(line: &Line, position: &Position) -> Result<Stream, Why> {
    let leg = leg(line)?;
    let outputs = line.words.iter().skip_while(|word| **word != "to").skip(1);
    let mut to = Vec::new();
    for name in outputs {
        if to.len() == INTERFACES_MAX {
            return Err(Why::TooManyWays);
        }
        let pattern = format!("%{},{AS_ROUTED}", interface(&iface(name))?);
        to.push(pattern.parse::<To>().map_err(|_| Why::NoWay)?);
    }
    if to.is_empty() {
        return Err(Why::NoWay);
    }
    let from = leg.interface.as_deref().unwrap_or_default();
    let source = leg.sources.first().map(|source| format!("{source}-"));
    let group = leg.group.to_string().replace('/', "-");
    let stem = from.trim_end_matches('*');
    let name = format!("{stem}-{}{group}", source.unwrap_or_default());
    Ok(Stream {
        to,
        ..Stream::single(position.clone(), Some(name), leg)
    })
}

fn leg(line: &Line) -> Result<Leg, Why> {
    const FORM: &str = "from INTERFACE [source ADDRESS] group GROUP";
    let from = line.after("from").ok_or(Why::Form(FORM))?;
    let group = groups(line.after("group").ok_or(Why::Form(FORM))?)?;
    let source = line.after("source").filter(|source| !is_any(source));
    let sources = source.map(|source| senders(source, group.address));
    Ok(Leg {
        sources: sources.transpose()?.unwrap_or_default(),
        group,
        ports: None,
        interface: Some(interface(&iface(from))?),
        number: 0,
    })
}

/// Whether a source stands for all.
fn is_any(source: &str) -> bool {
    address(source.split('/').next().unwrap_or(source)).is_ok_and(|source| source.is_unspecified())
}

/// smcroute's wildcard for interfaces is a `+` at the end, as in iptables.
fn iface(name: &str) -> String {
    match name.strip_suffix('+') {
        Some(stem) => format!("{stem}*"),
        None => name.to_owned(),
    }
}

fn phyint(line: &Line, position: &Position, text: &str, parsed: &mut Parsed) {
    let options = [
        ("ttl-threshold", Why::Threshold),
        ("mrdisc", Why::RouterDiscovery),
        ("disable", Why::Disabled),
    ];
    for (option, why) in options {
        // The default threshold drops nothing that ttl=dec forwards.
        if line.has(option) && line.after(option) != Some("1") {
            parsed.skip(position.clone(), text, why);
        }
    }
}

/// Reports groups that are joined but not routed.
fn report_joins_only(joins: Vec<(Position, &str, Leg)>, parsed: &mut Parsed) {
    let legs = parsed.streams.iter().flat_map(|stream| &stream.legs);
    let routed: HashSet<(Option<&str>, Prefix)> = legs
        .map(|leg| (leg.interface.as_deref(), leg.group))
        .collect();
    // A route for a range covers joins within it, too.
    let lengths: BTreeSet<u8> = routed.iter().map(|(_, group)| group.length).collect();
    let is_routed = |leg: &Leg| {
        let from = leg.interface.as_deref();
        let mut lengths = lengths.iter().filter(|length| **length <= leg.group.length);
        lengths.any(|length| routed.contains(&(from, Prefix::new(leg.group.address, *length))))
    };
    let unrouted = joins.into_iter().filter(|(.., leg)| !is_routed(leg));
    let rejected: Vec<_> = unrouted.map(|(at, text, _)| (at, text)).collect();
    for (position, text) in rejected {
        parsed.skip(position, text, Why::JoinOnly);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of smcroute.conf(5), with lines that it explains.
    const CONFIGURATION: &str = "\
#   mroute from IIF [source ADDR[/LEN]] group GROUP[/LEN] to OIF [OIF ...]
phyint eth0 enable ttl-threshold 11
phyint eth1 enable mrdisc ttl-threshold 1
phyint eth2 disable
phyint virbr0

mgroup from eth0                     group 225.1.2.3
mroute from eth0 source 192.168.1.42 group 225.1.2.3 to eth1 eth2

ssmgroup from virbr0 source 192.168.123.110 group 225.1.2.4
mroute from virbr0 source 192.168.123.110 group 225.1.2.4 to eth0 # the guest's

mgroup from eth0 group 225.0.0.7
mgroup from eth0 group 225.9.0.0/24
mroute from eth+ source 0.0.0.0 group 225.3.2.1 to eth9
mroute from eth0 group 225.0.0.0/24 to eth1 eth2
mroute from eth0 source 10.0.0.0/8 group 225.4.4.4 to eth1
mroute from eth0 group 225.4.4.5
mroute from eth0 group ff2e::42 to eth1
mroute group 225.4.4.6 to eth1
mroute from eth0 group 10.0.0.1 to eth1
include /etc/smcroute.d/*.conf
mrouted eth0
bridge eth0
";

    #[test]
    fn reads_the_example_of_the_manual() {
        let mut parsed = Parsed::default();
        read(CONFIGURATION, &mut parsed);
        let streams: Vec<String> = parsed
            .streams
            .iter()
            .map(|stream| {
                let name = stream.name.as_deref().unwrap();
                format!("{}: {name}: {}", stream.position, stream.to.len())
            })
            .collect();
        assert_eq!(
            streams,
            [
                "8: eth0-192.168.1.42-225.1.2.3: 2",
                "11: virbr0-192.168.123.110-225.1.2.4: 1",
                "15: eth-225.3.2.1: 1",
                "16: eth0-225.0.0.0-24: 2",
                "19: eth0-ff2e::42: 1",
            ]
        );
    }

    #[test]
    fn reports_what_rules_have_no_equivalent_for() {
        let mut parsed = Parsed::default();
        read(CONFIGURATION, &mut parsed);
        parsed.remarks.sort_by(|a, b| a.position.cmp(&b.position));
        let remarks: Vec<(String, &Why)> = parsed
            .remarks
            .iter()
            .map(|remark| (remark.position.to_string(), &remark.why))
            .collect();
        let form = Why::Form("from INTERFACE [source ADDRESS] group GROUP");
        let expected = [
            ("2", Why::Threshold),
            ("3", Why::RouterDiscovery),
            ("4", Why::Disabled),
            ("14", Why::JoinOnly),
            ("17", Why::SourceRange),
            ("18", Why::NoWay),
            ("20", form.clone()),
            ("21", Why::Unicast("10.0.0.1".into())),
            ("22", Why::Include),
            ("23", form),
            ("24", Why::Directive),
        ];
        let expected = expected.each_ref();
        assert_eq!(
            remarks,
            expected.map(|(line, why)| ((*line).to_owned(), why))
        );
    }
}
