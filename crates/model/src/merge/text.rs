//! A merge as keys and values: `by=sequence,offset=8,bytes=4,order=little,session=2:8`.

use std::time::Duration;

use super::{
    By, ByteOrder, DEFAULT_PACKETS, DEFAULT_WINDOW, Field, Merge, MergeProblem, PACKETS_MAX,
    Sequence, WINDOW_MAX, WINDOW_MIN,
};
use crate::duration;

/// Keys in the order they are printed.
pub const KEYS: [&str; 8] = [
    "by", "window", "packets", "offset", "bytes", "order", "session", "count",
];
/// Those of them that say where a sequence stands.
const PLACE: [&str; 5] = ["offset", "bytes", "order", "session", "count"];

/// Where a field may begin: within a packet that crosses any Ethernet.
const OFFSET_MAX: u16 = 1_400;
const SESSION_MAX: u8 = 16;

/// Reads keys and values; `by=none` is no merge.
///
/// # Errors
///
/// Names the first key that cannot be read and what to write.
pub fn parse<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Option<Merge>, MergeProblem> {
    let mut values = [None; KEYS.len()];
    for (key, value) in pairs {
        let place = KEYS.into_iter().position(|known| known == key);
        let place = place.ok_or_else(|| MergeProblem::Unknown(key.to_owned()))?;
        if values[place].replace(value).is_some() {
            return Err(MergeProblem::Twice(key.to_owned()));
        }
    }
    let given = |key: &str| values[KEYS.into_iter().position(|known| known == key)?];
    let by = match given("by").ok_or(MergeProblem::NoBy)? {
        "none" => {
            let other = KEYS.into_iter().skip(1).find(|key| given(key).is_some());
            let refused = |key: &str| Err(MergeProblem::BesideNone(key.to_owned()));
            return other.map_or(Ok(None), refused);
        }
        "rtp" => By::Rtp,
        "sequence" => By::Sequence(sequence(given)?),
        "moldudp64" => By::MoldUdp64,
        "mdp3" => By::Mdp3,
        "payload" => By::Payload,
        other => return Err(MergeProblem::By(other.to_owned())),
    };
    let is_known = !matches!(by, By::Sequence(_));
    if let Some(key) = PLACE
        .into_iter()
        .find(|key| is_known && given(key).is_some())
    {
        let by = by.as_str();
        return Err(MergeProblem::PlaceKnown { key, by });
    }
    Ok(Some(Merge {
        by,
        window: given("window").map_or(Ok(DEFAULT_WINDOW), window)?,
        packets: given("packets").map_or(Ok(DEFAULT_PACKETS), packets)?,
    }))
}

/// Divides `by=rtp,window=50ms` into keys and values; a word alone is what tells copies.
///
/// # Errors
///
/// Names the part that is not `KEY=VALUE`.
pub fn split(text: &str) -> Result<Vec<(&str, &str)>, MergeProblem> {
    if !text.contains(['=', ',']) {
        return Ok(vec![("by", text)]);
    }
    let pair = |part| match str::split_once(part, '=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
        _ => Err(MergeProblem::Form(part.to_owned())),
    };
    text.split(',').map(pair).collect()
}

impl Merge {
    /// What tells copies, and the keys that are not the default, in their order.
    #[must_use]
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let window = (self.window != DEFAULT_WINDOW).then(|| duration::text(self.window));
        let packets = (self.packets != DEFAULT_PACKETS).then(|| self.packets.to_string());
        let sequence = match &self.by {
            By::Sequence(sequence) => Some(sequence),
            _ => None,
        };
        let field = |field: Field| format!("{}:{}", field.offset, field.bytes);
        let is_little = |sequence: &&Sequence| sequence.order == ByteOrder::Little;
        let values = [
            Some(self.by.as_str().to_owned()),
            window,
            packets,
            sequence.map(|sequence| sequence.number.offset.to_string()),
            sequence.map(|sequence| sequence.number.bytes.to_string()),
            sequence.filter(is_little).map(|_| "little".to_owned()),
            sequence.and_then(|sequence| sequence.session).map(field),
            sequence.and_then(|sequence| sequence.count).map(field),
        ];
        let texts = KEYS.into_iter().zip(values);
        texts.filter_map(|(key, text)| Some((key, text?))).collect()
    }
}

fn sequence<'a>(given: impl Fn(&str) -> Option<&'a str>) -> Result<Sequence, MergeProblem> {
    let needed = |key: &'static str| given(key).ok_or(MergeProblem::NoPlace(key));
    let (at, length) = (needed("offset")?, needed("bytes")?);
    let number = Field {
        offset: offset(at).ok_or_else(|| MergeProblem::Offset(at.to_owned()))?,
        bytes: bytes(length, |n| matches!(n, 2 | 4 | 8))
            .ok_or_else(|| MergeProblem::Bytes(length.to_owned()))?,
    };
    let order = match given("order") {
        None | Some("big") => ByteOrder::Big,
        Some("little") => ByteOrder::Little,
        Some(other) => return Err(MergeProblem::Order(other.to_owned())),
    };
    let session = given("session").map(|text| {
        let read = field(text, |n| (1..=SESSION_MAX).contains(&n));
        read.ok_or_else(|| MergeProblem::Session(text.to_owned()))
    });
    let count = given("count").map(|text| {
        let read = field(text, |n| matches!(n, 1 | 2 | 4));
        read.ok_or_else(|| MergeProblem::Count(text.to_owned()))
    });
    let (session, count) = (session.transpose()?, count.transpose()?);
    let overlaps = [
        ("the number", Some(number), "session", session),
        ("the number", Some(number), "count", count),
        ("session", session, "count", count),
    ];
    for (one, first, other, second) in overlaps {
        if let (Some(first), Some(second)) = (first, second)
            && first.offset < end(second)
            && second.offset < end(first)
        {
            return Err(MergeProblem::Overlap(one, other));
        }
    }
    Ok(Sequence {
        number,
        order,
        session,
        count,
    })
}

fn end(field: Field) -> u16 {
    field.offset + u16::from(field.bytes)
}

/// Reads `OFFSET:BYTES`.
fn field(text: &str, may_be: impl Fn(u8) -> bool) -> Option<Field> {
    let (at, length) = text.split_once(':')?;
    Some(Field {
        offset: offset(at)?,
        bytes: bytes(length, may_be)?,
    })
}

fn offset(text: &str) -> Option<u16> {
    whole(text).filter(|offset| *offset <= OFFSET_MAX)
}

fn bytes(text: &str, may_be: impl Fn(u8) -> bool) -> Option<u8> {
    whole(text).filter(|bytes| may_be(*bytes))
}

fn window(text: &str) -> Result<Duration, MergeProblem> {
    let time = duration::parse(text);
    time.filter(|time| (WINDOW_MIN..=WINDOW_MAX).contains(time))
        .ok_or_else(|| MergeProblem::Window(text.to_owned()))
}

/// Rounds up to what rings have room for.
fn packets(text: &str) -> Result<u32, MergeProblem> {
    whole(text)
        .filter(|packets| (1..=PACKETS_MAX).contains(packets))
        .map(|packets: u32| packets.next_power_of_two().max(DEFAULT_PACKETS))
        .ok_or_else(|| MergeProblem::Packets(text.to_owned()))
}

fn whole<N: std::str::FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Option<Merge>, MergeProblem> {
        parse(split(text)?)
    }

    #[test]
    fn reads_every_key() {
        assert_eq!(read("rtp").unwrap(), Some(Merge::default()));
        assert_eq!(read("by=rtp").unwrap(), Some(Merge::default()));
        assert_eq!(read("none").unwrap(), None);
        let merge = read(
            "by=sequence,offset=10,bytes=4,order=little,window=450ms,packets=5000,session=2:8,\
             count=18:2",
        );
        let field = |offset, bytes| Field { offset, bytes };
        let expected = Merge {
            by: By::Sequence(Sequence {
                number: field(10, 4),
                order: ByteOrder::Little,
                session: Some(field(2, 8)),
                count: Some(field(18, 2)),
            }),
            window: Duration::from_millis(450),
            packets: 8_192,
        };
        assert_eq!(merge.unwrap(), Some(expected));
        for (text, by) in [
            ("moldudp64", By::MoldUdp64),
            ("mdp3", By::Mdp3),
            ("payload", By::Payload),
        ] {
            assert_eq!(read(text).unwrap().unwrap().by, by);
        }
    }

    #[test]
    fn packets_are_rounded_up_to_what_rings_hold() {
        for (text, packets) in [
            ("1", 2_048),
            ("2048", 2_048),
            ("2049", 4_096),
            ("40000", 65_536),
            ("65536", 65_536),
        ] {
            let merge = read(&format!("by=rtp,packets={text}")).unwrap().unwrap();
            assert_eq!(merge.packets, packets, "{text}");
        }
    }

    #[test]
    fn says_what_to_write() {
        for (text, expected) in [
            (
                "rtp,window=5ms",
                "merge: \"rtp\" is not KEY=VALUE, as in by=rtp,window=50ms",
            ),
            (
                "by=rtp,widow=5ms",
                "merge: there is no key \"widow\"; there are by, window, packets, offset, bytes, order, session, count",
            ),
            ("by=rtp,by=mdp3", "merge: by is given twice; leave one out"),
            (
                "window=5ms",
                "merge: does not say what tells copies; give by=rtp, or another of rtp, sequence, moldudp64, mdp3, payload",
            ),
            (
                "rtcp",
                "merge: by=rtcp: give rtp, sequence, moldudp64, mdp3, payload, or none",
            ),
            (
                "by=rtp,window=2s",
                "merge: window=2s: give a time from 1ms to 500ms, such as 50ms",
            ),
            (
                "by=rtp,packets=65537",
                "merge: packets=65537: give how many are remembered, 1 to 65536",
            ),
            (
                "sequence",
                "merge: by=sequence needs offset; give offset and bytes of the number, as in by=sequence,offset=8,bytes=4",
            ),
            (
                "by=sequence,offset=8",
                "merge: by=sequence needs bytes; give offset and bytes of the number, as in by=sequence,offset=8,bytes=4",
            ),
            (
                "by=sequence,offset=1401,bytes=4",
                "merge: offset=1401: give the bytes of the payload before the number, 0 to 1400",
            ),
            (
                "by=sequence,offset=8,bytes=3",
                "merge: bytes=3: a number has 2, 4 or 8 bytes",
            ),
            (
                "by=sequence,offset=8,bytes=4,order=middle",
                "merge: order=middle: give big (the most significant byte first) or little",
            ),
            (
                "by=sequence,offset=0,bytes=2,session=2:17",
                "merge: session=2:17: give offset and bytes, as in 2:8; 1 to 16 bytes that begin within the first 1400",
            ),
            (
                "by=sequence,offset=0,bytes=2,count=2",
                "merge: count=2: give offset and bytes, as in 18:2; 1, 2 or 4 bytes that begin within the first 1400",
            ),
            (
                "by=sequence,offset=8,bytes=4,session=2:8",
                "merge: the number and session share bytes; look up their offsets, which count from the payload's begin",
            ),
            (
                "by=mdp3,order=big",
                "merge: order says where a sequence stands, and by=mdp3 knows; leave order out",
            ),
            (
                "by=none,window=5ms",
                "merge: none takes no window; leave it out, or say what tells copies",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), expected);
        }
        for text in [
            "by=sequence,offset=+8,bytes=4",
            "by=sequence,offset=8,bytes=4,session=0:8,count=4:4",
            "by=sequence,offset=8,bytes=4,count=12:3",
            "by=rtp,packets=0",
            "by=rtp,window=0ms",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn survives_printing_and_parsing(merge in crate::samples::merge()) {
            let texts = merge.texts();
            let pairs = texts.iter().map(|(key, value)| (*key, value.as_str()));
            prop_assert_eq!(parse(pairs).unwrap(), Some(merge));
        }
    }
}
