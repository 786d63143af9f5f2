//! mcr.toml(5): the keys and what they mean are those of the types that read the file.

use clap_mangen::roff::{Inline, Roff, bold, roman};
use model::config::{BudgetTable, DaemonSettings, FleetSettings, FleetTls, InterfaceTable, Notify};
use model::document::{FieldDocument, RuleDocument};
use model::failover::Failover;
use model::health::Health;
use model::merge::MergeKeys;
use model::rule::OutputOptions;
use model::setting::{Options, Row, Table};
use serde_json::Value;
use utoipa::PartialSchema;

const EXAMPLE: &str = r#"version = 1

[[rule]]
name = "cam1"
input = "239.1.1.1%eth0:5001"
outputs = ["239.10.1.1%eth1:6001,ttl=16", { to = "10.9.9.9:7000", ttl = 64 }]

[[rule]]
name = "studio"
inputs = ["10.0.0.5@232.1.1.1%eth0:5001", "239.1.2.1%eth?:5001"]
outputs = ["239.10.1.2%eth1:6002"]
limit = "20Mbit"

[interface.eth0]
gro = "auto"
"#;

/// The page.
pub(super) fn page() -> Roff {
    let mut page = Roff::new();
    let version = concat!("mcr ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["mcr.toml", "5", "", version, "File formats"]);
    paragraph(
        &mut page,
        "NAME",
        r"mcr.toml - configuration of the multicast relay `mcr(1)`",
    );
    paragraph(
        &mut page,
        "DESCRIPTION",
        "TOML, read from `/etc/mcr/mcr.toml` or the file that `mcr run --config` names, and from \
         every `conf.d/*.toml` beside it, in the order of their names; files that belong to another \
         `NAME.toml` are in `NAME.conf.d`. Unknown keys are errors. \
         `mcr check FILE` says what is wrong and where, without a daemon; `systemctl reload mcr`, \
         SIGHUP or `mcr apply FILE` change only the difference.",
    );
    page.control("SH", ["TOP LEVEL"]);
    key(
        &mut page,
        "version = 1",
        "The version of this format; required in the main file.",
    );
    let link_local =
        "Permits 224.0.0.0/24 and ff02::/16 as inputs; rules that reflect may have them anyway.";
    key(&mut page, "allow_link_local = true", link_local);
    key(
        &mut page,
        "join = [\"GROUP%IFACE\", ...]",
        "Groups that are joined on an interface whatever the rules say, as `mcr join` does; sources may \
         stand before the group.",
    );
    paragraph(
        &mut page,
        "[[rule]]",
        "A rule relays what arrives at its inputs to every output. One with `mode = \"reflect\"` has \
         `interfaces` and a `group` in their place, and relays what comes to the group by one \
         interface out of all others.",
    );
    keys(&mut page, &RuleDocument::schema());
    paragraph(
        &mut page,
        "ENDPOINTS",
        "An input is `[SOURCE,...@]GROUP[/BITS]%INTERFACE:PORT[-PORT]`, in IPv6 \
         `[SOURCE@GROUP%INTERFACE]:PORT`. An address of this host may stand in the group's place, \
         `unicast` for each that the interface has, and the address that broadcasts go to; sources \
         may be ranges there, as in `10.9.9.0/24@unicast%eth0:7000`. The interface may hold the wildcards `*` and `?`, and \
         need not exist yet. An output is `GROUP%INTERFACE:PORT` or `ADDRESS[%INTERFACE]:PORT`; \
         options follow after commas, as in `239.10.1.1%eth1:6001,ttl=16`, or stand as keys of a \
         table. An output's range stands for as many as the input's range of the same kind, or else of \
         the other: `unicast%eth0:7000-7255` becomes `239.1.1.0/24%eth1:5000`.",
    );
    paragraph(
        &mut page,
        "OUTPUTS",
        "Keys of the table, and options of the text:",
    );
    let output = [OutputOptions::GROUP.subject, OutputOptions::GROUP.rows];
    rows(&mut page, &output.concat());
    paragraph(
        &mut page,
        "FAILOVER",
        "Keys of a rule's `failover = { … }`, or of a table `[rule.failover]`; `failover = \"500ms\"` \
         is the silence alone:",
    );
    rows(&mut page, Failover::GROUP.rows);
    paragraph(
        &mut page,
        "MERGE",
        "Keys of a rule's `merge = { … }`, or of a table `[rule.merge]`; `merge = \"rtp\"` says `by` \
         alone:",
    );
    rows(&mut page, MergeKeys::GROUP.rows);
    paragraph(
        &mut page,
        "FIELDS",
        "Keys of a merge's `session` and `count`; `\"2:8\"` says the same in a word:",
    );
    keys(&mut page, &FieldDocument::schema());
    paragraph(
        &mut page,
        "HEALTH",
        "Keys of a rule's `health = { … }`, or of a table `[rule.health]`; with `{}` the stream is \
         watched with the defaults:",
    );
    rows(&mut page, Health::GROUP.rows);
    paragraph(
        &mut page,
        "[budget]",
        "What all unicast outputs may send together; none by default.",
    );
    rows(&mut page, BudgetTable::ROWS);
    paragraph(
        &mut page,
        "[daemon]",
        "How `mcr run` is started; its options of the same names come first. Takes effect when the \
         daemon is started: `mcr apply` and a reload warn of what has to wait for that.",
    );
    rows(&mut page, DaemonSettings::ROWS);
    paragraph(
        &mut page,
        "[fleet]",
        "Which fleet the relay belongs to: several that serve one set of rules, by way of etcd. \
         Takes effect when the daemon is started; `mcr-fleet(1)` does the rest.",
    );
    rows(&mut page, FleetSettings::ROWS);
    paragraph(
        &mut page,
        "TLS",
        "Keys of `tls = { … }` in `[fleet]`, files in PEM:",
    );
    rows(&mut page, FleetTls::ROWS);
    paragraph(&mut page, "[interface.NAME]", "Settings of an interface.");
    rows(&mut page, InterfaceTable::ROWS);
    paragraph(&mut page, "[notify]", "Who is told of events.");
    rows(&mut page, Notify::ROWS);
    page.control("SH", ["EXAMPLE"]);
    page.control("nf", []);
    page.text([roman(EXAMPLE)]);
    page.control("fi", []);
    paragraph(
        &mut page,
        "SEE ALSO",
        "`mcr(1)`, `mcr-check(1)`, `mcr-apply(1)`",
    );
    page
}

/// The keys of a table, those that must be there first.
fn rows(page: &mut Roff, rows: &[Row]) {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (!row.is_required, row.key));
    for row in rows {
        let required = if row.is_required { " Required." } else { "" };
        key(page, row.key, &format!("{}{required}", row.description()));
    }
}

/// The keys of a type, those that must be there first.
fn keys(page: &mut Roff, schema: &impl serde::Serialize) {
    let schema = serde_json::to_value(schema).unwrap_or_default();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let is_required = |name: &str| required.iter().any(|key| key == name);
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let mut properties: Vec<(&String, &Value)> = properties.iter().collect();
    properties.sort_by_key(|(name, _)| !is_required(name));
    for (name, property) in properties {
        // What may be left out is described where it may be something.
        let choices = property["oneOf"].as_array().into_iter().flatten();
        let described = choices
            .chain([property])
            .find_map(|one| one["description"].as_str());
        let text = described.unwrap_or_default();
        let required = if is_required(name) { " Required." } else { "" };
        key(page, name, &format!("{text}{required}"));
    }
}

pub(super) fn key(page: &mut Roff, name: &str, text: &str) {
    page.control("TP", []);
    page.text([bold(name)]);
    page.text(inlines(text));
}

pub(super) fn paragraph(page: &mut Roff, title: &str, text: &str) {
    page.control("SH", [title]);
    page.text(inlines(text));
}

/// What stands in backticks is bold.
fn inlines(text: &str) -> Vec<Inline> {
    let text = text.replace('\n', " ");
    let parts = text.split('`').enumerate();
    let inlines = parts.map(|(number, part)| match number % 2 {
        0 => roman(part),
        _ => bold(part),
    });
    inlines.collect()
}

#[cfg(test)]
mod tests {
    use model::config::{Config, ConfigFile};
    use model::ruleset::Policy;

    use super::*;

    #[test]
    fn every_key_is_explained() {
        let text = page().render();
        let keys = [
            "name",
            "input",
            "inputs",
            "outputs",
            "path",
            "local",
            "limit",
            "burst",
            "to",
            "ttl",
            "source",
            "dscp",
            "sport",
            "fragment",
            "unicast",
            "gro",
            "failover",
            "revert",
            "on",
            "merge",
            "by",
            "window",
            "packets",
            "order",
            "session",
            "count",
            "health",
            "silence",
            "rate_min",
            "content",
            "clock",
            "listen",
            "listen_names",
            "workers",
            "worker_user",
            "log",
            "max_rules",
            "max_memberships",
            "backlog",
            "on_full",
            "webhook",
            "endpoints",
            "relay",
            "interfaces",
            "on_isolation",
            "hold",
            "weight",
            "peer",
            "tls",
            "ca",
            "cert",
            "key",
            "user",
            "password_file",
            "share",
            "keep_forwarding",
        ];
        for key in keys {
            let (_, after) = text
                .split_once(&format!("\\fB{key}\\fR\n"))
                .unwrap_or_else(|| panic!("no {key}: {text}"));
            let explained = after.lines().next().unwrap_or_default();
            assert!(
                explained.len() > 10 && !explained.starts_with('.'),
                "{key}: {explained}"
            );
        }
    }

    #[test]
    fn the_example_is_good() {
        let file = ConfigFile {
            name: "example".to_owned(),
            text: EXAMPLE.to_owned(),
        };
        let loaded = Config::load(&[file], Policy::default());
        assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
    }
}
