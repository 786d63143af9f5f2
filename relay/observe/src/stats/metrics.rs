//! The counters as Prometheus text, version 0.0.4: a view of the same reply that `mcr stats` prints,
//! so the two can never disagree.

mod demand;
mod drops;
mod fleet;
mod latency;
mod merge;
mod remote;
mod streams;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::sync::Arc;

use api::counter::{self, Counter, Unit, Value};
use api::reply::{
    EgressStats, FleetStatus, InputStats, OutputStats, RuleStats, State, Stats, Status, WorkerStats,
};

use super::PossibleDrops;
use super::process::Process;
use crate::compressed_body::CompressedBody;
use crate::notify::Posted;

/// What the metrics show besides the rules: the replies of the API, all of one moment.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The reply to `mcr status`.
    pub status: Status,
    /// Whether the running rules are saved.
    pub is_saved: bool,
    /// The statistics, without the rules.
    pub stats: Stats,
    /// Lines of the log that were lost.
    pub lost_lines: u64,
    /// Delivery counters of the webhook.
    pub webhook: Arc<Posted>,
    /// The status of its fleet, if it is in one.
    pub fleet: Option<FleetStatus>,
}

/// The format of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Prometheus text, version 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics.
    OpenMetrics,
}

impl Format {
    /// The format that a client's `Accept` header asks for.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The value of the content type header.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes every metric. The rules are produced one at a time, each with its possible drop reasons.
pub fn text(
    format: Format,
    scrape: &Scrape,
    rules: impl Iterator<Item = (RuleStats, PossibleDrops)>,
    process: &Process,
) -> CompressedBody {
    let Scrape { status, stats, .. } = scrape;
    let mut page = Page {
        format,
        families: Vec::new(),
        indices: HashMap::new(),
        current: 0,
        addresses_left: 1_000,
        now_seconds: sys::clock::realtime_ns() as f64 / 1e9,
    };
    daemon(&mut page, status, process);
    page.single(
        "mcr_running_rules_saved",
        "1 if the running rules are written down, for a crash.",
        u8::from(scrape.is_saved),
    );
    page.single(
        "mcr_log_lost_lines_total",
        "Lines of the log that were lost because nobody took them.",
        scrape.lost_lines,
    );
    remote::notifications(&mut page, &scrape.webhook, &status.notify);
    remote::clients(&mut page, status.api.as_ref());
    page.counters(Process::COUNTERS, &[([], process)]);
    // The families exist even if there are no rules.
    rule_families(&mut page, &[], &[]);
    for (rule, possible) in rules {
        rule_families(&mut page, &[rule], &[possible]);
    }
    workers(&mut page, &stats.workers);
    egress(&mut page, &stats.egress);
    page.single(
        "mcr_address_conflicts",
        "Addresses of this host, on links of rules, that others there have too.",
        status.address_conflicts.len(),
    );
    let name = "mcr_interface_xdp_packets_total";
    page.family(
        name,
        "Packets that came by the interface, were taken at XDP and handed to devices there.",
    );
    for (interface, packets) in &stats.xdp {
        page.sample(name, &[("interface", interface)], packets);
    }
    demand::families(&mut page, &stats.demand);
    if let Some(fleet) = &scrape.fleet {
        fleet::families(&mut page, fleet);
    }
    page.finish()
}

/// Writes the families of rules.
fn rule_families(page: &mut Page, all: &[RuleStats], possible: &[PossibleDrops]) {
    rules(page, all);
    inputs(page, all);
    outputs(page, all);
    drops::families(page, all, possible);
    streams::streams(page, all);
    merge::families(page, all);
    latency::histograms(page, all);
}

fn daemon(page: &mut Page, status: &Status, process: &Process) {
    page.family("mcr_build_info", "Version of the daemon; always 1.");
    // Not `instance`: Prometheus uses that label for the scraped target.
    let labels = [
        ("version", status.version.as_str()),
        ("name", status.instance.as_str()),
    ];
    page.sample("mcr_build_info", &labels, 1);
    page.single(
        "mcr_uptime_seconds",
        "Seconds since the daemon started.",
        status.uptime_seconds,
    );
    page.single(
        "mcr_config_generation",
        "Generation of the running rule set; every change of it adds one.",
        status.generation,
    );
    page.single("mcr_rules", "Rules in the running set.", status.rules);
    page.family(
        "mcr_path_available",
        "1 if rules can run on the path on this host.",
    );
    for (path, state) in [("kernel", &status.kernel), ("userspace", &status.userspace)] {
        let available = u8::from(state.available);
        page.sample("mcr_path_available", &[("path", path)], available);
    }
    // A running daemon could use the configuration that it started with.
    let started = (true, process.started);
    let reload = status.last_reload.as_ref();
    let (succeeded, at) =
        reload.map_or(started, |last| (last.succeeded, last.at_ms as f64 / 1000.0));
    page.single(
        "mcr_config_last_reload_successful",
        "1 if the configuration could be used when it was last read.",
        u8::from(succeeded),
    );
    page.single(
        "mcr_config_last_reload_timestamp_seconds",
        "When the configuration was last read, seconds since the epoch.",
        at,
    );
}

fn rules(page: &mut Page, rules: &[RuleStats]) {
    page.family(
        "mcr_rule_up",
        "1 if every input and output of the rule works.",
    );
    for rule in rules {
        let labels = [("rule", rule.name.as_str()), ("path", rule.path.as_str())];
        page.sample("mcr_rule_up", &labels, u8::from(rule.state == State::Up));
    }
    page.family(
        "mcr_rule_state",
        "1 for the state that the rule is in, 0 for the others.",
    );
    for rule in rules {
        for state in [State::Up, State::Degraded, State::Down, State::Disabled] {
            let labels = [("rule", rule.name.as_str()), ("state", state.as_str())];
            page.sample("mcr_rule_state", &labels, u8::from(rule.state == state));
        }
    }
    infos(page, rules);
    let labelled: Vec<_> = rules.iter().map(|rule| ([name_of(rule)], rule)).collect();
    page.counters(RuleStats::COUNTERS, &labelled);
}

/// The labels of rules that have some.
fn infos(page: &mut Page, rules: &[RuleStats]) {
    let mut labelled = rules
        .iter()
        .filter(|rule| !rule.labels.is_empty())
        .peekable();
    if labelled.peek().is_some() {
        page.family("mcr_rule_info", "Labels of the rule; always 1.");
    }
    for rule in labelled {
        let keys: Vec<String> = rule
            .labels
            .keys()
            .map(|key| format!("label_{key}"))
            .collect();
        let own = keys
            .iter()
            .map(String::as_str)
            .zip(rule.labels.values().map(String::as_str));
        let labels: Vec<(&str, &str)> = [("rule", rule.name.as_str())]
            .into_iter()
            .chain(own)
            .collect();
        page.sample("mcr_rule_info", &labels, 1);
    }
}

fn inputs(page: &mut Page, rules: &[RuleStats]) {
    let inputs: Vec<_> = rules.iter().flat_map(inputs_of).collect();
    page.counters(InputStats::COUNTERS, &inputs);
}

fn outputs(page: &mut Page, rules: &[RuleStats]) {
    let outputs: Vec<_> = rules.iter().flat_map(outputs_of).collect();
    page.counters(OutputStats::COUNTERS, &outputs);
    let name = "mcr_output_degraded";
    page.family(name, "1 if the output drops everything.");
    for (labels, output) in &outputs {
        let is_degraded = u8::from(output.state == State::Degraded);
        page.sample(name, &of(labels), is_degraded);
    }
    let all = outputs.iter();
    let named = all.filter_map(|(labels, output)| Some((labels, output.addresses.as_ref()?)));
    let name = "mcr_output_addresses";
    page.family(name, "Addresses of the output's name that get copies.");
    for (labels, addresses) in named.clone() {
        page.sample(name, &of(labels), addresses.len() as u64);
    }
    let name = "mcr_output_address_sent_packets_total";
    page.family(
        name,
        "Copies handed to the egress device, by address; of 1,000 addresses of all rules at most.",
    );
    let addresses = named.flat_map(|(labels, all)| all.iter().map(move |one| (labels, one)));
    for (labels, address) in addresses.take(page.addresses_left) {
        page.addresses_left -= 1;
        let [rule, to] = of(labels);
        let labels = [rule, to, ("address", address.address.as_str())];
        page.sample(name, &labels, address.sent.packets);
    }
}

/// A label: key and value.
type Label<'a> = (&'static str, Cow<'a, str>);

/// A source of samples, and their labels.
type Labelled<'a, T, const N: usize> = ([Label<'a>; N], &'a T);

fn name_of(rule: &RuleStats) -> Label<'_> {
    ("rule", Cow::Borrowed(&rule.name))
}

fn inputs_of(rule: &RuleStats) -> Vec<Labelled<'_, InputStats, 2>> {
    labelled(rule, "input", &rule.inputs, |input| &input.at)
}

fn outputs_of(rule: &RuleStats) -> Vec<Labelled<'_, OutputStats, 2>> {
    labelled(rule, "output", &rule.outputs, |output| &output.to)
}

/// The inputs or outputs of a rule. Several outputs may send to one destination, from other addresses
/// or ports: all but the first are labelled with their number, counted from 1, because a series must be
/// unique.
fn labelled<'a, T>(
    rule: &'a RuleStats,
    kind: &'static str,
    ends: &'a [T],
    text: impl Fn(&'a T) -> &'a String,
) -> Vec<Labelled<'a, T, 2>> {
    let mut seen = BTreeSet::new();
    let mut labelled = Vec::with_capacity(ends.len());
    for (number, end) in (1..).zip(ends) {
        let text = text(end);
        let label = if seen.insert(text) {
            Cow::Borrowed(text.as_str())
        } else {
            Cow::Owned(format!("{text} #{number}"))
        };
        labelled.push(([name_of(rule), (kind, label)], end));
    }
    labelled
}

fn of<'a, const N: usize>(labels: &'a [Label<'_>; N]) -> [(&'a str, &'a str); N] {
    labels.each_ref().map(|(key, value)| (*key, value.as_ref()))
}

/// Writes the families of the userspace path's workers.
fn workers(page: &mut Page, workers: &[WorkerStats]) {
    let label = |worker: &WorkerStats| ("worker", Cow::Owned(worker.id.to_string()));
    let labelled: Vec<_> = workers.iter().map(|one| ([label(one)], one)).collect();
    page.family("mcr_worker_up", "1 if the worker is running.");
    for (labels, worker) in &labelled {
        let is_running = u8::from(worker.state == "running");
        page.sample("mcr_worker_up", &of(labels), is_running);
    }
    page.counters(WorkerStats::COUNTERS, &labelled);
}

fn egress(page: &mut Page, egress: &[EgressStats]) {
    let label = |one: &EgressStats| ("interface", Cow::Owned(one.interface.clone()));
    let labelled: Vec<_> = egress.iter().map(|one| ([label(one)], one)).collect();
    page.counters(EgressStats::COUNTERS, &labelled);
}

/// The page, family by family: the samples of one rule are appended to many families.
struct Page {
    format: Format,
    /// In the order in which they were begun.
    families: Vec<CompressedBody>,
    /// The index of each family by name.
    indices: HashMap<String, usize>,
    /// The family that samples are written to.
    current: usize,
    /// How many more addresses may be written.
    addresses_left: usize,
    /// Seconds since the epoch.
    now_seconds: f64,
}

impl Page {
    /// Writes a family for each counter, with a sample for each element that has a value.
    fn counters<T, const N: usize>(&mut self, counters: &[Counter<T>], all: &[Labelled<'_, T, N>]) {
        for counter in counters {
            self.family(counter.metric, counter.help);
            for (labels, one) in all {
                if let Some(value) = (counter.value)(one) {
                    let value = self.measured(counter.unit(), value);
                    self.sample(counter.metric, &of(labels), value);
                }
            }
        }
    }

    /// The value of a sample: an age becomes a point in time, rounded to a tenth of a second so that it
    /// does not jitter.
    fn measured(&self, unit: Unit, value: Value) -> Value {
        match (unit, value) {
            (Unit::Ago, Value::Real(ago)) => {
                Value::Real(((self.now_seconds - ago) * 10.0).round() / 10.0)
            }
            _ => value,
        }
    }

    /// A family of one sample.
    fn single(&mut self, name: &str, help: &str, value: impl fmt::Display) {
        self.family(name, help);
        self.sample(name, &[], value);
    }

    fn family(&mut self, name: &str, help: &str) {
        self.family_of(counter::kind(name), name, help);
    }

    /// Selects a family for samples; writes its head if it is new.
    fn family_of(&mut self, kind: &str, name: &str, help: &str) {
        if let Some(index) = self.indices.get(name) {
            self.current = *index;
            return;
        }
        self.current = self.families.len();
        self.families.push(CompressedBody::default());
        self.indices.insert(name.to_owned(), self.current);
        // OpenMetrics names a counter's family without the suffix of its samples.
        let name = match self.format {
            Format::Prometheus => name,
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        };
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.write(format_args!("{name}"));
        for (position, (key, value)) in labels.iter().enumerate() {
            let open = if position == 0 { '{' } else { ',' };
            self.write(format_args!("{open}{key}=\"{}\"", escaped(value)));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        self.write(format_args!("{close} {value}\n"));
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        let current = self.families.get_mut(self.current);
        let family = current.expect("samples follow the head of their family");
        family.write_fmt(text).expect("memory takes any text");
    }

    fn finish(self) -> CompressedBody {
        let mut page: CompressedBody = self.families.into_iter().collect();
        if self.format == Format::OpenMetrics {
            page.write_str("# EOF\n").expect("memory takes any text");
        }
        page
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests;
