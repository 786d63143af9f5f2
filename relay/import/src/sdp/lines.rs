//! A session description as lines: those before the first media section, and each section.

use crate::parsed::Parsed;
use crate::remark::{Position, Why};

/// One description.
pub(super) struct Session<'t> {
    pub(super) head: Block<'t>,
    pub(super) sections: Vec<Block<'t>>,
}

/// The lines before the first `m=`, or from one to the next.
pub(super) struct Block<'t>(Vec<Line<'t>>);

/// `TYPE=VALUE`.
pub(super) struct Line<'t> {
    pub(super) position: Position,
    /// The whole line.
    pub(super) text: &'t str,
    kind: char,
    pub(super) value: &'t str,
}

impl<'t> Session<'t> {
    /// The descriptions in a text, each of which begins with `v=`.
    pub(super) fn all(text: &'t str, part: &str, parsed: &mut Parsed) -> Vec<Self> {
        let mut sessions: Vec<Self> = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let text = text.trim();
            if text.is_empty() {
                continue;
            }
            let position = Position::line(part, index + 1);
            let Some(line) = Line::of(position.clone(), text) else {
                parsed.skip(position, text, Why::Form("TYPE=VALUE"));
                continue;
            };
            if line.kind == 'v' || sessions.is_empty() {
                sessions.push(Self {
                    head: Block(Vec::new()),
                    sections: Vec::new(),
                });
            }
            let Some(session) = sessions.last_mut() else {
                continue;
            };
            if line.kind == 'm' {
                session.sections.push(Block(Vec::new()));
            }
            let block = session.sections.last_mut().unwrap_or(&mut session.head);
            block.0.push(line);
        }
        sessions
    }
}

impl<'t> Line<'t> {
    fn of(position: Position, text: &'t str) -> Option<Self> {
        let (kind, value) = text.split_once('=')?;
        let mut letters = kind.chars();
        let kind = letters.next().filter(char::is_ascii_lowercase)?;
        letters.next().is_none().then_some(Self {
            position,
            text,
            kind,
            value,
        })
    }
}

impl<'t> Block<'t> {
    /// Its lines of that type.
    pub(super) fn all(&self, kind: char) -> impl Iterator<Item = &Line<'t>> {
        self.0.iter().filter(move |line| line.kind == kind)
    }

    /// The first of its lines of that type.
    pub(super) fn first(&self, kind: char) -> Option<&Line<'t>> {
        self.all(kind).next()
    }

    /// Its attributes of that name, each with its value.
    pub(super) fn attributes(&self, name: &str) -> impl Iterator<Item = (&Line<'t>, &'t str)> {
        self.all('a').filter_map(move |line| {
            let value = line.value.strip_prefix(name)?.strip_prefix(':')?;
            Some((line, value.trim()))
        })
    }
}
