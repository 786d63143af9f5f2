//! What `mcr discover` shows of what it received: JSON, a table, and the commands that relay it.

use std::time::Instant;

use api::reply::{DiscoveredInterface, DiscoveredStream, Discovery};
use comfy_table::Cell;
use ratatui::crossterm::terminal;
use rules::net::Prefix;
use rules::printable::printable;
use rules::ruleset::{RuleSet, is_link_local};

use crate::discover::{
    Interface, Joined, Key, LIMIT, Listener, Stream, by_loopback, input, is_copy, taker,
};
use crate::render::{self, Column};

/// What a listener received.
pub(super) fn of(listener: &Listener, joined: &Joined, rules: Option<&RuleSet>) -> Discovery {
    let seconds = listener.since.elapsed().as_secs_f64();
    let report = |(key, stream): (&Key, &Stream)| {
        let interface = &listener.interfaces[key.interface];
        let rule = rules.and_then(|rules| taker(rules, interface, key));
        let joined = joined.hears(interface.index, key.group, key.source);
        discovered(interface, (key, stream), seconds, (joined, rule))
    };
    let link = |(name, missed): (&str, u64)| DiscoveredInterface {
        name: name.to_owned(),
        missed,
    };
    let streams = listener.streams.known.iter().filter(|(key, _)| {
        let interface = &listener.interfaces[key.interface];
        !rules.is_some_and(|rules| is_copy(rules, interface, key))
    });
    Discovery {
        seconds,
        interfaces: listener.missed().map(link).collect(),
        rules_known: rules.is_some(),
        streams: streams.map(report).collect(),
        not_listed: listener.streams.not_listed,
    }
}

/// As much of the report as fits a terminal that redraws it.
pub(super) fn screen(report: &Discovery, until: Instant) -> String {
    let remaining = until.saturating_duration_since(Instant::now());
    let rows = terminal::size().map_or(24, |(_, rows)| rows);
    let table = table(report);
    let mut text = format!("listening, {} s left\n\n", remaining.as_secs());
    let free_rows = usize::from(rows).saturating_sub(4).max(2);
    for line in table.lines().take(free_rows) {
        text += line;
        text.push('\n');
    }
    let more = table.lines().count().saturating_sub(free_rows);
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}

/// The table, and how to relay what no rule takes.
pub(super) fn text(report: &Discovery) -> String {
    let links = report.interfaces.iter();
    let names: Vec<&str> = links.map(|link| link.name.as_str()).collect();
    if report.streams.is_empty() {
        return format!(
            "no multicast arrived on {} within {:.1} s; where a switch sends only what was \
             asked for, --join GROUP asks",
            names.join(", "),
            report.seconds
        );
    }
    let mut text = table(report);
    if report.not_listed > 0 {
        text += &format!(
            "\n\nmore than {LIMIT} streams: {} of others not listed",
            render::number::things(report.not_listed, "packet")
        );
    }
    let is_untaken = |line: &&DiscoveredStream| line.rule.is_none() || line.sent_here;
    let untaken = report.streams.iter().filter(is_untaken);
    let add: Vec<&str> = untaken.map(|line| line.add.as_str()).collect();
    if !add.is_empty() {
        text += "\n\nto relay what no rule takes:\n  ";
        text += &add.join("\n  ");
    }
    text
}

const COLUMNS: &[Column<DiscoveredStream>] = &[
    ("IFACE", |line| {
        let tag = line.vlan.map(|vlan| format!(" vlan {vlan}"));
        let leaves = if line.sent_here { " (sent)" } else { "" };
        Cell::new(line.interface.clone() + &tag.unwrap_or_default() + leaves)
    }),
    ("SOURCE", |line| Cell::new(line.source)),
    ("GROUP", |line| Cell::new(line.group)),
    ("PORT", |line| Cell::new(line.port)),
    ("PACKETS/S", |line| Cell::new(rate(line.packets_per_second))),
    ("RATE", |line| {
        Cell::new(render::bits_per_second(line.bits_per_second))
    }),
    ("TTL", |line| Cell::new(line.ttl)),
    ("CONTENT", |line| Cell::new(&line.content)),
    ("JOINED", |line| {
        Cell::new(if line.joined { "yes" } else { "no" })
    }),
    ("RULE", |line| render::or_dash(line.rule.as_deref())),
];

fn table(report: &Discovery) -> String {
    let columns = if report.rules_known {
        COLUMNS
    } else {
        &COLUMNS[..COLUMNS.len() - 1]
    };
    let mut table = render::table(columns, &report.streams);
    render::widen(&mut table);
    render::align_right(&mut table, 3..7);
    render::table_text(&table)
}

fn discovered(
    interface: &Interface,
    (key, stream): (&Key, &Stream),
    seconds: f64,
    (joined, rule): (bool, Option<&str>),
) -> DiscoveredStream {
    let per_second = |count: u64| count as f64 / seconds.max(1e-3);
    let input = input(interface, key).to_string();
    DiscoveredStream {
        interface: interface.name.clone(),
        vlan: key.vlan,
        source: key.source,
        group: key.group,
        port: key.port,
        packets: stream.packets,
        bytes: stream.bytes,
        packets_per_second: per_second(stream.packets),
        bits_per_second: per_second(stream.bytes * 8),
        ttl: stream.ttl,
        content: stream.guess.content().as_str().to_owned(),
        joined,
        sent_here: key.sent,
        rule: rule.map(str::to_owned),
        add: add(interface, key, &input, rule),
        input,
    }
}

/// The command that relays a stream, with a placeholder for its output.
fn add(interface: &Interface, key: &Key, input: &str, rule: Option<&str>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%:._-,".contains(c);
    let input = if input.chars().all(is_plain) {
        input.to_owned()
    } else {
        format!("'{}'", printable(input))
    };
    let mut add = format!("mcr add {input} OUTPUT");
    match key.vlan {
        Some(vlan) if !interface.has_vlan(vlan) => {
            let (parent, name) = (&interface.name, interface.vlan_name(vlan));
            add = format!(
                "ip link add link {parent} name {name} type vlan id {vlan} && ip link set {name} up \
                 && {add}"
            );
        }
        _ if key.sent => {
            let unless = rule.map_or_else(String::new, |rule| {
                format!("if {rule} gets nothing of it (IP_MULTICAST_LOOP is off), ")
            });
            add += &format!("  # sent here: {unless}{}", by_loopback(key.group));
        }
        _ if is_link_local(Prefix::host(key.group)) => {
            add += "  # link-local: refused unless allow_link_local is set; --reflect may";
        }
        _ => {}
    }
    add
}

/// With a decimal below ten: some streams send a packet a second.
fn rate(packets_per_second: f64) -> String {
    if packets_per_second < 9.95 {
        format!("{packets_per_second:.1}")
    } else {
        render::count(packets_per_second.round() as u64)
    }
}
