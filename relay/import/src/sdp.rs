//! Session descriptions (RFC 8866): each media section becomes a stream, the sections of `a=group:DUP`
//! (RFC 7104) one stream with a leg for each. Senders come from `a=source-filter` (RFC 4570).

mod filter;
mod groups;
mod lines;
mod section;

use std::collections::HashMap;
use std::time::Duration;

use rules::merge::{DEFAULT_WINDOW, WINDOW_MAX};

use crate::parsed::{Leg, Parsed, Stream};
use crate::remark::Why;

use lines::{Line, Session};
use section::Section;

/// The attribute with the delay of later copies.
const DELAY: &str = "duplication-delay";

/// Reads the streams of a text, which is in `part` of a document or a file itself. It may hold several
/// descriptions, one after another.
pub(crate) fn read(text: &str, part: &str, parsed: &mut Parsed) {
    for session in Session::all(text, part, parsed) {
        streams(&session, parsed);
    }
}

/// The name of the first session of a text.
pub(crate) fn name(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim);
    lines.find_map(|line| session_name(line.strip_prefix("s=")?))
}

/// `s=-` and `s= ` mean that a session has no name (RFC 8866 section 5.3).
fn session_name(text: &str) -> Option<String> {
    let text = text.trim();
    (!matches!(text, "" | "-")).then(|| text.to_owned())
}

fn streams(session: &Session, parsed: &mut Parsed) {
    let sections = sections(session, parsed);
    let copies = Copies::of(session, &sections, parsed);
    let common = session.head.attributes(DELAY).next();
    let mut unused = common;
    let mut streams = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        let alone = [index];
        let group = copies.groups.get(&index).map_or(&alone[..], Vec::as_slice);
        if group[0] != index {
            continue;
        }
        let mut delay = Duration::ZERO;
        for copy in group {
            for line in session.sections[*copy].attributes(DELAY) {
                delay = delay.max(delay_of(line, group.len(), parsed));
            }
        }
        if let Some(line) = common.filter(|_| group.len() > 1) {
            unused = None;
            if delay.is_zero() {
                delay = delay_of(line, group.len(), parsed);
            }
        }
        for at in 0..section.legs.len() {
            let leg = |copy: &usize| {
                let leg = sections[*copy].legs.get(at)?.clone();
                let number = copies.numbers.get(copy).copied().unwrap_or_default();
                Some(Leg { number, ..leg })
            };
            let legs = group.iter().filter_map(leg).collect();
            streams.push((section, legs, delay));
        }
    }
    if let Some(line) = unused {
        delay_of(line, 1, parsed);
    }
    let title = session.head.first('s');
    let session_name = title.and_then(|line| session_name(line.value));
    let is_alone = streams.len() == 1;
    for (section, legs, delay) in streams {
        parsed.add(Stream {
            position: section.position.clone(),
            name: name_of(section, session_name.as_deref(), is_alone),
            legs,
            delay,
            to: Vec::new(),
            enabled: true,
        });
    }
}

/// How far the last of `copies` lags behind (RFC 7197); reports what a rule does about it.
fn delay_of((line, value): (&Line, &str), copies: usize, parsed: &mut Parsed) -> Duration {
    let (position, text) = (line.position.clone(), line.text);
    let words = value.split_whitespace().map(str::parse::<u32>);
    let Ok(steps) = words.collect::<Result<Vec<u32>, _>>() else {
        parsed.skip(
            position,
            text,
            Why::Form("a=duplication-delay:MILLISECONDS"),
        );
        return Duration::ZERO;
    };
    let total_ms = steps.into_iter().fold(0, u32::saturating_add);
    let delay = Duration::from_millis(total_ms.into());
    if copies == 1 {
        parsed.skip(position, text, Why::DelayAlone);
    } else if delay > WINDOW_MAX - DEFAULT_WINDOW {
        parsed.skip(position, text, Why::Delay);
    } else {
        parsed.note(position, text, Why::Window);
        return delay;
    }
    Duration::ZERO
}

/// The sections of a session, as many as there is room for; reports what of them is not taken over.
fn sections<'t>(session: &Session<'t>, parsed: &mut Parsed) -> Vec<Section<'t>> {
    let common = section::Common::of(&session.head, parsed);
    let mut room = parsed.room();
    let mut sections = Vec::new();
    for block in &session.sections {
        let mut section = Section::of(block, &common);
        for (position, text, why) in section.rejected.drain(..) {
            parsed.skip(position, text, why);
        }
        let count = section.legs.len();
        sections.push(section);
        if count > room {
            break;
        }
        room -= count;
    }
    sections
}

/// The name of a stream: the session's, followed by the section's if the session has several.
fn name_of(section: &Section, session: Option<&str>, is_alone: bool) -> Option<String> {
    let title = section.title.as_deref();
    match session {
        Some(session) if is_alone => Some(session.to_owned()),
        Some(session) => Some(format!("{session} {}", title.unwrap_or(section.media))),
        None => title.map(str::to_owned),
    }
}

/// Which sections are copies of each other.
#[derive(Default)]
struct Copies {
    /// By section index, the sections of its group in the order of the group.
    groups: HashMap<usize, Vec<usize>>,
    /// By section index, its number in its group, counting rejected sections too.
    numbers: HashMap<usize, usize>,
}

impl Copies {
    fn of(session: &Session, sections: &[Section], parsed: &mut Parsed) -> Self {
        let mut names = HashMap::new();
        for (index, section) in sections.iter().enumerate() {
            names.extend(section.mid.map(|mid| (mid, index)));
        }
        let mut copies = Self::default();
        let mut has_rejected = false;
        for (line, value) in session.head.attributes("group") {
            let Some(mids) = value.strip_prefix("DUP ") else {
                continue;
            };
            for (number, mid) in mids.split_whitespace().enumerate() {
                if let Some(index) = names.get(mid) {
                    copies.numbers.entry(*index).or_insert(number);
                }
            }
            match copies_of(mids, sections, &names, &copies.groups) {
                Ok(group) => {
                    let members = group.iter().map(|index| (*index, group.clone()));
                    copies.groups.extend(members);
                }
                Err(why) => {
                    has_rejected = true;
                    parsed.skip(line.position.clone(), line.text, why);
                }
            }
        }
        // Sections that no group names are numbered in their own order.
        for index in (0..sections.len()).filter(|_| has_rejected) {
            copies.numbers.entry(index).or_insert(index);
        }
        copies
    }
}

/// The sections of one group; each must exist and belong to no other group.
fn copies_of(
    mids: &str,
    sections: &[Section],
    names: &HashMap<&str, usize>,
    taken: &HashMap<usize, Vec<usize>>,
) -> Result<Vec<usize>, Why> {
    let mut group = Vec::new();
    for mid in mids.split_whitespace() {
        let unknown = || Why::LegUnknown(crate::remark::excerpt(mid));
        let index = *names.get(mid).ok_or_else(unknown)?;
        if taken.contains_key(&index) || group.contains(&index) {
            return Err(unknown());
        }
        // The problem of a section without legs is reported for that section.
        if !sections[index].legs.is_empty() {
            group.push(index);
        }
        if group.len() > rules::merge::LINES_MAX {
            break;
        }
    }
    let mut counts = group.iter().map(|index| sections[*index].legs.len());
    let first = counts.next();
    if counts.all(|count| Some(count) == first) {
        Ok(group)
    } else {
        Err(Why::LegsUneven)
    }
}

#[cfg(test)]
pub(crate) mod tests;
