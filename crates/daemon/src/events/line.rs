//! What is told of a rule's lines: inputs that stand by for each other, or are merged.

use api::reply::Event;
use model::printable::plural;

use super::event::event;
use super::kind::*;
use crate::stats::LineNews;

/// What became of a line.
pub(crate) fn line(rule: &str, news: &LineNews) -> Event {
    let (kind, what) = match news {
        LineNews::Switched { from, to, why } => {
            let from = from.as_ref().filter(|from| *from != to);
            let from = from.map_or_else(String::new, |from| format!(", {from} was"));
            let why = { why.as_ref() }.map_or_else(String::new, |why| format!(": {why}"));
            (
                INPUT_SWITCHED,
                format!("input {to} is relayed now{from}{why}"),
            )
        }
        LineNews::Silent { line, ns } => {
            let seconds = *ns as f64 / 1e9;
            let text = format!("input {line} is silent: no packet for {seconds:.1} s");
            (LINE_DOWN, text)
        }
        LineNews::Delivers { line } => (LINE_UP, format!("input {line} delivers again")),
        LineNews::Loses { line, missed, of } => {
            let text = format!("input {line} loses packets: {missed} of {of} came by others alone");
            (LINE_DEGRADED, text)
        }
        LineNews::Keeps { line } => (LINE_UP, format!("input {line} loses no more packets")),
        LineNews::Late { line, packets } => {
            let text = format!(
                "input {line} is too far behind: {packets} packet{} came later than merge remembers; \
                 raise merge.packets, or find what delays the line",
                plural(*packets)
            );
            (SKEW_EXCEEDS_WINDOW, text)
        }
        LineNews::Skewed {
            line,
            skew_ns,
            window_ns,
        } => {
            let ms = |ns: u64| ns as f64 / 1e6;
            let text = format!(
                "input {line} is {:.1} ms behind, more than half the window of {:.0} ms; raise \
                 merge.window, or find what delays the line",
                ms(*skew_ns),
                ms(*window_ns)
            );
            (SKEW_EXCEEDS_WINDOW, text)
        }
        LineNews::Differs { line, packets } => {
            let text = format!(
                "input {line} brings {packets} packet{} that no other line does: it is of another \
                 sender, or numbers its packets differently",
                plural(*packets)
            );
            (LINES_DIFFER, text)
        }
        LineNews::Restarted { streams } => {
            let text = format!(
                "a stream began: another source or session, or numbers that do not go on; \
                 {streams} so far"
            );
            (STREAM_RESTARTED, text)
        }
    };
    event(kind, rule, format!("rule {rule:?}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_names_rule_and_line_and_what_to_do() {
        let at = || "239.1.1.1%red:5001".to_owned();
        for (news, kind, said) in [
            (
                LineNews::Loses {
                    line: at(),
                    missed: 12,
                    of: 5_000,
                },
                LINE_DEGRADED,
                "input 239.1.1.1%red:5001 loses packets: 12 of 5000 came by others alone",
            ),
            (
                LineNews::Late {
                    line: at(),
                    packets: 1,
                },
                SKEW_EXCEEDS_WINDOW,
                "1 packet came later than merge remembers; raise merge.packets",
            ),
            (
                LineNews::Skewed {
                    line: at(),
                    skew_ns: 26_500_000,
                    window_ns: 50_000_000,
                },
                SKEW_EXCEEDS_WINDOW,
                "is 26.5 ms behind, more than half the window of 50 ms; raise merge.window",
            ),
            (
                LineNews::Differs {
                    line: at(),
                    packets: 7,
                },
                LINES_DIFFER,
                "brings 7 packets that no other line does",
            ),
            (
                LineNews::Restarted { streams: 2 },
                STREAM_RESTARTED,
                "2 so far",
            ),
        ] {
            let told = line("cam1", &news);
            assert_eq!((told.kind.as_str(), told.subject.as_str()), (kind, "cam1"));
            assert!(told.message.starts_with("rule \"cam1\": "), "{told:?}");
            assert!(told.message.contains(said), "{told:?}");
        }
    }
}
