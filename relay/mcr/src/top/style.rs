//! The meaning of colours: green is good, yellow half good, red bad. No colour is the only sign of a state.

use ratatui::style::{Color, Style};

/// Of the word of a state.
pub(super) fn of_word(word: &str) -> Style {
    match word {
        "up" | "idle" => good(),
        "degraded" | "waiting" => half_good(),
        "disabled" => Style::new().fg(Color::DarkGray),
        _ => bad(),
    }
}

pub(super) const fn unless_zero(count: usize, style: Style) -> Style {
    if count == 0 { Style::new() } else { style }
}

pub(super) const fn good() -> Style {
    Style::new().fg(Color::Green)
}

pub(super) const fn half_good() -> Style {
    Style::new().fg(Color::Yellow)
}

pub(super) const fn bad() -> Style {
    Style::new().fg(Color::Red)
}
