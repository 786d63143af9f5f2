//! One file: from text to documents that remember their lines.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::{
    Budget, BudgetTable, ConfigError, ConfigFile, DaemonSettings, FleetSettings, InterfaceSettings,
    Notify, StaticJoin, VERSION, join,
};
use crate::document::RuleDocument;
use crate::endpoint::check_interface_name;
use crate::problem::Part;

/// Keys a file may have.
const KEYS: &str = "version, allow_link_local, [budget], [daemon], [fleet], [interface.NAME], join, [notify], [[rule]]";

/// What a file holds, as far as it can be read.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) errors: Vec<ConfigError>,
    pub(super) allow_link_local: bool,
    /// The budget and its line.
    pub(super) budget: Option<(Budget, usize)>,
    /// How a daemon is started, and the line.
    pub(super) daemon: Option<(DaemonSettings, usize)>,
    /// Which fleet the relay belongs to, and the line.
    pub(super) fleet: Option<(FleetSettings, usize)>,
    /// What is joined whatever the rules say, and the line.
    pub(super) join: Option<(Vec<StaticJoin>, usize)>,
    /// Who is told of events, and the line.
    pub(super) notify: Option<(Notify, usize)>,
    /// Name, settings, line.
    pub(super) interfaces: Vec<(String, InterfaceSettings, usize)>,
    pub(super) rules: Vec<LocatedRule>,
}

impl Parsed {
    /// What it says beyond rules, as far as that has a line of its own: names and lines.
    pub(super) fn beyond_rules(&self) -> Vec<(String, usize)> {
        let tables = [
            ("[budget]", self.budget.as_ref().map(|(_, line)| *line)),
            ("[daemon]", self.daemon.as_ref().map(|(_, line)| *line)),
            ("[fleet]", self.fleet.as_ref().map(|(_, line)| *line)),
            ("join", self.join.as_ref().map(|(_, line)| *line)),
            ("[notify]", self.notify.as_ref().map(|(_, line)| *line)),
            ("allow_link_local", self.allow_link_local.then_some(1)),
        ];
        let tables = tables.into_iter();
        let tables = tables.filter_map(|(name, line)| Some((name.to_owned(), line?)));
        let interfaces = { self.interfaces.iter() }
            .map(|(name, _, line)| (format!("[interface.{name}]"), *line));
        tables.chain(interfaces).collect()
    }
}

/// A rule and the lines it stands on.
pub(super) struct LocatedRule {
    pub(super) document: RuleDocument,
    pub(super) file: String,
    pub(super) line: usize,
    parts: Vec<(Part, usize)>,
}

impl LocatedRule {
    /// The line of a part of the rule, or the rule's own.
    pub(super) fn line_of(&self, part: Part) -> usize {
        let found = self.parts.iter().find(|(known, _)| *known == part);
        found.map_or(self.line, |(_, line)| *line)
    }
}

/// Reads a file; the main file must say its version.
pub(super) fn parse(file: &ConfigFile, main: bool) -> Parsed {
    let newlines = file.text.bytes().enumerate();
    let newlines = newlines.filter(|(_, byte)| *byte == b'\n');
    let mut reader = Reader {
        file,
        newlines: newlines.map(|(offset, _)| offset).collect(),
        parsed: Parsed::default(),
    };
    let (root, errors) = DeTable::parse_recoverable(&file.text);
    if errors.is_empty() {
        reader.root(root.into_inner(), main);
    } else {
        // What was saved of a broken file would only give errors that are not there.
        for error in errors {
            reader.refuse(error.span(), error.message().to_owned());
        }
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
                "budget" => self.budget(value),
                "daemon" => self.daemon(value),
                "fleet" => self.fleet(value),
                "interface" => self.interfaces(value),
                "join" => self.join(value),
                "notify" => self.notify(value),
                "rule" => self.rules(value),
                unknown => {
                    let message = format!("unknown key {unknown:?}; there are {KEYS}");
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
            DeValue::Boolean(allow) => self.parsed.allow_link_local = *allow,
            _ => self.refuse(
                Some(value.span()),
                "allow_link_local: give true or false".to_owned(),
            ),
        }
    }

    fn budget(&mut self, value: Value<'a>) {
        let span = value.span();
        let read = BudgetTable::deserialize(ValueDeserializer::from(value));
        let budget = match read {
            Ok(table) => Budget::try_from(table),
            Err(error) => {
                let at = error.span().unwrap_or(span);
                return self.refuse(Some(at), format!("budget: {}", error.message()));
            }
        };
        let line = self.line(span.start);
        match budget {
            Ok(budget) => self.parsed.budget = Some((budget, line)),
            Err(message) => self.refuse(Some(span), message),
        }
    }

    fn daemon(&mut self, value: Value<'a>) {
        let span = value.span();
        match DaemonSettings::deserialize(ValueDeserializer::from(value)) {
            Ok(settings) => self.parsed.daemon = Some((settings, self.line(span.start))),
            Err(error) => {
                let at = error.span().unwrap_or(span);
                self.refuse(Some(at), format!("daemon: {}", error.message()));
            }
        }
    }

    fn fleet(&mut self, value: Value<'a>) {
        let span = value.span();
        match FleetSettings::deserialize(ValueDeserializer::from(value)) {
            Ok(settings) => match settings.check() {
                Ok(()) => self.parsed.fleet = Some((settings, self.line(span.start))),
                Err(problem) => self.refuse(Some(span), format!("fleet: {problem}")),
            },
            Err(error) => {
                let at = error.span().unwrap_or(span);
                self.refuse(Some(at), format!("fleet: {}", error.message()));
            }
        }
    }

    fn join(&mut self, value: Value<'a>) {
        let span = value.span();
        match Vec::<StaticJoin>::deserialize(ValueDeserializer::from(value)) {
            Ok(joins) => match join::twice(&joins) {
                None => self.parsed.join = Some((joins, self.line(span.start))),
                Some(join) => self.refuse(Some(span), format!("join: {join} is there twice")),
            },
            Err(error) => {
                let at = error.span().unwrap_or(span);
                self.refuse(Some(at), format!("join: {}", error.message()));
            }
        }
    }

    fn notify(&mut self, value: Value<'a>) {
        let span = value.span();
        match Notify::deserialize(ValueDeserializer::from(value)) {
            Ok(notify) => self.parsed.notify = Some((notify, self.line(span.start))),
            Err(error) => {
                let at = error.span().unwrap_or(span);
                self.refuse(Some(at), format!("notify: {}", error.message()));
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
            if let Err(problem) = check_interface_name(&name) {
                self.refuse(Some(key.span()), format!("interface {name:?}: {problem}"));
                continue;
            }
            match InterfaceSettings::deserialize(ValueDeserializer::from(value)) {
                Ok(settings) => {
                    let line = self.line(key.span().start);
                    self.parsed.interfaces.push((name, settings, line));
                }
                Err(error) => {
                    let span = error.span().unwrap_or(key.span());
                    self.refuse(Some(span), format!("interface {name}: {}", error.message()));
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
                self.refuse(Some(at), format!("{name}{}", error.message()));
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
