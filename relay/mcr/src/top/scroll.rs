//! Texts wider or longer than the screen: wrapping and scrolling.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::screen::Screen;

/// Draws a text from the line that `first` returns, given the number of scrolled lines and of lines that do
/// not fit.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    screen: &Screen,
    (title, lines): (&str, Vec<Line<'_>>),
    area: Rect,
    first: impl Fn(usize, usize) -> usize,
) {
    // The title has the first line.
    let room = usize::from(area.height.saturating_sub(1));
    let hidden = lines.len().saturating_sub(room);
    // Keys may have scrolled beyond the end.
    let by = screen.scroll.get().min(hidden);
    screen.scroll.set(by);
    let first = first(by, hidden);
    let title = match hidden {
        0 => title.to_owned(),
        _ => {
            let (all, last) = (lines.len(), first + room);
            format!("{title}({} to {last} of {all} lines) ", first + 1)
        }
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    let lines: Vec<Line<'_>> = lines.into_iter().skip(first).take(room).collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A title with a text beside it, on as many lines as that needs.
pub(super) fn wrapped(title: &str, text: &str, style: Style, width: u16) -> Vec<Line<'static>> {
    let indent = title.chars().count().max(9) + 1;
    let room = usize::from(width).saturating_sub(indent).max(16);
    let mut rows = vec![String::new()];
    for word in text.split(' ') {
        let last = rows.last_mut().expect("there is always a row");
        let used = last.chars().count();
        if used > 0 && used + 1 + word.chars().count() > room {
            rows.push(word.to_owned());
            continue;
        }
        if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    let titles = std::iter::once(title).chain(std::iter::repeat(""));
    let rows = titles.zip(rows).map(|(title, row)| {
        let title = Span::raw(format!("{title:<indent$}"));
        Line::from(vec![title, Span::styled(row, style)])
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_goes_on_under_itself() {
        let lines = wrapped("path", "one two three four five six", Style::new(), 26);
        let texts: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["path      one two three", "          four five six"]
        );
    }
}
