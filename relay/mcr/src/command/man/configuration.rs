//! mcr.toml(5), with the keys and meanings of the types that read the file.

use clap_mangen::roff::{Inline, Roff, bold, roman};
use config::{
    self, ApiClient, ApiSettings, BudgetTable, DaemonSettings, FleetSettings, FleetTls,
    InterfaceTable, NotifyTable, NotifyTarget,
};
use rules::document::{FieldDocument, RuleDocument};
use rules::failover::Failover;
use rules::health::Health;
use rules::merge::MergeKeys;
use rules::rule::OutputOptions;
use rules::setting::{Options, Row, Table};

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

/// A section of keys: its title, its introduction, and the rows.
struct Section(&'static str, &'static str, &'static [&'static [Row]]);

const SECTIONS: &[Section] = &[
    Section("TOP LEVEL", "", &[config::FILE]),
    Section(
        "[[rule]]",
        "A rule relays what arrives at its inputs to every output. One with `mode = \"reflect\"` has \
         `interfaces` and a `group` in their place, and relays what comes to the group by one \
         interface out of all others.",
        &[RuleDocument::ROWS],
    ),
    Section(
        "ENDPOINTS",
        "An input is `[SOURCE,...@]GROUP[/BITS]%INTERFACE:PORT[-PORT]`, in IPv6 \
         `[SOURCE@GROUP%INTERFACE]:PORT`. An address of this host may stand in the group's place, \
         `unicast` for each that the interface has, and the address that broadcasts go to; sources \
         may be ranges there, as in `10.9.9.0/24@unicast%eth0:7000`. The interface may hold the \
         wildcards `*` and `?`, and need not exist yet. An output is `GROUP%INTERFACE:PORT` or \
         `ADDRESS[%INTERFACE]:PORT`; options follow after commas, as in \
         `239.10.1.1%eth1:6001,ttl=16`, or stand as keys of a table. An output's range stands for as \
         many as the input's range of the same kind, or else of the other: \
         `unicast%eth0:7000-7255` becomes `239.1.1.0/24%eth1:5000`.",
        &[],
    ),
    Section(
        "OUTPUTS",
        "Keys of the table, and options of the text:",
        &[OutputOptions::GROUP.subject, OutputOptions::GROUP.rows],
    ),
    Section(
        "FAILOVER",
        "Keys of a rule's `failover = { … }`, or of a table `[rule.failover]`; `failover = \"500ms\"` \
         is the silence alone:",
        &[Failover::GROUP.rows],
    ),
    Section(
        "MERGE",
        "Keys of a rule's `merge = { … }`, or of a table `[rule.merge]`; `merge = \"rtp\"` says `by` \
         alone:",
        &[MergeKeys::GROUP.rows],
    ),
    Section(
        "FIELDS",
        "Keys of a merge's `session` and `count`; `\"2:8\"` says the same in a word:",
        &[FieldDocument::ROWS],
    ),
    Section(
        "HEALTH",
        "Keys of a rule's `health = { … }`, or of a table `[rule.health]`; with `{}` the stream is \
         watched with the defaults:",
        &[Health::GROUP.rows],
    ),
    Section(
        "[api]",
        "Who steers the relay from elsewhere, by TLS: off by default. What `[api]` says is read of files on the host \
         alone, at the start and at a reload: `mcr apply` and the API neither change nor show it.",
        &[ApiSettings::ROWS],
    ),
    Section(
        "[[api.client]]",
        "A client, by its certificate or its token:",
        &[ApiClient::ROWS],
    ),
    Section(
        "[budget]",
        "What all unicast outputs may send together; none by default.",
        &[BudgetTable::ROWS],
    ),
    Section(
        "[daemon]",
        "How `mcr run` is started; its options of the same names come first. Takes effect when the \
         daemon is started: `mcr apply` and a reload warn of what has to wait for that.",
        &[DaemonSettings::ROWS],
    ),
    Section(
        "[fleet]",
        "Which fleet the relay belongs to: several that serve one set of rules, by way of etcd. \
         Takes effect when the daemon is started; `mcr-fleet(1)` does the rest.",
        &[FleetSettings::ROWS],
    ),
    Section(
        "TLS",
        "Keys of `tls = { … }` in `[fleet]`, files in PEM:",
        &[FleetTls::ROWS],
    ),
    Section(
        "[interface.NAME]",
        "Settings of one interface; its name holds no wildcards.",
        &[InterfaceTable::ROWS],
    ),
    Section("[notify]", "Who is told of events.", &[NotifyTable::ROWS]),
    Section(
        "[[notify.target]]",
        "Somebody who is told of events, by http or https. What it says is read of files on the host alone, at the \
         start and at a reload: `mcr apply` and the API neither change nor show it.",
        &[NotifyTarget::ROWS],
    ),
];

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
         `mcr check FILE` says what is wrong and where, without a daemon; `mcr config schema` is for \
         editors; `systemctl reload mcr`, SIGHUP or `mcr apply FILE` change only the difference.",
    );
    for Section(title, text, rows) in SECTIONS {
        paragraph(&mut page, title, text);
        for row in sorted(rows) {
            key(&mut page, row.key, &explained(row));
        }
    }
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

/// The rows of a section, the required ones first.
fn sorted(rows: &[&'static [Row]]) -> Vec<&'static Row> {
    let mut rows: Vec<&Row> = rows.iter().copied().flatten().collect();
    rows.sort_by_key(|row| (!row.is_required, row.key));
    rows
}

fn explained(row: &Row) -> String {
    let required = if row.is_required { " Required." } else { "" };
    format!("{}{required}", row.description())
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

/// Makes text in backticks bold.
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
    use config::{Config, ConfigFile};
    use rules::ruleset::Policy;

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
            "target",
            "url",
            "headers_file",
            "secret_file",
            "format",
            "kinds",
            "severity",
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

    /// The sections as docs/settings.md has them.
    fn reference() -> String {
        let mut text = "# Settings\n\nEvery key of `mcr.toml`, made of the rows that the daemon reads them by; \
             [run.md](run.md) says what rules do with them, [install.md](install.md) the daemon. \
             `mcr.toml(5)` has the same, and `mcr config schema` for editors.\n"
            .to_owned();
        for Section(title, about, rows) in SECTIONS {
            let about = if about.is_empty() {
                String::new()
            } else {
                format!("\n\n{about}")
            };
            text += &format!("\n## {title}{about}\n");
            let rows = sorted(rows);
            if rows.is_empty() {
                continue;
            }
            text += "\n| key | means |\n|---|---|\n";
            for row in rows {
                let means = explained(row).replace('|', "\\|");
                text += &format!("| `{}` | {means} |\n", row.key);
            }
        }
        text
    }

    #[test]
    fn the_documents_have_every_key() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let written = std::fs::read_to_string(root.join("docs/settings.md")).unwrap_or_default();
        let reference = reference();
        if written != reference {
            std::fs::write(root.join("target/settings.md"), reference).unwrap();
            panic!("docs/settings.md is another; take target/settings.md");
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
