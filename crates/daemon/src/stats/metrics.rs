//! The counters as Prometheus text, version 0.0.4: a view of the same reply that `mcr stats` prints,
//! so the two can never disagree.

mod drops;
mod latency;
mod streams;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;

use api::reply::{InputStats, OutputStats, RuleStats, State, Stats, Status, WorkerStats};

use super::PossibleDrops;
use super::process::Process;

/// What the metrics are a view of: the same replies that others get, of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Scrape {
    pub(crate) status: Status,
    pub(crate) stats: Stats,
    /// For which reasons each rule can drop packets.
    pub(crate) possible: Vec<PossibleDrops>,
}

/// How the text is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format that a client's `Accept` header asks for.
    pub(crate) fn accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// What the text is, for the content type header.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes every metric.
pub(crate) fn text(format: Format, scrape: &Scrape, process: &Process) -> String {
    let Scrape {
        status,
        stats,
        possible,
    } = scrape;
    let mut page = Page {
        format,
        text: String::new(),
    };
    daemon(&mut page, status, process);
    this_process(&mut page, process);
    rules(&mut page, &stats.rules);
    inputs(&mut page, &stats.rules);
    outputs(&mut page, &stats.rules);
    drops::families(&mut page, &stats.rules, possible);
    streams::streams(&mut page, &stats.rules);
    latency::histograms(&mut page, &stats.rules);
    workers(&mut page, &stats.workers);
    if format == Format::OpenMetrics {
        page.text += "# EOF\n";
    }
    page.text
}

fn daemon(page: &mut Page, status: &Status, process: &Process) {
    page.family(
        "mcr_build_info",
        "gauge",
        "Version of the daemon; always 1.",
    );
    let labels = [
        ("version", status.version.as_str()),
        ("instance", status.instance.as_str()),
    ];
    page.sample("mcr_build_info", &labels, 1);
    page.family(
        "mcr_uptime_seconds",
        "gauge",
        "Seconds since the daemon started.",
    );
    page.sample("mcr_uptime_seconds", &[], status.uptime_seconds);
    page.family(
        "mcr_config_generation",
        "gauge",
        "Generation of the running rule set; every change of it adds one.",
    );
    page.sample("mcr_config_generation", &[], status.generation);
    page.family("mcr_rules", "gauge", "Rules in the running set.");
    page.sample("mcr_rules", &[], status.rules);
    page.family(
        "mcr_path_available",
        "gauge",
        "1 if rules can run on the path on this host.",
    );
    for (path, state) in [("kernel", &status.kernel), ("userspace", &status.userspace)] {
        let available = u8::from(state.available);
        page.sample("mcr_path_available", &[("path", path)], available);
    }
    // A daemon that runs could use what it read when it started.
    let started = (true, process.started);
    let reload = status.last_reload.as_ref();
    let reload = reload.map(|last| (last.succeeded, last.at_ms as f64 / 1000.0));
    let (succeeded, at) = reload.unwrap_or(started);
    page.family(
        "mcr_config_last_reload_successful",
        "gauge",
        "1 if the configuration could be used when it was last read.",
    );
    let name = "mcr_config_last_reload_successful";
    page.sample(name, &[], u8::from(succeeded));
    let name = "mcr_config_last_reload_timestamp_seconds";
    page.family(
        name,
        "gauge",
        "When the configuration was last read, seconds since the epoch.",
    );
    page.sample(name, &[], at);
}

fn this_process(page: &mut Page, process: &Process) {
    let families: [(&str, &str, &str, f64); 7] = [
        (
            "process_cpu_seconds_total",
            "counter",
            "User and system CPU time spent in seconds.",
            process.cpu_seconds,
        ),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            process.resident_bytes as f64,
        ),
        (
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory size in bytes.",
            process.virtual_bytes as f64,
        ),
        (
            "process_open_fds",
            "gauge",
            "Number of open file descriptors.",
            process.open_fds as f64,
        ),
        (
            "process_max_fds",
            "gauge",
            "Maximum number of open file descriptors.",
            process.max_fds as f64,
        ),
        (
            "process_threads",
            "gauge",
            "Number of OS threads in the process.",
            process.threads as f64,
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            process.started,
        ),
    ];
    for (name, kind, help, value) in families {
        page.family(name, kind, help);
        page.sample(name, &[], value);
    }
}

fn rules(page: &mut Page, rules: &[RuleStats]) {
    page.family(
        "mcr_rule_up",
        "gauge",
        "1 if every input and output of the rule works.",
    );
    for rule in rules {
        let labels = [("rule", rule.name.as_str()), ("path", rule.path.as_str())];
        page.sample("mcr_rule_up", &labels, u8::from(rule.state == State::Up));
    }
    page.family(
        "mcr_rule_state",
        "gauge",
        "1 for the state that the rule is in, 0 for the others.",
    );
    for rule in rules {
        let states = [
            ("up", State::Up),
            ("degraded", State::Degraded),
            ("down", State::Down),
        ];
        for (word, state) in states {
            let labels = [("rule", rule.name.as_str()), ("state", word)];
            page.sample("mcr_rule_state", &labels, u8::from(rule.state == state));
        }
    }
    page.family(
        "mcr_rule_received_packets_total",
        "counter",
        "Datagrams that matched an input of the rule.",
    );
    for rule in rules {
        let name = "mcr_rule_received_packets_total";
        page.sample(name, &[("rule", &rule.name)], rule.received.packets);
    }
    page.family(
        "mcr_rule_received_bytes_total",
        "counter",
        "UDP payload bytes that matched an input of the rule.",
    );
    for rule in rules {
        let name = "mcr_rule_received_bytes_total";
        page.sample(name, &[("rule", &rule.name)], rule.received.bytes);
    }
}

fn inputs(page: &mut Page, rules: &[RuleStats]) {
    let inputs: Vec<Labelled<'_, InputStats>> = rules.iter().flat_map(inputs_of).collect();
    let families: [EndFamily<InputStats>; 3] = [
        (
            "mcr_input_joined",
            "gauge",
            "1 if the input's group is joined on its interface.",
            |input| u64::from(input.joined),
        ),
        (
            "mcr_input_received_packets_total",
            "counter",
            "Datagrams that matched the input.",
            |input| input.received.packets,
        ),
        (
            "mcr_input_received_bytes_total",
            "counter",
            "UDP payload bytes that matched the input.",
            |input| input.received.bytes,
        ),
    ];
    ends(page, &inputs, &families);
}

fn outputs(page: &mut Page, rules: &[RuleStats]) {
    let outputs: Vec<Labelled<'_, OutputStats>> = rules.iter().flat_map(outputs_of).collect();
    let families: [EndFamily<OutputStats>; 3] = [
        (
            "mcr_output_up",
            "gauge",
            "1 if the output can send.",
            |output| u64::from(output.state == State::Up),
        ),
        (
            "mcr_output_sent_packets_total",
            "counter",
            "Copies handed to the egress device.",
            |output| output.sent.packets,
        ),
        (
            "mcr_output_sent_bytes_total",
            "counter",
            "UDP payload bytes handed to the egress device.",
            |output| output.sent.bytes,
        ),
    ];
    ends(page, &outputs, &families);
}

/// Name, kind, help and value of a family with a sample for each input or output.
type EndFamily<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

fn ends<T>(page: &mut Page, ends: &[Labelled<'_, T>], families: &[EndFamily<T>]) {
    for (name, kind, help, value) in families {
        page.family(name, kind, help);
        for (labels, end) in ends {
            page.sample(name, &of(labels), value(end));
        }
    }
}

/// An input or an output, and its rule and itself as labels.
type Labelled<'a, T> = ([(&'static str, Cow<'a, str>); 2], &'a T);

fn inputs_of(rule: &RuleStats) -> Vec<Labelled<'_, InputStats>> {
    labelled(rule, "input", &rule.inputs, |input| &input.at)
}

fn outputs_of(rule: &RuleStats) -> Vec<Labelled<'_, OutputStats>> {
    labelled(rule, "output", &rule.outputs, |output| &output.to)
}

/// The inputs or outputs of a rule. Several outputs may send to one destination, from other addresses
/// or ports: those behind the first carry their number, counted from 1, because a series may be there
/// but once.
fn labelled<'a, T>(
    rule: &'a RuleStats,
    kind: &'static str,
    ends: &'a [T],
    text: impl Fn(&'a T) -> &'a String,
) -> Vec<Labelled<'a, T>> {
    let mut known = BTreeSet::new();
    let mut labelled = Vec::with_capacity(ends.len());
    for (number, end) in (1..).zip(ends) {
        let text = text(end);
        let label = match known.insert(text) {
            true => Cow::Borrowed(text.as_str()),
            false => Cow::Owned(format!("{text} #{number}")),
        };
        let name = Cow::Borrowed(rule.name.as_str());
        labelled.push(([("rule", name), (kind, label)], end));
    }
    labelled
}

fn of<'a>(labels: &'a [(&'static str, Cow<'_, str>); 2]) -> [(&'a str, &'a str); 2] {
    labels.each_ref().map(|(key, value)| (*key, value.as_ref()))
}

type WorkerFamily = (&'static str, &'static str, fn(&WorkerStats) -> u64);

fn workers(page: &mut Page, workers: &[WorkerStats]) {
    page.family("mcr_worker_up", "gauge", "1 if the worker is running.");
    for worker in workers {
        let labels = [("worker", worker.id.to_string())];
        let labels = labels.each_ref().map(|(key, value)| (*key, value.as_str()));
        page.sample(
            "mcr_worker_up",
            &labels,
            u8::from(worker.state == "running"),
        );
    }
    let families: [WorkerFamily; 8] = [
        (
            "mcr_worker_restarts_total",
            "Times the worker was started again.",
            |w| w.restarts,
        ),
        (
            "mcr_worker_received_packets_total",
            "Packets read from the taps.",
            |w| w.received,
        ),
        (
            "mcr_worker_matched_packets_total",
            "Packets that took a route.",
            |w| w.matched,
        ),
        (
            "mcr_worker_not_matched_packets_total",
            "Packets that took none.",
            |w| w.not_matched,
        ),
        (
            "mcr_worker_forwarded_packets_total",
            "Copies handed to egress devices.",
            |w| w.forwarded,
        ),
        (
            "mcr_worker_buffer_exhausted_packets_total",
            "Packets lost for want of a buffer or at a full ring.",
            |w| w.buffer_exhausted,
        ),
        ("mcr_worker_receive_errors_total", "Failed receives.", |w| {
            w.receive_errors
        }),
        ("mcr_worker_transmit_errors_total", "Failed sends.", |w| {
            w.transmit_errors
        }),
    ];
    for (name, help, value) in families {
        page.family(name, "counter", help);
        for worker in workers {
            let id = worker.id.to_string();
            page.sample(name, &[("worker", id.as_str())], value(worker));
        }
    }
}

#[derive(Default)]
struct Page {
    format: Format,
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // OpenMetrics names a counter's family without what its samples end in.
        let name = match self.format {
            Format::Prometheus => name,
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        };
        self.text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.text += name;
        for (position, (key, value)) in labels.iter().enumerate() {
            let open = if position == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{key}=\"{}\"", escaped(value));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
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
