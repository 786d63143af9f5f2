//! Parses one file into documents with their lines.

use std::collections::BTreeMap;
use std::ops::Range;

use rules::document::RuleDocument;
use rules::problem::Part;
use rules::setting::{Form, Row};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::error::words;
use super::settings::check_one_interface;
use super::{
    ApiSettings, ConfigError, ConfigErrors, ConfigFile, FleetSettings, InterfaceSettings, Notify,
    NotifyTable, NotifyTarget, Settings, VERSION, join,
};

/// Keys a file may have.
const KEYS: &str = "version, allow_link_local, [api], [budget], [daemon], [fleet], [interface.NAME], join, [notify], [[rule]]";

/// The keys of a file that are not tables.
pub const FILE: &[Row] = &[
    Row {
        default: "false",
        ..Row::new(
            "allow_link_local",
            &[
                "Permits 224.0.0.0/24 and ff02::/16 as inputs; rules that reflect may have them anyway.",
            ],
            Form::Flag,
        )
    },
    Row::new(
        "join",
        &[
            "Groups that are joined on an interface whatever the rules say, as `mcr join` does:",
            "`GROUP%IFACE`; sources may stand before the group.",
        ],
        Form::List(&join::FORM),
    ),
    Row {
        is_required: true,
        ..Row::new(
            "version",
            &["The version of this format, 1; the main file has to say it."],
            Form::number(1, 1),
        )
    },
];

/// The contents of a file, as far as it can be parsed.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) errors: Vec<ConfigError>,
    /// Everything beyond rules.
    pub(super) settings: Settings,
    pub(super) api: Option<ApiSettings>,
    pub(super) targets: Vec<NotifyTarget>,
    /// The settings that only one file may have, each with its line: `daemon`, `interface eth0`.
    pub(super) set: Vec<(String, usize)>,
    pub(super) rules: Vec<LocatedRule>,
}

impl Parsed {
    /// Names and lines of everything beyond rules.
    pub(super) fn beyond_rules(&self) -> Vec<(String, usize)> {
        let set = self.set.iter().map(|(what, line)| match what.as_str() {
            "join" => (what.clone(), *line),
            what => (format!("[{}]", what.replacen(' ', ".", 1)), *line),
        });
        let allowed = self
            .settings
            .allow_link_local
            .then(|| ("allow_link_local".to_owned(), 1));
        set.chain(allowed).collect()
    }
}

/// A rule and its lines.
pub(super) struct LocatedRule {
    pub(super) document: RuleDocument,
    pub(super) file: String,
    pub(super) line: usize,
    parts: Vec<(Part, usize)>,
}

impl LocatedRule {
    /// The line of a part of the rule, or the rule's own.
    pub(super) fn line_of(&self, part: Part) -> usize {
        let mut parts = self.parts.iter();
        let located = parts.find(|(other, _)| *other == part);
        located.map_or(self.line, |(_, line)| *line)
    }
}

/// Parses a file; the main file must have a version.
pub(super) fn parse(file: &ConfigFile, main: bool) -> Parsed {
    read(file, |reader, root| reader.root(root, main))
}

/// Parses a file of tables of the same form, each with a name.
pub(super) fn tables<'a, T: Deserialize<'a>>(
    file: &'a ConfigFile,
    check: fn(&str) -> Result<(), String>,
) -> Result<BTreeMap<String, T>, ConfigErrors> {
    let mut tables = BTreeMap::new();
    let parsed = read(file, |reader, root| {
        for (key, value) in root {
            let name = key.get_ref().to_string();
            let span = value.span();
            if let Err(problem) = check(&name) {
                reader.refuse(Some(key.span()), problem);
                continue;
            }
            match T::deserialize(ValueDeserializer::from(value)) {
                Ok(table) => drop(tables.insert(name, table)),
                Err(error) => {
                    let at = error.span().unwrap_or(span);
                    reader.refuse(Some(at), format!("{name}: {}", words(&error)));
                }
            }
        }
    });
    if parsed.errors.is_empty() {
        Ok(tables)
    } else {
        Err(ConfigErrors(parsed.errors))
    }
}

fn read<'a>(file: &'a ConfigFile, take: impl FnOnce(&mut Reader<'a>, DeTable<'a>)) -> Parsed {
    let bytes = file.text.bytes().enumerate();
    let newlines = bytes.filter(|(_, byte)| *byte == b'\n');
    let mut reader = Reader {
        file,
        newlines: newlines.map(|(offset, _)| offset).collect(),
        parsed: Parsed::default(),
    };
    let (root, errors) = DeTable::parse_recoverable(&file.text);
    if errors.is_empty() {
        take(&mut reader, root.into_inner());
    } else {
        // What could be recovered from a broken file would only lead to spurious errors.
        let unread = errors
            .iter()
            .map(|error| ConfigError::unread(file, error.span(), error.message()));
        reader.parsed.errors.extend(unread);
        reader.parsed.errors.dedup_by_key(|error| error.line);
    }
    reader.parsed
}

struct Reader<'a> {
    file: &'a ConfigFile,
    newlines: Vec<usize>,
    parsed: Parsed,
}

type Value<'a> = Spanned<DeValue<'a>>;

impl<'a> Reader<'a> {
    fn line(&self, offset: usize) -> usize {
        1 + self.newlines.partition_point(|newline| *newline < offset)
    }

    fn refuse(&mut self, span: Option<Range<usize>>, message: String) {
        let line = self.line(span.map_or(0, |span| span.start));
        let at = (self.file.name.clone(), line);
        self.parsed.errors.push(ConfigError::at(at, message));
    }

    fn root(&mut self, root: DeTable<'a>, main: bool) {
        if main && !root.contains_key("version") {
            let message = format!("there is no version; begin the file with version = {VERSION}");
            self.refuse(None, message);
        }
        for (key, value) in root {
            match key.get_ref().as_ref() {
                "version" => self.version(value),
                "allow_link_local" => self.allow_link_local(value),
                "api" => self.parsed.api = self.checked("api", value, ApiSettings::check),
                "budget" => self.parsed.settings.budget = self.table("budget", value),
                "daemon" => {
                    let daemon = self.table("daemon", value);
                    self.parsed.settings.daemon = daemon.unwrap_or_default();
                }
                "fleet" => {
                    self.parsed.settings.fleet = self.checked("fleet", value, FleetSettings::check)
                }
                "interface" => self.interfaces(value),
                "join" => {
                    let join = self.checked("join", value, |joins: &Vec<_>| join::check(joins));
                    self.parsed.settings.join = join.unwrap_or_default();
                }
                "notify" => {
                    let notify = self.checked("notify", value, NotifyTable::check);
                    let NotifyTable { webhook, target } = notify.unwrap_or_default();
                    self.parsed.settings.notify = Notify { webhook };
                    self.parsed.targets = target.0;
                }
                "rule" => self.rules(value),
                unknown => {
                    let keys = KEYS.split(", ").map(|key| key.trim_matches(['[', ']']));
                    let hint = rules::near::hint(unknown, keys);
                    let message = format!("unknown key {unknown:?}; there are {KEYS}{hint}");
                    self.refuse(Some(key.span()), message);
                }
            }
        }
    }

    fn version(&mut self, value: Value<'a>) {
        let span = value.span();
        let text = &self.file.text[span.clone()];
        let message = format!("version = {text}: this MCR reads version = {VERSION}");
        if i64::deserialize(ValueDeserializer::from(value)) != Ok(VERSION) {
            self.refuse(Some(span), message);
        }
    }

    fn allow_link_local(&mut self, value: Value<'a>) {
        match value.get_ref() {
            DeValue::Boolean(allow) => self.parsed.settings.allow_link_local = *allow,
            _ => self.refuse(
                Some(value.span()),
                "allow_link_local: give true or false".to_owned(),
            ),
        }
    }

    fn table<T: Deserialize<'a>>(&mut self, name: &str, value: Value<'a>) -> Option<T> {
        self.checked(name, value, |_| Ok(()))
    }

    /// Parses and checks what only one file may have under its name.
    fn checked<T: Deserialize<'a>>(
        &mut self,
        name: &str,
        value: Value<'a>,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Option<T> {
        let span = value.span();
        let read = T::deserialize(ValueDeserializer::from(value))
            .map_err(|error| (error.span(), words(&error)))
            .and_then(|read| {
                check(&read)
                    .map(|()| read)
                    .map_err(|problem| (None, problem))
            });
        match read {
            Ok(read) => {
                self.parsed
                    .set
                    .push((name.to_owned(), self.line(span.start)));
                Some(read)
            }
            Err((at, problem)) => {
                self.refuse(Some(at.unwrap_or(span)), format!("{name}: {problem}"));
                None
            }
        }
    }

    fn interfaces(&mut self, value: Value<'a>) {
        let span = value.span();
        let DeValue::Table(interfaces) = value.into_inner() else {
            let message = "settings stand in a table for each interface; write [interface.eth0]";
            return self.refuse(Some(span), message.to_owned());
        };
        for (key, value) in interfaces {
            let name = key.get_ref().to_string();
            if let Err(problem) = check_one_interface(&name) {
                self.refuse(Some(key.span()), format!("interface {name:?}: {problem}"));
                continue;
            }
            match InterfaceSettings::deserialize(ValueDeserializer::from(value)) {
                Ok(settings) => {
                    let line = self.line(key.span().start);
                    self.parsed.set.push((format!("interface {name}"), line));
                    self.parsed.settings.interface.insert(name, settings);
                }
                Err(error) => {
                    let span = error.span().unwrap_or(key.span());
                    self.refuse(Some(span), format!("interface {name}: {}", words(&error)));
                }
            }
        }
    }

    fn rules(&mut self, value: Value<'a>) {
        let span = value.span();
        let DeValue::Array(rules) = value.into_inner() else {
            let message = "rules are a list; write [[rule]] with double brackets before each";
            return self.refuse(Some(span), message.to_owned());
        };
        for rule in rules {
            self.rule(rule);
        }
    }

    fn rule(&mut self, rule: Value<'a>) {
        let span = rule.span();
        let DeValue::Table(table) = rule.get_ref() else {
            let message = "a rule is a table; write [[rule]] before its keys";
            return self.refuse(Some(span), message.to_owned());
        };
        let name = match table.get("name").map(Spanned::get_ref) {
            Some(DeValue::String(name)) => format!("rule {name:?}: "),
            _ => "rule without a name: ".to_owned(),
        };
        let parts = self.parts(table);
        let mut keys = table.keys().map(|key| key.get_ref().as_ref());
        let misplaced = keys
            .find(|key| ["version", "join", "allow_link_local"].contains(key))
            .map(|key| format!("{key} stands at the top of a file, before [[rule]]"));
        match RuleDocument::deserialize(ValueDeserializer::from(rule)) {
            Ok(document) => {
                let located = LocatedRule {
                    document,
                    file: self.file.name.clone(),
                    line: self.line(span.start),
                    parts,
                };
                self.parsed.rules.push(located);
            }
            Err(error) => {
                let at = error.span().unwrap_or(span);
                let problem = misplaced.unwrap_or_else(|| words(&error));
                self.refuse(Some(at), format!("{name}{problem}"));
            }
        }
    }

    fn parts(&self, rule: &DeTable<'a>) -> Vec<(Part, usize)> {
        let mut parts = Vec::new();
        let mut note = |part, value: &Value<'a>| parts.push((part, self.line(value.span().start)));
        for (key, value) in rule {
            let elements = || value.get_ref().as_array().into_iter().flatten().enumerate();
            match key.get_ref().as_ref() {
                "name" => note(Part::Name, value),
                "input" => note(Part::Input(0), value),
                "limit" | "burst" => note(Part::Limit, value),
                "failover" => note(Part::Failover, value),
                "merge" => note(Part::Merge, value),
                "health" => note(Part::Health, value),
                "share" => note(Part::Share, value),
                "labels" | "comment" => note(Part::Labels, value),
                "inputs" | "interfaces" => {
                    elements().for_each(|(index, value)| note(Part::Input(index), value))
                }
                "outputs" => elements().for_each(|(index, value)| note(Part::Output(index), value)),
                _ => {}
            }
        }
        parts
    }
}
