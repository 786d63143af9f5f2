//! The two lines at the top: the daemon, its rules by state, its workers.

use api::reply::{Stats, WorkerStats};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::screen::Screen;
use super::style::{bad, good, half_good, unless_zero};
use super::update::HostState;
use crate::render;

/// Workers that fit into a line of 80 columns, each with its losses.
const WORKERS_SHOWN: usize = 3;

/// Draws them.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let lines = match (&screen.unreachable, screen.history.last()) {
        (Some(reason), _) => {
            let text = "the daemon does not answer; below is what it said last";
            vec![Line::styled(text, bad()), Line::raw(reason.as_str())]
        }
        (None, None) => vec![Line::raw("asking the daemon …")],
        (None, Some(stats)) => {
            let second = match screen.hosts.as_slice() {
                [] => workers(&stats.workers),
                all => hosts(all),
            };
            vec![summary(screen, stats), second]
        }
    };
    frame.render_widget(Paragraph::new(lines), area);
}

/// What matters most comes first: a narrow terminal cuts the end off.
fn summary(screen: &Screen, stats: &Stats) -> Line<'static> {
    let count = |word| match &stats.selection {
        Some(selection) => selection
            .states
            .get(word)
            .map_or(0, |count| *count as usize),
        None => stats
            .rules
            .iter()
            .filter(|rule| rule.word() == word)
            .count(),
    };
    let selection = stats.selection.as_ref();
    let total = selection.map_or(stats.rules.len() as u64, |selection| selection.part.total);
    let counted = |word| format!("{} {word}", render::count(count(word) as u64));
    let if_any = |word| match count(word) {
        0 => String::new(),
        _ => format!(", {}", counted(word)),
    };
    let only_status = screen.status.as_ref().filter(|_| screen.hosts.is_empty());
    let pending = only_status.and_then(|status| status.pending.as_ref());
    let countdown = pending.map(|pending| format!("{}  ", pending.countdown()));
    let generation = screen.status.as_ref().map_or(0, |status| status.generation);
    let (who, age) = match screen.hosts.len() {
        0 => (
            format!("{} {}", stats.instance, stats.version),
            format!(
                "  up {}  generation {generation}",
                render::times::duration(stats.uptime_seconds)
            ),
        ),
        many => (render::number::things(many as u64, "host"), String::new()),
    };
    Line::from(vec![
        Span::styled("mcr ", Style::new().add_modifier(Modifier::BOLD)),
        Span::styled(countdown.unwrap_or_default(), half_good()),
        Span::raw(format!(
            "{who}  {}: {}, ",
            render::number::things(total, "rule"),
            counted("up"),
        )),
        Span::styled(
            counted("degraded"),
            unless_zero(count("degraded"), half_good()),
        ),
        Span::raw(", "),
        Span::styled(counted("down"), unless_zero(count("down"), bad())),
        Span::styled(if_any("silent"), bad()),
        Span::styled(if_any("waiting"), half_good()),
        Span::raw(if_any("disabled")),
        Span::raw(age),
    ])
}

/// Each host, and why it does not answer, if it does not.
fn hosts(all: &[HostState]) -> Line<'static> {
    let mut spans = vec![Span::raw("hosts:")];
    for (host, why) in all {
        spans.push(match why {
            None => Span::styled(format!(" {host}"), good()),
            Some(why) => Span::styled(format!(" {host} ({why})"), bad()),
        });
    }
    Line::from(spans)
}

/// Each worker; of many only those with a problem.
fn workers(workers: &[WorkerStats]) -> Line<'static> {
    if workers.is_empty() {
        return Line::raw("workers: none needed");
    }
    let is_running = |worker: &&WorkerStats| worker.state == "running";
    let is_well = |worker: &WorkerStats| {
        is_running(&worker) && worker.restarts == 0 && worker.buffer_exhausted == 0
    };
    let are_few = workers.len() <= WORKERS_SHOWN;
    let mut spans = vec![Span::raw("workers:")];
    if !are_few {
        let running = workers.iter().filter(is_running).count();
        let text = format!(" {running} of {} running", workers.len());
        spans.push(Span::styled(text, good()));
    }
    for worker in workers.iter().filter(|worker| are_few || !is_well(worker)) {
        let style = if is_running(&worker) {
            good()
        } else {
            half_good()
        };
        spans.push(Span::styled(
            format!(" {}={}", worker.id, worker.state),
            style,
        ));
        spans.push(Span::raw(format!(" cpu {}", worker.cpu)));
        if worker.restarts > 0 {
            spans.push(Span::styled(
                format!(" restarts {}", worker.restarts),
                half_good(),
            ));
        }
        if worker.buffer_exhausted > 0 {
            let lost = render::count(worker.buffer_exhausted);
            spans.push(Span::styled(format!(" lost {lost}"), bad()));
        }
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_workers_are_counted_and_the_troubled_named() {
        let worker = |id: u32, state: &str| {
            format!(
                r#"{{"id":{id},"cpu":{id},"pid":9,"state":"{state}","restarts":0,"received":0,
                "matched":0,"not_matched":0,"forwarded":0,"buffer_exhausted":0,
                "receive_errors":0,"transmit_errors":0}}"#
            )
        };
        let workers: Vec<WorkerStats> = (0..16)
            .map(|id| worker(id, if id == 7 { "backoff" } else { "running" }))
            .map(|text| serde_json::from_str(&text).unwrap())
            .collect();
        let text = super::workers(&workers).to_string();
        assert_eq!(text, "workers: 15 of 16 running 7=backoff cpu 7");
        let text = super::workers(&workers[..2]).to_string();
        assert_eq!(text, "workers: 0=running cpu 0 1=running cpu 1");
    }
}
