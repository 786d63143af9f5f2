//! A list with comments: an element is removed with its comment, the others keep theirs.

use toml_edit::{Array, Value};

/// An element with the text around it.
struct Element {
    value: Value,
    /// The text between the previous element, with its comment, and this one.
    above: String,
    /// The rest of the line: a comment, if any.
    comment: String,
}

/// Changes the list `then` to `now`; an element that replaces another one keeps its comments.
pub(super) fn exchange<T: PartialEq>(
    array: &mut Array,
    then: &[T],
    now: &[T],
    value: impl Fn(&T) -> Value,
) {
    change(array, |elements, new| {
        let make = |previous: Option<(&T, Element)>, wanted: &T| match previous {
            Some((_, element)) => Element {
                value: value(wanted),
                ..element
            },
            None => new(value(wanted)),
        };
        *elements = exchanged(elements.drain(..), then, now, make);
    });
}

/// The elements of the list `now`, from those of `then`: elements in both stay as they are written; the
/// others are made, each from the one that it replaces, if any.
pub(super) fn exchanged<T: PartialEq, E>(
    elements: impl IntoIterator<Item = E>,
    then: &[T],
    now: &[T],
    make: impl Fn(Option<(&T, E)>, &T) -> E,
) -> Vec<E> {
    let pairs = then.iter().zip(elements);
    let mut remaining: Vec<Option<(&T, E)>> = pairs.map(Some).collect();
    let mut list = Vec::new();
    for (at, wanted) in now.iter().enumerate() {
        let is_it = |pair: &Option<(&T, E)>| pair.as_ref().is_some_and(|(then, _)| *then == wanted);
        let same = remaining.iter().position(is_it);
        let is_replaced = then.len() == now.len() && !now.contains(&then[at]);
        let previous = same.or_else(|| is_replaced.then_some(at));
        list.push(match previous.and_then(|index| remaining[index].take()) {
            Some((then, element)) if then == wanted => element,
            previous => make(previous, wanted),
        });
    }
    list
}

/// Adds an element at the end.
pub(super) fn add(array: &mut Array, value: Value) {
    change(array, |elements, new| elements.push(new(value)));
}

/// Removes an element with its comments.
pub(super) fn remove(array: &mut Array, index: usize) {
    change(array, |elements, _| drop(elements.remove(index)));
}

/// Changes the elements; new ones are laid out like the last one.
fn change(array: &mut Array, by: impl FnOnce(&mut Vec<Element>, &dyn Fn(Value) -> Element)) {
    let (mut elements, end) = take_apart(array);
    let is_lined = elements.iter().any(|element| element.above.contains('\n'));
    let last = elements.last().filter(|_| is_lined);
    let above = last.map_or_else(String::new, |element| indentation(&element.above));
    by(&mut elements, &|value| Element {
        value,
        above: above.clone(),
        comment: String::new(),
    });
    put_together(array, elements, &end, is_lined);
}

/// The line break and the indentation before an element.
fn indentation(above: &str) -> String {
    let line = above.rfind('\n').map_or("", |at| &above[at..]);
    line.to_owned()
}

/// The elements, and the text after the last.
fn take_apart(array: &Array) -> (Vec<Element>, String) {
    let raw = |raw: Option<&toml_edit::RawString>| {
        raw.and_then(toml_edit::RawString::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut elements: Vec<Element> = Vec::new();
    let attach_comment = |elements: &mut Vec<Element>, text: String| {
        // Up to the end of the line it is the comment of the previous element.
        let end = text.find('\n').unwrap_or_default();
        if let Some(last) = elements.last_mut() {
            last.comment += &text[..end];
            return text[end..].to_owned();
        }
        text
    };
    for value in array.iter() {
        let above = attach_comment(&mut elements, raw(value.decor().prefix()));
        let mut value = value.clone();
        let after = raw(value.decor().suffix());
        value.decor_mut().clear();
        elements.push(Element {
            value,
            above,
            comment: String::new(),
        });
        // The comment of the last element in a list without trailing comma.
        if after.contains('#') {
            attach_comment(&mut elements, after);
        }
    }
    let end = attach_comment(&mut elements, raw(Some(array.trailing())));
    (elements, end)
}

fn put_together(array: &mut Array, elements: Vec<Element>, end: &str, is_lined: bool) {
    array.clear();
    let mut comment = String::new();
    for (position, element) in elements.into_iter().enumerate() {
        let mut value = element.value;
        let above = match (position, is_lined) {
            (0, false) => String::new(),
            (_, false) => " ".to_owned(),
            (_, true) => element.above,
        };
        value.decor_mut().set_prefix(format!("{comment}{above}"));
        array.push_formatted(value);
        comment = element.comment;
    }
    let end = if end.is_empty() && is_lined {
        "\n"
    } else {
        end
    };
    array.set_trailing(format!("{comment}{end}"));
    array.set_trailing_comma(is_lined);
}
