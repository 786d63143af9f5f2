//! Rules as they are written: one shape for the TOML file, the control API and the export.
//!
//! Documents hold the text as written; [`Rule`] holds its meaning. Unknown keys are refused.

mod merge;
mod output;
mod reflect;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

pub use merge::{MergeDocument, MergeTable};
pub use output::{OutputDocument, OutputTable};
pub use reflect::REFLECT_KEYS;

pub use crate::setting::{FieldDocument, Scalar};

use crate::endpoint::Endpoint;
use crate::failover::Failover;
use crate::health::Health;
use crate::limit;
use crate::merge::{WINDOW_MAX, WINDOW_MIN};
use crate::path::PathChoice;
use crate::problem::{Part, Problem, Problems, What};
use crate::reflect::MODE;
use crate::rule::{
    LABELS_MAX, LocalDelivery, NAME, OutputSpec, Rule, TEXT_MAX, Ttl, is_label_key, is_name,
};
use crate::setting::{ANY, Form, Setting, Table, TextForm, Word, Written, nested, settings};

/// Which of a rule's inputs is relayed, as written: `failover = "500ms"`, or a table.
pub type FailoverDocument = Written<Failover>;

/// How a rule's stream is watched, as written: `health = { silence = "2s", content = "rtp" }`.
pub type HealthDocument = Written<Health>;

settings! {
    /// One rule.
    pub struct RuleDocument {
        /// Unique name: a letter or digit, then letters, digits and `.` `_` `-` `:`, at most 63.
        required name: String, form: Form::Text(&NAME), is_late: true;
        /// The only input, instead of `inputs`: `[SOURCE@]GROUP%IFACE:PORT`, or for unicast
        /// `[SOURCE@]unicast%IFACE:PORT` and `ADDRESS%IFACE:PORT`. With `,rejoin=60s` behind it the groups
        /// are reported again and again (`1s` to `1h`), where nobody asks and switches forget.
        optional input: String, form: Form::Text(&INPUT), is_late: true;
        /// The inputs, instead of `input`.
        several inputs: Vec<String>, form: Form::List(&INPUT);
        /// The outputs, at least one, unless the rule reflects.
        several outputs: Vec<OutputDocument>;
        /// What makes the rule another one: what comes by each of `interfaces` to `group` leaves by all
        /// others, and no payload twice; instead of inputs and outputs.
        optional mode: String, form: Form::Words(&[Word::plain(MODE)]), is_late: true;
        /// Of a rule that reflects: between which interfaces, two or more.
        several interfaces: Vec<String>, form: Form::List(&INTERFACE);
        /// Of a rule that reflects: those of its interfaces that do not hear each other, but the others,
        /// and are heard by them.
        several isolated: Vec<String>, form: Form::List(&INTERFACE);
        /// Of a rule that reflects: one group and its port, as in `224.0.0.251:5353` or
        /// `[ff02::fb]:5353`; `255.255.255.255:PORT` for all broadcasts to that port.
        optional group: String, form: Form::Text(&GROUP), is_late: true;
        /// Of a rule that reflects: the source of the copies, the address of the interface that they
        /// leave by (answers that come there go to whoever asked), or the sender's own.
        optional source: String, form: Form::Words(&[Word::plain("auto"), Word::plain("keep")]),
            default: "auto", is_late: true;
        /// Of a rule that reflects: TTL or hop limit of the copies.
        optional ttl: Scalar, form: Ttl::FORM, default: "keep";
        /// Of a rule that reflects: for how long the same payload does not pass again.
        optional window: String, form: Form::time(WINDOW_MIN, WINDOW_MAX), default: "200ms",
            is_late: true;
        /// Path to force the rule to; by default placement decides.
        optional path: PathChoice, default: "auto";
        /// Whether this host's own sockets get a copy; by default where one is bound to the port.
        optional local: LocalDelivery, default: "auto";
        /// Cap on what the rule accepts, as in `5000pps` or `20Mbit`.
        optional limit: String, form: Form::Text(&limit::LIMIT);
        /// Burst the cap allows: packets, or a size such as `1Mbit`.
        optional burst: Scalar, form: Form::Text(&limit::BURST), otherwise: "a tenth of a second's";
        /// Which of several inputs is relayed: the first that delivers, the others stand by; without it
        /// each is.
        optional failover: FailoverDocument;
        /// How inputs that bring the same become one stream, of which each packet leaves once: a word,
        /// or a table; without it, and with `none`, each input is relayed.
        optional merge: MergeDocument;
        /// What is watched of the stream; without it only its rates are.
        optional health: HealthDocument;
        /// Which rules of a fleet change hands together: those that name the same share, a name as rules
        /// have; without it the rule relays whoever else does.
        optional share: String, form: Form::Text(&NAME), is_late: true;
        /// Whether the rule forwards; one that does not stays configured, joins nothing and takes no
        /// packet from other rules.
        optional enabled: bool, default: "true";
        /// What people say of it, at most 255 bytes.
        optional comment: String;
        /// What it is chosen by, as in `{ site = "y" }`: at most 16, each key a letter and then letters,
        /// digits and `_`, each value at most 255 bytes.
        several labels: BTreeMap<String, String>;
    }
}

nested! {
    FailoverDocument as FailoverDocument, Form::Table("FailoverDocument"), ToString::to_string;
    MergeDocument as MergeDocument, Form::Table("MergeDocument"), ToString::to_string;
    HealthDocument as HealthDocument, Form::Table("HealthDocument"), ToString::to_string;
    Vec<OutputDocument> as OutputDocument, Form::Tables("OutputDocument"), |_| String::new();
}

impl RuleDocument {
    /// Parses the rule at index `position` of its list.
    ///
    /// # Errors
    ///
    /// Every part that cannot be parsed.
    pub fn to_rule(&self, position: usize) -> Result<Rule, Problems> {
        let mut problems = Problems::default();
        let mut report = |part, text: &str, what| {
            problems.0.push(Problem {
                position,
                rule: self.name.clone(),
                part,
                text: text.to_owned(),
                what,
            });
        };
        if self.name.is_empty() {
            report(Part::Name, "", What::NameEmpty);
        } else if !is_name(&self.name) {
            report(Part::Name, "", What::NameInvalid);
        }
        if self.input.is_some() && !self.inputs.is_empty() {
            report(Part::Rule, "", What::InputAndInputs);
        }
        let mut inputs = self.read_inputs(&mut report);
        let ipv4 = inputs.first().is_none_or(Endpoint::is_ipv4);
        let mut outputs = self.read_outputs(ipv4, &mut report);
        let reflected = self.reflected().unwrap_or_else(|problems| {
            for what in problems {
                report(Part::Rule, "", what.into());
            }
            None
        });
        let reflect = reflected.map(|(reflect, ends)| {
            (inputs, outputs) = ends;
            reflect
        });
        let burst = self.burst.as_ref().map(ToString::to_string);
        let parsed = limit::parse(self.limit.as_deref(), burst.as_deref());
        let limit = ok_or_report(parsed, Part::Limit, &mut report);
        let parsed = self.health.as_ref().map(Written::read).transpose();
        let health = ok_or_report(parsed, Part::Health, &mut report);
        let parsed = self.failover.as_ref().map(Written::read).transpose();
        let failover = ok_or_report(parsed, Part::Failover, &mut report);
        let merge = self.merge.as_ref();
        let parsed = merge.map_or(Ok(None), MergeDocument::to_merge);
        let merge = ok_or_report(parsed, Part::Merge, &mut report);
        if self.share.as_ref().is_some_and(|share| !is_name(share)) {
            report(Part::Share, "", What::ShareInvalid);
        }
        if let Some(what) = self.problem_of_texts() {
            report(Part::Labels, "", what);
        }
        problems.or(Rule {
            name: self.name.clone(),
            inputs,
            outputs,
            path: self.path.unwrap_or_default().forced(),
            local: self.local.unwrap_or_default(),
            limit,
            failover,
            merge,
            reflect,
            health,
            share: self.share.clone(),
            enabled: self.enabled.unwrap_or(true),
            comment: self.comment.clone(),
            labels: self.labels.clone(),
        })
    }

    fn read_inputs(&self, mut report: impl FnMut(Part, &str, What)) -> Vec<Endpoint> {
        // The exact capacity: inputs live as long as the rule, and an empty list would grow to four at
        // once.
        let mut inputs = Vec::with_capacity(self.inputs.len() + usize::from(self.input.is_some()));
        for (index, text) in self.input.iter().chain(&self.inputs).enumerate() {
            match Endpoint::input(text) {
                Ok(input) => inputs.push(input),
                Err(error) => report(Part::Input(index), text, error.problem.into()),
            }
        }
        inputs
    }

    /// Parses the outputs; a name stands for an address of the inputs' family.
    fn read_outputs(
        &self,
        ipv4: bool,
        mut report: impl FnMut(Part, &str, What),
    ) -> Vec<OutputSpec> {
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (index, output) in self.outputs.iter().enumerate() {
            match output.to_output() {
                Ok(output) if output.name.is_some() && !ipv4 => {
                    outputs.push(output.resolved(Ipv6Addr::UNSPECIFIED.into()));
                }
                Ok(output) => outputs.push(output),
                Err(error) => report(Part::Output(index), &error.text, error.problem.into()),
            }
        }
        outputs
    }

    /// The options that are not the default, each with its value as text.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        // `enabled` comes first.
        let is_disabled = self.enabled == Some(false);
        let disabled = is_disabled.then(|| ("enabled", "no".to_owned()));
        let given = self
            .values()
            .into_iter()
            .filter_map(|(row, text)| match row.key {
                "name" | "input" | "inputs" | "outputs" | "enabled" | "labels" => None,
                "interfaces" => Some((row.key, text?.replace(", ", ","))),
                key => Some((key, text?)),
            });
        disabled.into_iter().chain(given).collect()
    }

    /// The labels, each as `key=value`.
    pub fn labels(&self) -> impl Iterator<Item = String> {
        self.labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
    }

    fn problem_of_texts(&self) -> Option<What> {
        let bad_key = self.labels.keys().find(|key| !is_label_key(key));
        let mut texts = self.labels.values().chain(&self.comment);
        let is_bad = |text: &String| text.len() > TEXT_MAX || text.contains(char::is_control);
        match bad_key {
            Some(key) => Some(What::LabelKey(key.clone())),
            None if self.labels.len() > LABELS_MAX => Some(What::TooManyLabels),
            None => texts.any(is_bad).then_some(What::Text),
        }
    }

    /// The rule in lines, one for each part: `output 10.9.9.9:7000`, `limit 20Mbit`.
    pub fn lines(&self) -> Vec<String> {
        let inputs = self.input.iter().chain(&self.inputs);
        let mut lines: Vec<String> = inputs.map(|input| format!("input {input}")).collect();
        lines.extend(self.outputs.iter().map(|output| format!("output {output}")));
        for (key, value) in self.options() {
            lines.push(format!("{key} {value}"));
        }
        lines.extend(self.labels().map(|label| format!("label {label}")));
        lines
    }

    /// Writes a single input as `input`, as a person would.
    #[must_use]
    pub fn with_short_input(mut self) -> Self {
        if self.inputs.len() == 1 && self.input.is_none() {
            self.input = self.inputs.pop();
        }
        self
    }
}

fn ok_or_report<T, E: Into<What>>(
    parsed: Result<Option<T>, E>,
    part: Part,
    report: &mut impl FnMut(Part, &str, What),
) -> Option<T> {
    parsed.unwrap_or_else(|what| {
        report(part, "", what.into());
        None
    })
}

macro_rules! octet {
    () => {
        "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
    };
}

macro_rules! port {
    () => {
        "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
    };
}

/// One port or a range, and perhaps a time from a second to an hour.
macro_rules! ports {
    () => {
        concat!(
            ":",
            port!(),
            "(-",
            port!(),
            ")?(,rejoin=0*(1h|([1-9]|[1-5][0-9]|60)m|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600)",
            "(s|000ms)))?"
        )
    };
}

/// An address with a mask, perhaps preceded by sources.
const INPUT: TextForm = TextForm {
    name: "[SOURCE@]GROUP%IFACE:PORT",
    pattern: concat!(
        r"([^@%\[\]]+@)?(unicast|",
        octet!(),
        r"(\.",
        octet!(),
        r"){3}(/(3[0-2]|[12]?[0-9]))?)%[^/:\[\]]+",
        ports!(),
        r"|\[([^@%\[\]]+@)?[0-9A-Za-z.:/]+%[^/:\[\]]+\]",
        ports!(),
    ),
    remedy: "one text, [SOURCE@]GROUP%IFACE:PORT, or several by inputs = [\"…\"]",
    ..ANY
};

const GROUP: TextForm = TextForm {
    name: "GROUP:PORT",
    pattern: concat!(r"([0-9.]+|\[[0-9A-Fa-f.:]+\]):", port!()),
    remedy: "a text, GROUP:PORT",
    ..ANY
};

const INTERFACE: TextForm = TextForm {
    name: "IFACE",
    pattern: r"[^\s/%,@:]{1,15}",
    ..ANY
};

impl TryFrom<RuleDocument> for Rule {
    type Error = Problems;

    fn try_from(document: RuleDocument) -> Result<Self, Problems> {
        document.to_rule(0)
    }
}

impl From<Rule> for RuleDocument {
    fn from(rule: Rule) -> Self {
        Self::from(&rule)
    }
}

impl From<&Rule> for RuleDocument {
    /// Writes the rule in its canonical form: `inputs` as a list, each output as one text,
    /// nothing that is the default.
    fn from(rule: &Rule) -> Self {
        let limit = rule.limit.as_ref();
        let ends = match &rule.reflect {
            Some(reflect) => reflect::document(rule, reflect),
            None => ends(rule),
        };
        Self {
            name: rule.name.clone(),
            path: rule.path.map(PathChoice::from),
            local: Some(rule.local).filter(|local| *local != LocalDelivery::Auto),
            limit: limit.map(limit::rate_text),
            burst: limit.and_then(limit::burst_text).map(Scalar::Text),
            failover: rule.failover.as_ref().map(FailoverDocument::from),
            merge: rule.merge.as_ref().map(MergeDocument::from),
            health: rule.health.as_ref().map(HealthDocument::from),
            share: rule.share.clone(),
            enabled: Some(rule.enabled).filter(|enabled| !enabled),
            comment: rule.comment.clone(),
            labels: rule.labels.clone(),
            ..ends
        }
    }
}

/// The document of a rule's inputs and outputs alone.
fn ends(rule: &Rule) -> RuleDocument {
    let outputs = rule.outputs.iter().map(ToString::to_string);
    RuleDocument {
        inputs: rule.inputs.iter().map(Endpoint::written).collect(),
        outputs: outputs.map(OutputDocument::Text).collect(),
        ..RuleDocument::default()
    }
}

#[cfg(test)]
pub(crate) use tests::check_in_a_rule;

#[cfg(test)]
mod tests;
