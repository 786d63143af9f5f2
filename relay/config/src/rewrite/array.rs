//! A list with comments: an entry that is removed takes its own along, the others keep theirs.

use toml_edit::{Array, Value};

/// An element, and what is written around it.
struct Element {
    value: Value,
    /// What stands between the element before, with its comment, and this one.
    above: String,
    /// The rest of the line: a comment, if any.
    beside: String,
}

/// Makes a list that says `then` say `now`: elements that are in both stay as they are written, and one
/// that is another now keeps the comments of the one that stood in its place.
pub(super) fn exchange<T: PartialEq>(
    array: &mut Array,
    then: &[T],
    now: &[T],
    value: impl Fn(&T) -> Value,
) {
    change(array, |elements, new| {
        let known = then.iter().zip(elements.drain(..));
        let mut known: Vec<Option<(&T, Element)>> = known.map(Some).collect();
        for (at, wanted) in now.iter().enumerate() {
            let is_it = |known: &Option<(&T, Element)>| {
                known.as_ref().is_some_and(|(text, _)| *text == wanted)
            };
            let kept = known.iter().position(is_it);
            let is_other = then.len() == now.len() && !now.contains(&then[at]);
            let kept = match kept.or_else(|| is_other.then_some(at)) {
                Some(place) => known[place].take().map(|(text, element)| {
                    if text == wanted {
                        element
                    } else {
                        Element {
                            value: value(wanted),
                            ..element
                        }
                    }
                }),
                None => None,
            };
            elements.push(kept.unwrap_or_else(|| new(value(wanted))));
        }
    });
}

/// Adds an element at the end.
pub(super) fn add(array: &mut Array, value: Value) {
    change(array, |elements, new| elements.push(new(value)));
}

/// Takes an element out, with its comments.
pub(super) fn take_out(array: &mut Array, place: usize) {
    change(array, |elements, _| drop(elements.remove(place)));
}

/// Changes the elements; new ones stand as the last one does.
fn change(array: &mut Array, by: impl FnOnce(&mut Vec<Element>, &dyn Fn(Value) -> Element)) {
    let (mut elements, end) = take_apart(array);
    let is_lined = elements.iter().any(|element| element.above.contains('\n'));
    let above = elements.last().map(|element| indentation(&element.above));
    let above = above.filter(|_| is_lined).unwrap_or_default();
    by(&mut elements, &|value| Element {
        value,
        above: above.clone(),
        beside: String::new(),
    });
    put_together(array, elements, &end, is_lined);
}

/// The blanks of the line that an element stands on, and the break before it.
fn indentation(above: &str) -> String {
    let line = above.rfind('\n').map_or("", |at| &above[at..]);
    line.to_owned()
}

/// The elements, and what stands behind the last.
fn take_apart(array: &Array) -> (Vec<Element>, String) {
    let raw = |raw: Option<&toml_edit::RawString>| {
        raw.and_then(toml_edit::RawString::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut elements: Vec<Element> = Vec::new();
    let beside = |elements: &mut Vec<Element>, text: String| {
        // Up to the end of the line it is the comment of the element before.
        let end = text.find('\n').unwrap_or_default();
        if let Some(last) = elements.last_mut() {
            last.beside += &text[..end];
            return text[end..].to_owned();
        }
        text
    };
    for value in array.iter() {
        let above = beside(&mut elements, raw(value.decor().prefix()));
        let mut value = value.clone();
        let after = raw(value.decor().suffix());
        value.decor_mut().clear();
        elements.push(Element {
            value,
            above,
            beside: String::new(),
        });
        // Behind the last of a list without a comma at its end.
        if after.contains('#') {
            beside(&mut elements, after);
        }
    }
    let end = beside(&mut elements, raw(Some(array.trailing())));
    (elements, end)
}

fn put_together(array: &mut Array, elements: Vec<Element>, end: &str, is_lined: bool) {
    array.clear();
    let mut beside = String::new();
    for (position, element) in elements.into_iter().enumerate() {
        let mut value = element.value;
        let above = match (position, is_lined) {
            (0, false) => String::new(),
            (_, false) => " ".to_owned(),
            (_, true) => element.above,
        };
        value.decor_mut().set_prefix(format!("{beside}{above}"));
        array.push_formatted(value);
        beside = element.beside;
    }
    let end = if end.is_empty() && is_lined {
        "\n"
    } else {
        end
    };
    array.set_trailing(format!("{beside}{end}"));
    array.set_trailing_comma(is_lined);
}
