//! Metrics in Prometheus' text format.

use std::fmt::Write;

use api::reply::{ErrorReply, RuleStats, State, Stats};
use axum::extract;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::{Api, Failure};
use crate::statistics;

/// All counters, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "statistics", responses(
    (status = 200, description = "Metrics in text format", body = String, content_type = "text/plain"),
    (status = 503, description = "The counters cannot be read", body = ErrorReply),
))]
pub(super) async fn metrics(extract::State(api): extract::State<Api>) -> Result<Response, Failure> {
    let counters = api.counters().await?;
    let view = api.view();
    let stats = statistics::stats(&api.identity, &view, &counters);
    let text = text(&stats, view.generation);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

fn text(stats: &Stats, generation: u64) -> String {
    let mut page = Page::default();
    let instance = [
        ("version", stats.version.as_str()),
        ("instance_name", &stats.instance),
    ];
    page.family("mcr_info", "gauge", "The daemon.");
    page.sample("mcr_info", &instance, 1);
    page.family(
        "mcr_uptime_seconds",
        "gauge",
        "Seconds since the daemon started.",
    );
    page.sample("mcr_uptime_seconds", &[], stats.uptime_seconds);
    page.family("mcr_generation", "counter", "Generation of the rule set.");
    page.sample("mcr_generation", &[], generation);
    rules(&mut page, &stats.rules);
    outputs(&mut page, &stats.rules);
    workers(&mut page, stats);
    page.0
}

fn rules(page: &mut Page, rules: &[RuleStats]) {
    page.family("mcr_rule_up", "gauge", "1: up, 0.5: degraded, 0: down.");
    for rule in rules {
        let labels = [("rule", rule.name.as_str()), ("path", &rule.path)];
        page.sample("mcr_rule_up", &labels, up(rule.state));
    }
    page.family(
        "mcr_input_joined",
        "gauge",
        "Whether the input's group is joined.",
    );
    for rule in rules {
        for input in &rule.inputs {
            let labels = [("rule", rule.name.as_str()), ("input", &input.at)];
            page.sample("mcr_input_joined", &labels, u8::from(input.joined));
        }
    }
    page.family(
        "mcr_rule_received_packets_total",
        "counter",
        "Packets that matched an input.",
    );
    for rule in rules {
        let labels = [("rule", rule.name.as_str())];
        page.sample(
            "mcr_rule_received_packets_total",
            &labels,
            rule.received.packets,
        );
    }
    page.family(
        "mcr_rule_received_bytes_total",
        "counter",
        "UDP payload of these packets.",
    );
    for rule in rules {
        let labels = [("rule", rule.name.as_str())];
        page.sample(
            "mcr_rule_received_bytes_total",
            &labels,
            rule.received.bytes,
        );
    }
    page.family(
        "mcr_rule_dropped_packets_total",
        "counter",
        "Packets dropped before the outputs.",
    );
    for rule in rules {
        for (reason, count) in &rule.dropped {
            let labels = [("rule", rule.name.as_str()), ("reason", reason)];
            page.sample("mcr_rule_dropped_packets_total", &labels, count);
        }
    }
}

fn outputs(page: &mut Page, rules: &[RuleStats]) {
    let all = || {
        let outputs = rules
            .iter()
            .map(|rule| rule.outputs.iter().zip(0..).map(move |(o, i)| (rule, i, o)));
        outputs.flatten()
    };
    page.family("mcr_output_up", "gauge", "Whether the output sends.");
    for (rule, index, output) in all() {
        let index = index.to_string();
        let labels = output_labels(&rule.name, &index, &output.to);
        page.sample("mcr_output_up", &labels, up(output.state));
    }
    page.family(
        "mcr_output_sent_packets_total",
        "counter",
        "Copies handed to the egress device.",
    );
    for (rule, index, output) in all() {
        let index = index.to_string();
        let labels = output_labels(&rule.name, &index, &output.to);
        page.sample(
            "mcr_output_sent_packets_total",
            &labels,
            output.sent.packets,
        );
    }
    page.family(
        "mcr_output_sent_bytes_total",
        "counter",
        "UDP payload of these copies.",
    );
    for (rule, index, output) in all() {
        let index = index.to_string();
        let labels = output_labels(&rule.name, &index, &output.to);
        page.sample("mcr_output_sent_bytes_total", &labels, output.sent.bytes);
    }
    page.family(
        "mcr_output_dropped_packets_total",
        "counter",
        "Copies dropped.",
    );
    for (rule, index, output) in all() {
        let index = index.to_string();
        let [rule, index, to] = output_labels(&rule.name, &index, &output.to);
        for (reason, count) in &output.dropped {
            let labels = [rule, index, to, ("reason", reason.as_str())];
            page.sample("mcr_output_dropped_packets_total", &labels, count);
        }
    }
}

fn output_labels<'a>(rule: &'a str, index: &'a str, to: &'a str) -> [(&'static str, &'a str); 3] {
    [("rule", rule), ("output", index), ("to", to)]
}

fn workers(page: &mut Page, stats: &Stats) {
    type Value = fn(&api::reply::WorkerStats) -> u64;
    let families: [(&str, &str, Value); 8] = [
        (
            "mcr_worker_restarts_total",
            "Times the worker was started again.",
            |w| w.restarts,
        ),
        (
            "mcr_worker_received_packets_total",
            "Packets read from its tap.",
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
            "Packets lost for want of a buffer.",
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
        for worker in &stats.workers {
            let (id, cpu) = (worker.id.to_string(), worker.cpu.to_string());
            page.sample(
                name,
                &[("worker", id.as_str()), ("cpu", &cpu)],
                value(worker),
            );
        }
    }
}

const fn up(state: State) -> f64 {
    match state {
        State::Up => 1.0,
        State::Degraded => 0.5,
        State::Down => 0.0,
    }
}

/// The text, family by family.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.0, "{name} {value}"),
            false => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
