//! Session descriptions (RFC 8866): of each media section a stream, of the sections of `a=group:DUP`
//! (RFC 7104) one stream with a leg for each. Senders are those of `a=source-filter` (RFC 4570).

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

/// The attribute that says how much later copies come.
const DELAY: &str = "duplication-delay";

/// Reads the streams of a text, which stands in `part` of a document or is a file itself. Several
/// descriptions may follow each other.
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

/// `s=-` and `s= ` are how a session says that it has no name (RFC 8866 section 5.3).
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
        let of = copies.of.get(&index).map_or(&alone[..], Vec::as_slice);
        if of[0] != index {
            continue;
        }
        let own = of
            .iter()
            .flat_map(|copy| session.sections[*copy].attributes(DELAY));
        let mut delay = Duration::ZERO;
        for line in own {
            delay = delay.max(delay_of(line, of.len(), parsed));
        }
        if let Some(line) = common.filter(|_| of.len() > 1) {
            unused = None;
            if delay.is_zero() {
                delay = delay_of(line, of.len(), parsed);
            }
        }
        for at in 0..section.legs.len() {
            let leg = |copy: &usize| {
                let leg = sections[*copy].legs.get(at)?.clone();
                let number = copies.numbers.get(copy).copied().unwrap_or_default();
                Some(Leg { number, ..leg })
            };
            let legs = of.iter().filter_map(leg).collect();
            streams.push((section, legs, delay));
        }
    }
    if let Some(line) = unused {
        delay_of(line, 1, parsed);
    }
    let session = session.head.first('s');
    let session = session.and_then(|line| session_name(line.value));
    let is_alone = streams.len() == 1;
    for (section, legs, delay) in streams {
        parsed.take(Stream {
            place: section.place.clone(),
            name: name_of(section, session.as_deref(), is_alone),
            legs,
            delay,
            to: Vec::new(),
            enabled: true,
        });
    }
}

/// How much later the last of so many copies comes (RFC 7197): what a rule does with it is told.
fn delay_of((line, value): (&Line, &str), copies: usize, parsed: &mut Parsed) -> Duration {
    let (place, text) = (line.place.clone(), line.text);
    let times = value.split_whitespace().map(str::parse::<u32>);
    let Ok(times) = times.collect::<Result<Vec<u32>, _>>() else {
        parsed.leave(place, text, Why::Form("a=duplication-delay:MILLISECONDS"));
        return Duration::ZERO;
    };
    let later = times.into_iter().fold(0, u32::saturating_add);
    let later = Duration::from_millis(later.into());
    if copies == 1 {
        parsed.leave(place, text, Why::DelayAlone);
    } else if later > WINDOW_MAX - DEFAULT_WINDOW {
        parsed.leave(place, text, Why::Delay);
    } else {
        parsed.note(place, text, Why::Window);
        return later;
    }
    Duration::ZERO
}

/// The sections of a session, as many as there is room for; what they leave is said.
fn sections<'t>(session: &Session<'t>, parsed: &mut Parsed) -> Vec<Section<'t>> {
    let common = section::Common::of(&session.head, parsed);
    let mut room = parsed.room();
    let mut sections = Vec::new();
    for block in &session.sections {
        let mut section = Section::of(block, &common);
        for (place, text, why) in section.left.drain(..) {
            parsed.leave(place, text, why);
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

/// What a stream is called: as the session, and as its section where that has several.
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
    /// Each by its index, with those of its group in the order of the group.
    of: HashMap<usize, Vec<usize>>,
    /// The place of each in its group, whatever became of the others.
    numbers: HashMap<usize, usize>,
}

impl Copies {
    fn of(session: &Session, sections: &[Section], parsed: &mut Parsed) -> Self {
        let mut names = HashMap::new();
        for (index, section) in sections.iter().enumerate() {
            names.extend(section.mid.map(|mid| (mid, index)));
        }
        let mut copies = Self::default();
        let mut is_lost = false;
        for (line, value) in session.head.attributes("group") {
            let Some(mids) = value.strip_prefix("DUP ") else {
                continue;
            };
            for (number, mid) in mids.split_whitespace().enumerate() {
                if let Some(index) = names.get(mid) {
                    copies.numbers.entry(*index).or_insert(number);
                }
            }
            match copies_of(mids, sections, &names, &copies.of) {
                Ok(of) => copies
                    .of
                    .extend(of.iter().map(|index| (*index, of.clone()))),
                Err(why) => {
                    is_lost = true;
                    parsed.leave(line.place.clone(), line.text, why);
                }
            }
        }
        // Those that no group can name are in its order.
        for index in (0..sections.len()).filter(|_| is_lost) {
            copies.numbers.entry(index).or_insert(index);
        }
        copies
    }
}

/// The sections of one group, of which each has a name that is there, and is of no other group.
fn copies_of(
    mids: &str,
    sections: &[Section],
    names: &HashMap<&str, usize>,
    taken: &HashMap<usize, Vec<usize>>,
) -> Result<Vec<usize>, Why> {
    let mut of = Vec::new();
    for mid in mids.split_whitespace() {
        let unknown = || Why::LegUnknown(crate::remark::excerpt(mid));
        let index = *names.get(mid).ok_or_else(unknown)?;
        if taken.contains_key(&index) || of.contains(&index) {
            return Err(unknown());
        }
        // What is wrong with a section that has no leg is said there.
        if !sections[index].legs.is_empty() {
            of.push(index);
        }
        if of.len() > rules::merge::LINES_MAX {
            break;
        }
    }
    let mut counts = of.iter().map(|index| sections[*index].legs.len());
    let first = counts.next();
    if counts.all(|count| Some(count) == first) {
        Ok(of)
    } else {
        Err(Why::LegsUneven)
    }
}

#[cfg(test)]
pub(crate) mod tests;
